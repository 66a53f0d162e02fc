"""The shutdown of a gang after a crash of one of its handlers: kill, reap, then report."""

from __future__ import annotations

import logging
import signal
import time
from typing import TYPE_CHECKING

from supervise._gang.sweep import Sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from supervise._core import steps
    from supervise._process.containment.escapees import Contained
    from supervise._process.exits.leader import Process
    from supervise._process.exits.slots import ExitSlots
    from supervise._runtime.loop import Loop

log = logging.getLogger("supervise")

_DEADLINE_S = 5.0
"""Deadline for the ranks.

Without a loop, escaped processes have as long again after that. On the loop, the sweep has a deadline of its own.
"""
_SWEEP_S = 2 * _DEADLINE_S
"""Deadline for the sweep. After it, the shutdown ends without the sweep."""
_AGAIN_S = 0.01


class CrashShutdown:
    """Shutdown on the loop: it kills every group, reaps every rank, then kills escaped processes, all in bounded time.

    One of the actors has just failed. So the shutdown relies neither on the actors nor on the descriptors that they
    watch. Instead, it tries to reap each rank every ten milliseconds, until all are reaped.
    """

    def __init__(
        self, loop: Loop, slots: ExitSlots, contained: Iterable[Contained], done: Callable[[], object]
    ) -> None:
        """Prepare a shutdown.

        Args:
            loop: The gang's loop.
            slots: The gang's processes.
            contained: The containment of the roles.
            done: Function that is called once, when all processes have ended or a deadline has expired.
        """
        self._loop = loop
        self._slots = slots
        self._contained = [each for each in contained if each.ends]
        self._sweeping = len(self._contained)
        self._done: Callable[[], object] | None = done
        self._deadline_s = time.monotonic() + _DEADLINE_S

    def begin(self) -> None:
        """Send SIGKILL now. `done` is not called before this method returns."""
        try:
            self._slots.kill_all()
        finally:
            self._loop.call_later(0, self._reap)

    def _reap(self) -> None:
        self._slots.kill_all()  # once more, as a pending launch may have started a process in between
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
        if not self._contained:
            self._finish()
            return
        self._loop.call_later(_SWEEP_S, self._finish)  # even if a sweep hangs
        for contained in self._contained:
            Sweep(self._loop, contained, end=True, timeout_s=0, skip=(), done=self._swept).begin()

    def _swept(self, _: steps.Swept) -> None:
        self._sweeping -= 1
        if not self._sweeping:
            self._finish()

    def _finish(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            for contained in self._contained:
                contained.close()
            done()

    @staticmethod
    def _gone(process: Process) -> bool:
        try:
            return process.fileno() < 0 or process.reap() is not None
        except Exception:
            log.exception("pid %d cannot be reaped", process.pid)
            return True


def shut_down_without_loop(slots: ExitSlots, contained: Iterable[Contained]) -> None:
    """Shut down on the thread of a failed loop.

    Block until all processes have ended, or until a deadline has expired.
    """
    slots.bury(_DEADLINE_S)
    left = ended = [each for each in contained if each.ends]
    for each in ended:
        each.kill()
    deadline_s = time.monotonic() + _DEADLINE_S
    while left and time.monotonic() < deadline_s:
        left = [each for each in left if _kill_escaped(each)]
    for each in ended:
        each.close()


def _kill_escaped(contained: Contained) -> bool:
    """Kill escaped processes; return whether there may be more."""
    found, in_motion = contained.find(killing=True)
    for escaped in found:
        escaped.send(signal.SIGKILL)
        escaped.close()
    return in_motion or bool(found)
