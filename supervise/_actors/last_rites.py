"""The end of a gang whose Supervisor cannot go on: kill, reap, then answer."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise._process.handle import Process
    from supervise._process.roster import Roster
    from supervise._runtime.loop import Loop

_PATIENCE_S = 5.0
_AGAIN_S = 0.01


class LastRites:
    """Kills every group and reaps every worker without the actors, on the loop, in bounded time."""

    def __init__(self, loop: Loop, roster: Roster, done: Callable[[], object]) -> None:
        """Prepare; `done` is called once, when all is reaped or the time is up."""
        self._loop = loop
        self._roster = roster
        self._done: Callable[[], object] | None = done
        self._left: set[int] = set()

    def begin(self) -> None:
        """Kill now, and watch for the exits."""
        self._roster.kill_all()
        for rank, process in list(self._roster.processes.items()):
            self._loop.unwatch(process.fileno())
            self._loop.watch(process.fileno(), partial(self._dead, rank, process))
            self._left.add(rank)
        self._loop.call_later(_PATIENCE_S, self._finish)
        if not self._left:
            self._finish()

    def _dead(self, rank: int, process: Process) -> None:
        self._loop.unwatch(process.fileno())
        self._bury(rank, process, time.monotonic() + _PATIENCE_S)

    def _bury(self, rank: int, process: Process, deadline_s: float) -> None:
        """Reap; a forkserver's child or a traced one may take another look."""
        if process.reap() is None and time.monotonic() < deadline_s:
            self._loop.call_later(_AGAIN_S, partial(self._bury, rank, process, deadline_s))
            return
        process.close()
        self._roster.processes.pop(rank, None)
        self._left.discard(rank)
        if not self._left:
            self._finish()

    def _finish(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            done()
