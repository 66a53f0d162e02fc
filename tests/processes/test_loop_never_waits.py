"""No handler of a gang waits on the loop: not for a process, a thread, a descriptor or a moment."""

import os
import select
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from supervise import SupervisorCrashed, Wait
from supervise._runtime.future import MUST_NOT_BLOCK
from tests.kernels import HAS_PIDFD
from tests.processes.gangs import faulty, launched
from tests.processes.hosts import watched
from tests.processes.test_containment import DEAF_FORKED, FORKED, containment

__all__ = ["containment"]


class Watchful:
    """A `select.poll` object that notes a wait on a loop."""

    def __init__(self, seen: list[str]) -> None:
        self._poll = POLL()
        self._seen = seen

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        if timeout != 0:
            note(self._seen, "poll")
        return self._poll.poll(timeout)

    def __getattr__(self, name: str) -> object:
        return getattr(self._poll, name)


POLL = select.poll


def note(seen: list[str], what: str) -> None:
    """Note a wait, unless another thread than a loop makes it, or a thread's own start."""
    if threading.get_ident() in MUST_NOT_BLOCK:
        callers, frame = [], sys._getframe(2)
        while frame is not None and len(callers) < 4:
            callers.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}")
            frame = frame.f_back
        if not callers[0].endswith(" start"):
            seen.append(f"{what}: {callers}")


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The waits that were made on a loop."""
    seen: list[str] = []

    def noting(owner, name, is_wait=lambda *_, **__: True):
        real = getattr(owner, name)

        def noted(*args, **kwargs):
            if is_wait(*args, **kwargs):
                note(seen, name)
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, noted)

    monkeypatch.setattr(select, "poll", lambda: Watchful(seen))
    noting(select, "select")
    noting(time, "sleep")
    noting(threading.Event, "wait")
    noting(threading.Thread, "join")
    noting(os, "waitpid", lambda _pid, options: not options & os.WNOHANG)
    noting(os, "waitid", lambda _kind, _pid, options: not options & os.WNOHANG)
    return seen


def pid_of(gang):
    [said] = gang.hear()
    return int(said.split()[1])


def test_a_crash_is_swept_up_without_a_wait(tmp_path, breaking, waits, containment):
    """The daemon ignores SIGTERM; it is dead before the crash is told."""
    with (
        faulty(tmp_path, "binary", [DEAF_FORKED + "\nsignal.pause()"], containment=containment) as gang,
        watched([pid_of(gang)]) as daemon,
    ):
        breaking.never("report of an exit")
        os.kill(gang.pids[0], 9)
        with pytest.raises(SupervisorCrashed):
            gang.ask(Wait())
        assert daemon.survivors(0) == set()
    assert waits == []


def test_a_close_is_swept_up_without_a_wait(tmp_path, monkeypatch, waits, containment):
    with (
        faulty(tmp_path, "binary", [FORKED + "\nsignal.pause()"], containment=containment) as gang,
        watched([pid_of(gang)]) as daemon,
    ):
        gang.close()
        assert daemon.survivors(0) == set()
    assert waits == []


def test_a_sweep_without_a_thread_ends_the_daemon_as_well(tmp_path, no_threads, containment):
    """A limit of threads is reached, or the interpreter is exiting: only then does the loop itself scan."""
    with (
        faulty(tmp_path, "binary", [FORKED + "\nsignal.pause()"], containment=containment) as gang,
        watched([pid_of(gang)]) as daemon,
    ):
        with no_threads():
            gang.close()
        assert daemon.survivors(0) == set()


@pytest.mark.skipif(not HAS_PIDFD, reason="without pidfds a thread holds it; see test_old_kernels.py")
def test_a_child_that_cannot_be_held_is_reaped_without_a_wait(tmp_path, scarce_pidfds, waits):
    could_not = "rank 0 could not be started"
    with launched(tmp_path, "sleep", {0: ("1000",)}) as gang, scarce_pidfds(), pytest.raises(OSError, match=could_not):
        gang.start()
    assert waits == []
