"""The end of a gang whose Supervisor cannot go on: kill, reap, then answer."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise._process.exits.handle import Process
    from supervise._process.exits.slots import ExitSlots
    from supervise._runtime.loop import Loop

log = logging.getLogger("supervise")

_PATIENCE_S = 5.0
_AGAIN_S = 0.01


class CrashShutdown:
    """Kills every group and reaps every worker, on the loop, in bounded time.

    It trusts neither the actors nor what they watch, since one of them has just failed: it looks by
    itself, every ten milliseconds, until all is reaped.
    """

    def __init__(self, loop: Loop, slots: ExitSlots, done: Callable[[], object]) -> None:
        """Prepare; `done` is called once, when all is reaped or the time is up."""
        self._loop = loop
        self._slots = slots
        self._done = done
        self._deadline_s = time.monotonic() + _PATIENCE_S

    def begin(self) -> None:
        """Kill now; `done` is not called before this returns."""
        try:
            self._slots.kill_all()
        finally:
            self._loop.call_later(0, self._look)

    def _look(self) -> None:
        self._slots.kill_all()  # again: a launch that was under way may have started one since
        processes = self._slots.processes
        for rank, process in list(processes.items()):
            if self._gone(process):
                self._loop.unwatch(process.fileno())
                process.close()
                processes.pop(rank, None)
        if processes and time.monotonic() < self._deadline_s:
            self._loop.call_later(_AGAIN_S, self._look)
        else:
            self._done()

    @staticmethod
    def _gone(process: Process) -> bool:
        try:
            return process.fileno() < 0 or process.reap() is not None
        except Exception:
            log.exception("pid %d cannot be reaped", process.pid)
            return True
