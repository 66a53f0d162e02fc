"""A number that was a rank's and is a stranger's now: the stranger lives, on every kernel."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from supervise import Signal
from tests.kernels import use_older_kernel
from tests.processes.gangs import faulty
from tests.processes.hosts import pids_of, watched
from tests.processes.stubborn import FOR_EVER, OBEDIENT

pytestmark = pytest.mark.own_pids

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
TRIES = 200
LEAVES_ONE = f"""
child = os.fork()
if child == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    {FOR_EVER.strip().replace(chr(10), chr(10) + "    ")}
say(f"ready {{os.getpid()}} {{child}}")
wait_for_word()
"""
"""Ends well, and leaves a process in its group that leaves none in turn."""


@pytest.fixture(params=["", "group", "pidfd"], ids=["as it is", "no group flag", "no pidfd"])
def kernel(request, monkeypatch):
    """Force the ways of older kernels."""
    use_older_kernel(monkeypatch, request.param)


@pytest.fixture
def stranger_of():
    """Give a function that starts an unrelated program which has a given number and leads its own group."""
    started = []

    def start(pid):
        for _ in range(TRIES):  # others start processes, too
            try:
                LAST_PID.write_text(str(pid - 1))
            except OSError as error:
                pytest.skip(f"{LAST_PID} cannot be written, so a number cannot be used again: {error}")
            child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
            if child.pid == pid:
                started.append(child)
                return child
            child.kill()
            child.wait()
        pytest.skip(f"the number {pid} was not to be had in {TRIES} tries")

    yield start
    for child in started:
        child.kill()
        child.wait()


@pytest.mark.parametrize("kind", ["binary", "forkserver"])
def test_s7_who_has_the_number_of_a_reaped_rank_is_not_signalled(tmp_path, kernel, stranger_of, kind):
    """Neither by a signal to all ranks, nor by a close."""
    with faulty(tmp_path, kind, ["", OBEDIENT], grace=0.2) as gang:
        gang.hear()
        gang.await_event("supervise.process.exited", local_rank=0)
        stranger = stranger_of(gang.pids[0])
        gang.ask(Signal(sig=signal.SIGTERM))
        gang.close(death_sig=signal.SIGKILL)
        with watched([stranger.pid]) as watch:
            assert watch.survivors(0) == {stranger.pid}


@pytest.mark.parametrize("kind", ["binary", "forkserver"])
def test_s7_who_has_the_number_of_an_emptied_group_is_not_signalled(tmp_path, kernel, stranger_of, kind):
    """The rank left a process behind, which has ended since: the gang still had the group in mind."""
    with faulty(tmp_path, kind, [LEAVES_ONE, OBEDIENT], grace=0.2) as gang:
        left = next(pid for pid in pids_of(gang.hear(2)) if pid not in gang.pids.values())
        gang.tell(0)
        gang.await_event("supervise.process.exited", local_rank=0)
        os.kill(left, signal.SIGKILL)
        os.waitpid(left, 0)  # an orphan, and so our child (see conftest); a zombie would keep the number
        stranger = stranger_of(gang.pids[0])
        gang.close(death_sig=signal.SIGKILL)
        with watched([stranger.pid]) as watch:
            assert watch.survivors(0) == {stranger.pid}
