"""When to look whether ranks are stopped, of which the kernel tells a library nothing.

A stopped process makes no descriptor ready, and only a handler of SIGCHLD would be told; that handler is the
application's. So somebody who asks for the status has them looked for, and otherwise the looks grow apart:
half a minute after the start, then each time after twice as long.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise._runtime.loop import Loop, Timer

_FIRST_S = 30.0
_LEAST_S = 0.2
"""Between two looks, however often somebody asks."""


class SuspendPoll:
    """Decides when to look. Used on the gang's loop."""

    def __init__(self, loop: Loop, look: Callable[[], object]) -> None:
        """Prepare; `look` must not raise."""
        self._loop = loop
        self._look = look
        self._next_s = _FIRST_S
        self._seldom: Timer | None = None
        self._soon: Timer | None = None
        self._last_s = -_LEAST_S

    def begin(self) -> None:
        """All ranks run. A look that somebody asked for during the start still comes."""
        if self._seldom is not None:
            self._seldom.cancel()
        self._next_s = _FIRST_S
        self._seldom = self._loop.call_later(self._next_s, self._look_seldom)

    def look(self) -> None:
        """Somebody wants to know: look now, or soon if that was done just now."""
        if self._soon is None or not self._soon.pending:
            wait_s = self._last_s + _LEAST_S - time.monotonic()
            self._soon = self._loop.call_later(max(0.0, wait_s), self._look_now)

    def end(self) -> None:
        """There is nobody left: let go of the actor whose method looks."""
        self._cancel()
        self._look = _nothing

    def _look_now(self) -> None:
        self._last_s = time.monotonic()
        self._look()

    def _look_seldom(self) -> None:
        self._look_now()
        self._next_s *= 2
        self._seldom = self._loop.call_later(self._next_s, self._look_seldom)

    def _cancel(self) -> None:
        for timer in (self._seldom, self._soon):
            if timer is not None:
                timer.cancel()


def _nothing() -> None:
    """Nobody is left who could be stopped."""
