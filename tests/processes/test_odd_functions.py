"""Functions that raise in odd places: the blame and the outcome stay true, and nothing hangs."""

import os
import signal
from pathlib import Path

import pytest

from supervise import DefaultLogsSpecs, Start, Wait
from tests.patience import PATIENCE_S
from tests.processes.gangs import each_function, faulty
from tests.processes.hosts import Host, make_gang

FORKS = """
if os.fork() == 0:
    raise RuntimeError("of a child")
os.wait()
say("child has ended")
signal.pause()
"""


@each_function
def test_o4_what_a_process_raises_that_a_function_forked_is_not_the_ranks(tmp_path, kind):
    """It records nothing: the rank that fails later is the root cause."""
    with faulty(tmp_path, kind, [FORKS, "wait_for_word(); raise ValueError('mine')"]) as gang:
        gang.hear()
        gang.tell(1)
        result = gang.wait()
    assert (result.root_cause, set(result.failures)) == (1, {1})
    assert "ValueError: mine" in str(result.failures[1].message)


@each_function
def test_o3_an_exception_whose_text_leaves_with_0_is_a_failure(tmp_path, kind):
    """The record must not take the exit for one of the function's own."""
    source = "class Odd(Exception):\n    def __str__(self):\n        sys.exit(0)\nraise Odd"
    with faulty(tmp_path, kind, [source]) as gang:
        result = gang.wait()
    assert (result.outcome, result.failures[0].exitcode) == ("failed", 1)
    assert "Odd: <exception str() failed>" in str(result.failures[0].message)


@each_function
def test_o4_an_exception_is_recorded_whole_although_its_rank_is_stopped_meanwhile(tmp_path, kind):
    """As a rank is that fails together with others."""
    stopped = "        os.kill(os.getpid(), signal.SIGTERM)\n        return 'why'"
    source = f"class Odd(Exception):\n    def __str__(self):\n{stopped}\nraise Odd from OSError('cause')"
    with faulty(tmp_path, kind, [source]) as gang:
        result = gang.wait()
    assert (result.outcome, result.failures[0].exitcode) == ("failed", -signal.SIGTERM)
    assert "Odd: why" in str(result.failures[0].message)
    assert "OSError: cause" in result.failures[0].error_file_data["message"]["extraInfo"]["py_callstack"]


@each_function
def test_o4_an_exception_without_an_error_file_is_shown_whole_although_its_rank_is_stopped_meanwhile(kind, capfd):
    """Then the traceback on stderr is all that tells why the rank has failed."""
    stopped = "        os.kill(os.getpid(), signal.SIGTERM)\n        return 'why'"
    source = f"class Odd(Exception):\n    def __str__(self):\n{stopped}\nraise Odd"
    with make_gang(kind, [source], logs_specs=DefaultLogsSpecs(os.devnull)) as gang:
        gang.ask(Start(), timeout=PATIENCE_S)
        result = gang.ask(Wait(), timeout=PATIENCE_S)
    assert (result.outcome, result.failures[0].exitcode) == ("failed", -signal.SIGTERM)
    assert "Odd: why" in capfd.readouterr().err


@each_function
def test_o3_an_exit_code_without_a_text_is_the_failure_of_the_rank(tmp_path, kind):
    source = "class Odd:\n    def __str__(self):\n        raise ValueError\nsys.exit(Odd())"
    with faulty(tmp_path, kind, [source]) as gang:
        result = gang.wait()
    assert (result.outcome, result.failures[0].exitcode) == ("failed", 1)
    assert "SystemExit: <exception str() failed>" in str(result.failures[0].message)


@each_function
def test_o4_a_function_that_clears_its_environment_still_records(tmp_path, kind):
    with faulty(tmp_path, kind, ["os.environ.clear(); raise ValueError('mine')"]) as gang:
        result = gang.wait()
    assert "ValueError: mine" in str(result.failures[0].message)


CANNOT_RECORD = [
    "os.environ['TORCHELASTIC_ERROR_FILE'] = '/dev/null/none'",
    "sys.meta_path.clear(); [sys.modules.pop(name, None) for name in ('json', 'traceback', 'ast')]",
]


@pytest.mark.parametrize("source", CANNOT_RECORD, ids=["no file", "no import"])
@each_function
def test_o4_an_exception_that_cannot_be_recorded_is_in_stderr(tmp_path, kind, source):
    """As in a rank that has changed its user or its root folder, or has no descriptor left."""
    with faulty(tmp_path, kind, [f"{source}; raise ValueError('mine')"]) as gang:
        result = gang.wait()
    assert "ValueError: mine" in f"{result.failures[0].message} {Path(result.stderrs[0]).read_text()}"


RAISING_HANDLER = """
import logging
from supervise import start_processes
from tests.processes import work

class Raising(logging.Handler):
    def emit(self, record):
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("a handler of the application's")

logger = logging.getLogger("supervise")
logger.addHandler(Raising())
logger.setLevel(level)
if __name__ == "__main__":
    with start_processes("odd", work.double, {0: (1,)}, start_method=kind) as context:
        print(context.wait(20).return_values, flush=True)
"""


@pytest.mark.parametrize("level", ["DEBUG", "INFO"])
def test_k3_a_logging_handler_that_raises_holds_up_nothing(level):
    with Host(RAISING_HANDLER.replace("level)", f"{level!r})"), "fork") as host:
        assert host.hear() == "{0: 2}"
        assert host.exit_code() == 0, f"within {PATIENCE_S} s"
