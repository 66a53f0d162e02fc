"""The shutdown of a gang whose Supervisor has crashed: kill, reap, then report."""

from __future__ import annotations

import logging
import signal
import time
from typing import TYPE_CHECKING

from supervise._gang.escapees import Sweep

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise._process.containment.escapees import Contained
    from supervise._process.exits.handle import Process
    from supervise._process.exits.slots import ExitSlots
    from supervise._runtime.loop import Loop

log = logging.getLogger("supervise")

_DEADLINE_S = 5.0
"""How long the shutdown waits for the ranks, and again for what has left their groups."""
_SWEEP_S = 2 * _DEADLINE_S
"""After this time, the shutdown ends although the sweep has not."""
_AGAIN_S = 0.01


class CrashShutdown:
    """Kills every group, reaps every rank, then kills what has left the groups; on the loop, in bounded time.

    It relies neither on the actors nor on the descriptors that they watch, because one of the actors has just
    failed: every ten milliseconds it tries to reap each rank, until all are reaped.
    """

    def __init__(self, loop: Loop, slots: ExitSlots, contained: Contained | None, done: Callable[[], object]) -> None:
        """Prepare.

        Args:
            loop: The gang's.
            slots: Its processes.
            contained: Its containment; None where nothing can have left the groups.
            done: Called once, when nothing is left or the time is up.
        """
        self._loop = loop
        self._slots = slots
        self._contained = contained if contained is not None and contained.ends else None
        self._done: Callable[[], object] | None = done
        self._deadline_s = time.monotonic() + _DEADLINE_S

    def begin(self) -> None:
        """Kill now; `done` is not called before this returns."""
        try:
            self._slots.kill_all()
        finally:
            self._loop.call_later(0, self._reap)

    def _reap(self) -> None:
        self._slots.kill_all()  # again: a launch that was under way may have started a process since
        processes = self._slots.processes
        for rank, process in list(processes.items()):
            if self._gone(process):
                self._loop.unwatch(process.fileno())
                process.close()
                processes.pop(rank, None)
        if processes and time.monotonic() < self._deadline_s:
            self._loop.call_later(_AGAIN_S, self._reap)
        else:
            self._sweep()

    def _sweep(self) -> None:
        if self._contained is None:
            self._finish()
            return
        self._loop.call_later(_SWEEP_S, self._finish)  # whatever is wrong with the sweep
        sweep = Sweep(self._loop, self._contained, end=True, timeout_s=0, skip=(), done=lambda _: self._finish())
        sweep.begin()

    def _finish(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            if self._contained is not None:
                self._contained.close()
            done()

    @staticmethod
    def _gone(process: Process) -> bool:
        try:
            return process.fileno() < 0 or process.reap() is not None
        except Exception:
            log.exception("pid %d cannot be reaped", process.pid)
            return True


def shut_down_without_loop(slots: ExitSlots, contained: Contained | None) -> None:
    """Do the same in the thread of a loop that has failed. Blocks: that thread has nothing else to do."""
    slots.bury(_DEADLINE_S)
    if contained is None or not contained.ends:
        return
    contained.kill()
    deadline_s = time.monotonic() + _DEADLINE_S
    in_motion = True
    while in_motion and time.monotonic() < deadline_s:
        found, in_motion = contained.find(killing=True)
        in_motion = in_motion or bool(found)
        for escaped in found:
            escaped.send(signal.SIGKILL)
            escaped.close()
    contained.close()
