"""What a join returns, whom it stops, and what it raises: as in torch.multiprocessing."""

import os
import signal
import threading
from contextlib import suppress
from multiprocessing import connection

import psutil
import pytest

from supervise import multiprocessing as mp
from tests.multiprocessing import work
from tests.patience import PATIENCE_S
from tests.processes.gangs import Stopwatch

METHODS = ("spawn", "fork", "forkserver")
each_method = pytest.mark.parametrize("method", METHODS)


def finish(context, **how):
    """Join until all have ended."""
    while not context.join(**how):
        pass


def sources(*of_ranks):
    """Return the arguments of `work.run`."""
    return (dict(enumerate(of_ranks)),)


@each_method
def test_every_process_is_called_with_its_index_and_the_arguments(method, ear):
    assert mp.start_processes(work.tell_all, (ear.path, "a", 2), 2, start_method=method) is None
    told = sorted(ear.hear() for _ in range(2))
    kind = {"spawn": "Spawn", "fork": "Fork", "forkserver": "ForkServer"}[method]
    for index, line in enumerate(told):
        assert line.startswith(f"{index} ('a', 2) {kind}Process-")
        assert line.endswith(f" False {os.getpid()}")


@each_method
def test_what_a_function_returns_is_ignored(method):
    mp.start_processes(work.return_lambda, nprocs=2, start_method=method)


@each_method
@pytest.mark.parametrize("source", ["os._exit(0)", "sys.exit()", "sys.exit(0)"])
def test_exit_code_0_is_success_without_a_return(method, source):
    mp.start_processes(work.run, sources(source), start_method=method)


@each_method
def test_an_exception_is_raised_with_its_traceback(method):
    with pytest.raises(mp.ProcessRaisedException) as caught:
        mp.start_processes(work.run, sources("block()", "1 / 0", "block()"), 3, start_method=method)
    error = caught.value
    start = "\n\n-- Process 1 terminated with the following error:\nTraceback (most recent call last):\n"
    assert str(error).startswith(start)
    assert str(error).endswith("ZeroDivisionError: division by zero\n")
    assert (error.msg, error.error_index, error.pid) == (str(error), 1, error.error_pid)
    assert not psutil.pid_exists(error.error_pid)


@each_method
@pytest.mark.parametrize(
    ("source", "code", "name", "text"),
    [
        ("sys.exit(3)", 3, None, "exit code 3"),
        ("sys.exit('a text')", 1, None, "exit code 1"),
        ("os._exit(138)", 138, None, "exit code 138"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, "SIGKILL", "signal SIGKILL"),
        ("os.kill(os.getpid(), 40)", -40, "<Unknown signal 40>", "signal <Unknown signal 40>"),
        ("raise KeyboardInterrupt", 130, None, "exit code 130"),
        ("raise GeneratorExit", 1, None, "exit code 1"),
    ],
)
def test_an_exit_is_raised_with_its_code(method, source, code, name, text):
    with pytest.raises(mp.ProcessExitedException) as caught:
        mp.start_processes(work.run, sources(source), start_method=method)
    error = caught.value
    assert str(error) == f"process 0 terminated with {text}"
    assert (error.exit_code, error.signal_name, error.error_index) == (code, name, 0)


@each_method
def test_an_exit_whose_code_is_truncated_to_0_is_not_a_success(method):
    """PyTorch takes it for one."""
    with pytest.raises(
        mp.ProcessRaisedException, match=r"SystemExit: sys\.exit\(256\): exit code 0 without a return value"
    ):
        mp.start_processes(work.run, sources("sys.exit(256)"), start_method=method)


@pytest.mark.parametrize(("code", "known"), [("7", 7), ("263", 7), ("2**70", 255), ("'text'", 1)])
def test_an_exit_counts_from_when_it_left_the_function(tmp_path, code, known):
    """Its process is still exiting when its peer raises, and the stop ends it: libraries take long to end."""
    left = str(tmp_path / "left")
    exits = f"import atexit; atexit.register(lambda: (open({left!r}, 'w'), block())); sys.exit({code})"
    wait = f"[threading.Event().wait(0.01) for _ in iter(lambda: os.path.exists({left!r}), True)]"
    with pytest.raises(mp.ProcessExitedException, match=rf"^process 1 terminated with exit code {known}$") as caught:
        mp.spawn(work.run, sources(f"{wait}; raise ValueError('later')", exits), 2)
    assert (caught.value.error_index, caught.value.exit_code, caught.value.signal_name) == (1, known, None)


def test_a_segmentation_fault_is_named():
    fault = "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.kill(os.getpid(), signal.SIGSEGV)"
    with pytest.raises(mp.ProcessExitedException, match=r"^process 0 terminated with signal SIGSEGV$"):
        mp.spawn(work.run, sources(fault))


def test_join_tells_whether_all_have_ended(ear, gate):
    """A join returns at the end of any process, or of the time."""
    context = mp.spawn(work.run, sources(f"say({ear.path!r}, 'one')", f"hear({gate.path!r})"), 2, join=False)
    assert ear.hear() == "one"
    assert context.join() is False
    assert context.join(timeout=0) is False
    assert list(context.sentinels.values()) == [1]
    gate.tell()
    assert context.join(timeout=PATIENCE_S) is True
    assert context.join() is True
    assert (context.sentinels, [p.exitcode for p in context.processes]) == ({}, [0, 0])


def test_without_a_join_nobody_is_stopped(ear, gate):
    """The others of a failed process run to their own end, if that is what the caller waits for."""
    context = mp.spawn(work.run, sources("sys.exit(1)", f"hear({gate.path!r}); sys.exit(5)"), 2, join=False)
    context.processes[0].join(PATIENCE_S)
    assert context.processes[0].exitcode == 1
    assert context.processes[1].is_alive()
    gate.tell()
    context.processes[1].join(PATIENCE_S)
    assert context.processes[1].exitcode == 5
    with pytest.raises(mp.ProcessExitedException, match="process 0"):
        context.join()


def test_after_the_failure_a_join_returns_true():
    context = mp.spawn(work.run, sources("sys.exit(4)", "block()"), 2, join=False)
    with pytest.raises(mp.ProcessExitedException, match="process 0 terminated with exit code 4"):
        finish(context)
    assert context.join() is True
    assert [p.exitcode for p in context.processes] == [4, -15]


def test_the_others_get_their_grace_before_sigterm(ear, gate):
    """With a grace period they may end by themselves, in time."""
    politely = f"hear({gate.path!r}); say({ear.path!r}, 'by itself')"
    context = mp.spawn(work.run, sources("sys.exit(4)", politely), 2, join=False)
    connection.wait([context.processes[0].sentinel], PATIENCE_S)
    gate.tell()
    with pytest.raises(mp.ProcessExitedException, match="process 0"):
        finish(context, grace_period=30)
    assert (ear.hear(), context.processes[1].exitcode) == ("by itself", 0)


def test_times_without_measure_wait_as_long_as_it_takes(ear, gate):
    """Longer ones than the kernel can be asked for, where we wait for one process and where for any."""
    waits = f"hear({gate.path!r})"
    context = mp.spawn(work.run, sources("sys.exit(4)", waits), 2, join=False)
    telling = threading.Thread(target=_tell_later, args=(context, gate))
    telling.start()
    try:
        with pytest.raises(mp.ProcessExitedException, match="process 0") as raised:
            finish(context, timeout=1e300, grace_period=float("inf"))
        assert raised.value.exit_code == 4
        assert context.processes[1].exitcode == 0
    finally:
        for process in context.processes:
            process.kill()
            process.join(1e300)
        telling.join(PATIENCE_S)


def _tell_later(context, gate):
    connection.wait([context.processes[0].sentinel], PATIENCE_S)
    gate.tell()


def test_sigkill_follows_sigterm_after_a_further_grace_period(ear, gate):
    stubborn = f"signal.signal(signal.SIGTERM, signal.SIG_IGN); say({ear.path!r}, 'deaf'); block()"
    context = mp.spawn(work.run, sources(f"hear({gate.path!r}); sys.exit(4)", stubborn), 2, join=False)
    assert ear.hear() == "deaf"
    gate.tell()
    with Stopwatch() as watch, pytest.raises(mp.ProcessExitedException, match="process 0"):
        finish(context, grace_period=0.2)
    assert context.processes[1].exitcode == -signal.SIGKILL
    assert 0.3 < watch.seconds < 15


@each_method
def test_the_first_to_fail_is_raised_even_if_it_dies_last(method, ear, gate):
    """Rank 1 has raised when rank 0 exits; it only takes longer to die."""
    slow = (
        "import multiprocessing.util\n"
        f"multiprocessing.util.Finalize(None, lambda: (say({ear.path!r}, 'raised'), block()), exitpriority=1)\n"
        "raise LookupError('the cause')"
    )
    codes = sources(f"hear({gate.path!r}); sys.exit(9)", slow)
    context = mp.start_processes(work.run, codes, 2, join=False, start_method=method)
    assert ear.hear() == "raised"
    gate.tell()
    with pytest.raises(mp.ProcessRaisedException, match="LookupError: the cause") as caught:
        finish(context)
    assert (caught.value.error_index, [p.exitcode for p in context.processes]) == (1, [9, -15])


@each_method
def test_d2_a_grandchild_that_holds_every_descriptor_delays_nothing(method, ear):
    with Stopwatch() as watch, pytest.raises(mp.ProcessExitedException, match="exit code 6"):
        mp.start_processes(work.leave_grandchild, (ear.path, 6), start_method=method)
    assert watch.seconds < PATIENCE_S / 2
    await_end(int(ear.hear()))


def await_end(pid):
    with suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(timeout=PATIENCE_S)


def test_what_a_rank_leaves_behind_is_ended(ear):
    mp.spawn(work.leave_grandchild, (ear.path, 0))
    await_end(int(ear.hear()))


def test_no_process_is_no_failure():
    context = mp.spawn(work.run, nprocs=0, join=False)
    assert (context.join(), context.pids()) == (True, [])
