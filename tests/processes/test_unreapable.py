"""A rank that even SIGKILL does not end in time is given up, by name; the gang goes on without it."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial

import psutil
import pytest

from supervise import Close, Status, UnkillableError
from tests.breaking import expire
from tests.patience import PATIENCE_S
from tests.processes.gangs import Stopwatch, each_kind, faulty
from tests.processes.stubborn import DEAF, LEAVES_CHILD, OBEDIENT

TRACER = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
seize = 0x4206
if libc.ptrace(ctypes.c_long(seize), ctypes.c_long(int(sys.argv[1])), None, None) != 0:
    print("cannot trace:", os.strerror(ctypes.get_errno()), flush=True)
else:
    print("traced", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
"""


@contextmanager
def traced(pid):
    """Have the process traced by one that is stopped: the kernel lets nobody reap it meanwhile."""
    with subprocess.Popen([sys.executable, "-c", TRACER, str(pid)], stdout=subprocess.PIPE, text=True) as tracer:
        try:
            said = tracer.stdout.readline().strip()
            if said != "traced":
                pytest.skip(said)
            os.waitid(os.P_PID, tracer.pid, os.WSTOPPED | os.WNOWAIT)
            yield
        finally:
            tracer.kill()


@each_kind
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_d4_a_rank_that_cannot_be_reaped_is_named_and_given_up(tmp_path, kind):
    """Close answers by its deadline with rank, pid and kernel state; there is one event, and the loop goes on."""
    with faulty(tmp_path, kind, [OBEDIENT] * 2, grace=4.0) as gang:
        gang.hear(2)
        pid = gang.pids[1]
        with traced(pid), Stopwatch() as watch:
            reply = gang.supervisor.ask(Close(), block=False)
            gang.await_event("supervise.process.signaled", local_rank=1, signal="SIGTERM")
            status = gang.ask(Status())
            assert (status.phase, 1 in status.running) == ("stopping", True)
            with pytest.raises(UnkillableError) as caught:
                reply.get(timeout=PATIENCE_S)
            assert gang.ask(Status()).phase == "finished"
        assert 8 < watch.seconds < 40
        assert caught.value.pids == {1: pid}
        assert all(word in str(caught.value) for word in ("rank 1", str(pid), caught.value.states[1]))
        stuck = gang.await_event("supervise.process.unkillable", local_rank=1)
        assert (stuck["pid"], stuck["state"]) == (pid, caught.value.states[1])
        result = gang.wait()
        assert (result.outcome, result.ends[1].role, result.ends[0].exitcode) == (
            "stopped",
            "unkillable",
            -signal.SIGTERM,
        )
        assert "outlived SIGKILL" in result.failures[1].message
        gang.await_event("supervise.process.exited", local_rank=1)  # its tracer is dead, so it could be reaped
        while not gang._events.empty():
            assert gang._events.get()["event"] != "supervise.process.unkillable"


def living(pgid):
    """Return the processes of a group that have not ended."""
    found = []
    for process in psutil.process_iter():
        with suppress(OSError, psutil.NoSuchProcess):
            if os.getpgid(process.pid) == pgid and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def with_late_deadline(breaking, pid, kind):
    """Have the loop stand still after a SIGKILL until the group is dead, and then see the deadline first."""

    def is_over():
        return not living(pid) and (kind != "forkserver" or not psutil.pid_exists(pid))  # whose server reaps

    def late(runner):
        deadline_s, pause = time.monotonic() + 0.3, threading.Event()
        while not is_over() and time.monotonic() < deadline_s:
            pause.wait(0.005)
        if is_over():
            expire(runner, "kill")
        else:  # a process that the kernel blocks is spared for a moment, and then killed by the loop
            runner._loop.call_later(0.01, partial(late, runner))

    def set_late(set_timer, runner, action):
        if action.name == "kill":
            # Behind the orders of the signal, and behind the search for members that these orders plan
            runner._loop.post(runner._loop.call_later, 0, partial(late, runner))
        else:
            set_timer(runner, action)

    breaking.instead("timer", set_late)


@each_kind
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("source", [DEAF, LEAVES_CHILD], ids=["leader", "member"])
def test_d4_a_loop_that_could_not_run_before_the_deadline_gives_nobody_up(breaking, tmp_path, kind, source):
    """The machine was suspended, or a file system did not answer: the dead are not taken for survivors."""
    with faulty(tmp_path, kind, [source], grace=0.2) as gang:
        gang.hear()
        pid = gang.pids[0]
        if source == LEAVES_CHILD:
            gang.tell(0)
            gang.wait()
        with_late_deadline(breaking, pid, kind)
        gang.close(death_sig=signal.SIGKILL)
        result = gang.wait()
    assert result.ends[0].exitcode == (0 if source == LEAVES_CHILD else -signal.SIGKILL)
