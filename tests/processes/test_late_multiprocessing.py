"""A spawned worker does without multiprocessing until something imports it, and then has all of it."""

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from supervise import DefaultLogsSpecs, Start, Std, Supervisor, Wait, start_processes
from tests.patience import PATIENCE_S

MAIN = """
if __name__ == "__main__":
    from supervise import start_processes
    context = start_processes(name="late", entrypoint=f, args={0: ()}, envs={0: {}}, start_method="spawn")
    result = context.wait()
    print("value:", result.return_values[0] if result.return_values else result.failures[0].message, flush=True)
    context.close()
"""
NOTHING = """
import sys
def f():
    return [name for name in ("multiprocessing", "logging", "subprocess", "socket") if name in sys.modules]
"""
LOGGING = """
def f():
    import logging
    from multiprocessing import util
    name = logging.LogRecord("a", 20, "p", 1, "m", None, None).processName
    return util.get_logger().manager is logging.root.manager, name
if __name__ == "__main__":
    from multiprocessing import log_to_stderr
    log_to_stderr()
"""
CLASSES = """
from __future__ import annotations
import logging, typing, dataclasses
@dataclasses.dataclass
class Fields:
    x: int = 1
    y: typing.ClassVar[list] = []
def f():
    return [field.name for field in dataclasses.fields(Fields)]
"""
FINDING = """
import importlib.util
def f():
    importlib.util.find_spec("logging"), importlib.util.find_spec("multiprocessing")
    import multiprocessing
    return multiprocessing.current_process().name, multiprocessing.get_start_method()
"""
FAILING = """
import sys
class Fail:
    def find_spec(self, name, path=None, target=None):
        if name == "multiprocessing.context":
            raise ImportError(name)
def f():
    sys.meta_path.insert(0, Fail())
    try:
        import multiprocessing
    except ImportError:
        del sys.meta_path[0]
    import multiprocessing
    return multiprocessing.current_process().name, multiprocessing.get_start_method()
"""
OLD_FINDER = """
import sys
class Old:
    def find_module(self, name, path=None):
        return None
def f():
    sys.meta_path.insert(0, Old())
    import warnings
    warnings.simplefilter("ignore")
    import multiprocessing
    return multiprocessing.current_process().name
"""
AT_EXIT = """
import atexit
if __name__ != "__main__":
    atexit.register(print, "exit function", flush=True)
def f():
    from multiprocessing import util
    util.Finalize(None, print, ("finalizer",), {"flush": True}, exitpriority=1)
"""
ENDS = ["exit function", "finalizer"] if sys.version_info >= (3, 13) else ["finalizer", "exit function"]
"""As in multiprocessing's own children."""
STDIN = """
import io, sys
class Stubborn(io.StringIO):
    def close(self):
        raise OSError("no")
if __name__ != "__main__":
    sys.stdin = Stubborn("input")
def f():
    return sys.stdin.read()
"""


def run(tmp_path, fn: Any, *args: object, method: str = "spawn") -> Any:
    """Return the result of one rank."""
    gang = Supervisor.start(
        name="late",
        entrypoint=fn,
        args={0: args},
        start_method=method,
        logs_specs=DefaultLogsSpecs(str(tmp_path)),
    )
    gang.ask(Start())
    result = gang.ask(Wait(timeout=PATIENCE_S))
    gang.stop()
    return result


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        pytest.param(NOTHING, "value: []", id="nothing_is_imported_for_a_function_that_needs_nothing"),
        pytest.param(LOGGING, "value: (True, 'Rank-0')", id="where_it_logs_there_is_one_logging"),
        pytest.param(CLASSES, "value: ['x']", id="a_main_module_that_imports_it_is_found_by_its_classes"),
        pytest.param(FINDING, "value: ('Rank-0', 'spawn')", id="to_look_whether_it_is_there_is_no_import"),
        pytest.param(FAILING, "value: ('Rank-0', 'spawn')", id="an_import_that_failed_is_none"),
        pytest.param(OLD_FINDER, "value: Rank-0", id="finders_of_old_are_passed_over"),
        pytest.param(AT_EXIT, "\n".join([*ENDS, "value: None"]), id="exit_functions_are_called_in_the_same_order"),
        pytest.param(STDIN, "value: ", id="a_stdin_that_cannot_be_closed_is_replaced"),
    ],
)
def test_a_program_sees_no_difference(tmp_path, program, printed):
    """Its main module is imported by the worker."""
    path = tmp_path / "program.py"
    path.write_text(program + MAIN, encoding="utf-8")
    done = subprocess.run([sys.executable, str(path)], check=True, stdout=-1, text=True, timeout=PATIENCE_S)
    assert done.stdout == f"{printed}\n"


def surroundings(*_given: object) -> dict[str, Any]:
    """Return what multiprocessing says of this process."""
    import multiprocessing
    from multiprocessing import process, resource_tracker

    me, parent = multiprocessing.current_process(), multiprocessing.parent_process()
    assert parent is not None
    child = multiprocessing.get_context("fork").Process(target=os._exit, args=(7,))
    child.start()
    child.join()
    return {
        "name": me.name,
        "pid": me.pid == os.getpid(),
        "daemon": me.daemon,
        "identity": len(me._identity),
        "key": bytes(me.authkey),
        "method": multiprocessing.get_start_method(),
        "parent": (parent.name, parent.pid == os.getppid(), parent.is_alive()),
        "children": (child.exitcode, multiprocessing.active_children()),
        "directory": process.ORIGINAL_DIR,
        "tracker": resource_tracker._resource_tracker._fd is not None,
        "inheriting": getattr(me, "_inheriting", False),
    }


def test_imported_by_the_function_it_is_as_in_a_child_of_its_own(tmp_path):
    """Compared with a worker into which it came with an argument, before the call."""
    import multiprocessing

    late = run(tmp_path, surroundings).return_values[0]
    early = run(tmp_path, surroundings, multiprocessing.get_context("spawn").Lock()).return_values[0]
    assert late == early
    assert late["name"] == "Rank-0"
    assert late["key"] == bytes(multiprocessing.current_process().authkey)
    assert late["parent"] == ("MainProcess", True, True)
    assert late["children"] == (7, [])
    assert late["tracker"]


def first_from_a_thread() -> tuple[str, str]:
    """Import it in two threads at once."""
    names: list[str] = []

    def look() -> None:
        import multiprocessing

        names.append(multiprocessing.current_process().name)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return names[0], names[1]


def test_whichever_thread_imports_it_first(tmp_path):
    """It is set up before the import is over for anybody."""
    assert run(tmp_path, first_from_a_thread).return_values[0] == ("Rank-0", "Rank-0")


def record_of_logging() -> str | None:
    """Return the name of the process in a record."""
    import logging

    return logging.LogRecord("a", logging.INFO, "p", 1, "m", None, None).processName


def test_records_of_logging_name_the_rank(tmp_path):
    """Logging asks multiprocessing only where it is loaded."""
    assert run(tmp_path, record_of_logging).return_values[0] == "Rank-0"
    assert logging.LogRecord("a", logging.INFO, "p", 1, "m", None, None).processName == "MainProcess"


def leave_at_exit(path: str) -> None:
    """Leave things for the end of the process: a queue's feeder thread, a finalizer."""
    import multiprocessing
    from multiprocessing import util

    queue: Any = multiprocessing.Queue()
    queue.put("x" * 100_000)

    def written() -> None:
        Path(path).write_text("finalized", encoding="utf-8")

    util.Finalize(None, written, exitpriority=10)
    child = multiprocessing.get_context("fork").Process(target=queue.get)
    child.start()


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_what_it_does_at_the_end_of_a_process_is_done(tmp_path, method):
    """Finalizers run, and children are joined."""
    path = tmp_path / "told"
    assert not run(tmp_path / "logs", leave_at_exit, str(path), method=method).is_failed()
    assert path.read_text() == "finalized"


class Uncommon(BaseException):
    """Neither an exception nor an exit."""


def leave(how: str) -> None:
    """End in an uncommon way."""
    print("last words", end="")
    if how == "text":
        sys.exit("gone")
    if how == "number":
        sys.exit(300)
    if how == "nothing":
        sys.exit()
    raise Uncommon(how)


@pytest.mark.parametrize("how", ["text", "number", "nothing", "else"])
def test_it_ends_as_a_child_of_multiprocessing_does(tmp_path, how):
    """Compared with a forked worker, whose end is multiprocessing's own: exit code, stdout and what is recorded."""
    found = []
    for method in ("spawn", "fork"):
        context = start_processes(
            name="ends",
            entrypoint=leave,
            args={0: (how,)},
            envs={0: {}},
            start_method=method,
            logs_specs=DefaultLogsSpecs(str(tmp_path / method), redirects=Std.ALL),
        )
        result = context.wait()
        context.close()
        failure = result.failures.get(0)
        message = failure and (failure.message["message"] if isinstance(failure.message, dict) else failure.message)
        found.append((result.ends[0].exitcode, Path(result.stdouts[0]).read_text(encoding="utf-8"), message))
    assert found[0] == found[1]
    assert found[0][0] == {"text": 1, "number": 300 & 0xFF, "nothing": 0, "else": 1}[how]
    assert found[0][1] == "last words"


def read_stdin() -> tuple[str, int]:
    """Return what Python and the kernel have for stdin."""
    return sys.stdin.read(), len(os.read(0, 1))


def test_stdin_is_empty(tmp_path):
    """Python's stream, and the descriptor."""
    assert run(tmp_path, read_stdin).return_values[0] == ("", 0)
