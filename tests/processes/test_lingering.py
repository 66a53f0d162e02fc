"""Ranks whose functions have returned, and whose processes do not exit: who says so, and what the result has."""

import subprocess
import sys
import threading

import pytest

from supervise import Status
from supervise._process.launch import lingering
from tests.patience import PATIENCE_S
from tests.processes.gangs import each_function, faulty
from tests.processes.hosts import ROOT

THREAD = """
import threading
def upload():
    threading.Event().wait()
threading.Thread(target=upload, name="uploader").start()
say("returns")
value = {"loss": 0.5}
"""
FEEDER = """
import multiprocessing
queue = multiprocessing.Queue()
queue.put(bytes(1 << 20))
say("returns")
value = {"loss": 0.5}
"""
EXIT_FUNCTION = """
import atexit
def flush():
    signal.pause()
atexit.register(flush)
say("returns")
value = {"loss": 0.5}
"""
LINGERS = {
    "thread": (THREAD, "thread uploader: ", "called by upload (<string>:"),
    "feeder": (FEEDER, "thread QueueFeederThread: ", "thread MainThread: "),
    "exit_function": (EXIT_FUNCTION, "thread MainThread: flush (<string>:", ""),
}


def await_returned(gang, rank):
    """Return the status of a rank once its process has reported that it does not exit."""
    pause = threading.Event()
    while (row := gang.ask(Status()).ranks[rank]).state != "returned" or row.status is None:
        pause.wait(0.05)  # so that the test leaves the processor to the rank
        assert row.state in ("ready", "returned")
    return row


def await_text(path, text):
    """Return once a file has this text."""
    pause = threading.Event()
    while text not in path.read_text():
        pause.wait(0.05)


@each_function
@pytest.mark.parametrize("how", list(LINGERS))
def test_s14_a_rank_that_has_returned_and_does_not_exit_says_what_keeps_it(tmp_path, kind, how):
    """On its stderr, in its status and in its failure; its value arrives."""
    if how == "exit_function" and kind != "spawn" and sys.version_info < (3, 13):
        pytest.skip("a forked process of multiprocessing calls no exit functions")
    source, thread, call = LINGERS[how]
    with faulty(tmp_path, kind, [source, "value = 7"]) as (gang):
        gang.hear()
        row = await_returned(gang, 0)
        assert thread in row.status
        assert call in row.status
        assert "_bootstrap_inner" not in row.status
        assert "called by live" not in row.status
        warning = f"supervise: rank 0: its function returned {lingering._AFTER_S:g} s ago, but its process runs on: "
        (stderr,) = (tmp_path / "logs").glob("*/attempt_0/0/stderr.log")
        await_text(stderr, f"{warning}{row.status}\n")  # it is written after the report to the host
        result = gang.close(timeout=5.0)
    assert result.outcome == "stopped"
    assert result.return_values == {0: {"loss": 0.5}, 1: 7}
    message = result.failures[0].message
    assert message == f"its function had returned, but its process did not exit: {row.status}"
    assert f"{warning}{row.status}\n" in result.ends[0].stderr_tail + "\n"


@each_function
def test_the_values_that_have_arrived_are_kept_at_a_timeout(tmp_path, kind):
    """The rank whose function runs has none."""
    sources = ["value = 1", THREAD, "say('runs'); signal.pause()"]
    with faulty(tmp_path, kind, sources, timeout=15.0) as gang:
        result = gang.wait()
    assert result.outcome == "timed_out"
    assert result.return_values == {0: 1, 1: {"loss": 0.5}}
    assert result.failures[1].message.startswith("its function had returned, but its process did not exit: ")
    assert result.failures[2].message.startswith("Signal 15 (SIGTERM) received by PID ")


def test_the_report_of_a_timeout_names_the_thread(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import threading, supervise\n"
        "def upload():\n    threading.Event().wait()\n"
        "def work():\n    threading.Thread(target=upload, name='uploader').start()\n"
        "if __name__ == '__main__':\n    supervise.run(work, n=1, timeout=20.0).raise_if_failed()\n"
    )
    done = subprocess.run(
        [sys.executable, program],
        cwd=ROOT,
        env={"PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert "rank 0: its function had returned, but its process did not exit: thread uploader: " in done.stderr
    assert "called by upload (program.py:3)" in done.stderr
    assert "; stopped by SIGTERM (sent by supervise)" in done.stderr


@each_function
def test_a_rank_that_has_only_daemon_threads_exits_without_a_word(tmp_path, kind):
    daemon = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\nvalue = 3"
    with faulty(tmp_path, kind, [daemon]) as gang:
        result = gang.wait()
    assert (result.outcome, result.return_values, result.ends[0].stderr_tail) == ("succeeded", {0: 3}, "")
