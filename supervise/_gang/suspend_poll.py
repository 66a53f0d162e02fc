"""When to look for suspended ranks: the kernel does not report them to a library.

A process that is suspended makes no descriptor ready, and only a handler of SIGCHLD would be called; that handler
belongs to the application. So ranks are looked at when the status is asked, and otherwise in growing intervals: half a
minute after the start, then each time after twice as long.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise._runtime.loop import Loop, Timer

_FIRST_S = 30.0
_LEAST_S = 0.2
"""The least time between two looks, however often the status is asked."""


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
        """All ranks run: begin the regular looks. A look that was asked during the start still happens."""
        if self._seldom is not None:
            self._seldom.cancel()
        self._next_s = _FIRST_S
        self._seldom = self._loop.call_later(self._next_s, self._look_seldom)

    def look(self) -> None:
        """Look now, or soon if the last look was just now."""
        if self._soon is None or not self._soon.pending:
            wait_s = self._last_s + _LEAST_S - time.monotonic()
            self._soon = self._loop.call_later(max(0.0, wait_s), self._look_now)

    def end(self) -> None:
        """Stop looking, and let go of the object whose method looks."""
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
    """Stand in for what must not be called any more."""
