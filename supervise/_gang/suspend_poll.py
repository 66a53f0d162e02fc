"""The schedule of checks for suspended ranks. The kernel does not report a suspension to a library.

A suspension makes no descriptor readable. It only raises SIGCHLD, whose handler belongs to the application. So
supervise checks when a caller asks for the status. Without such a request, it checks half a minute after the start, and
then at intervals that double.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise._runtime.loop import Loop, Timer

_FIRST_S = 30.0
_LEAST_S = 0.2
"""Minimum time between two checks."""


class SuspendPoll:
    """Schedule that calls a function for each check. Used on the gang's loop."""

    def __init__(self, loop: Loop, look: Callable[[], object]) -> None:
        """Prepare a schedule. `look` makes a check, and must not raise."""
        self._loop = loop
        self._look = look
        self._next_s = _FIRST_S
        self._seldom: Timer | None = None
        self._soon: Timer | None = None
        self._last_s = -_LEAST_S

    def begin(self) -> None:
        """Begin the regular checks once all ranks run. A check that was requested before still happens."""
        if self._seldom is not None:
            self._seldom.cancel()
        self._next_s = _FIRST_S
        self._seldom = self._loop.call_later(self._next_s, self._look_seldom)

    def look(self) -> None:
        """Check now, or as soon as the minimum time since the last check has passed."""
        if self._soon is None or not self._soon.pending:
            wait_s = self._last_s + _LEAST_S - time.monotonic()
            self._soon = self._loop.call_later(max(0.0, wait_s), self._look_now)

    def end(self) -> None:
        """Stop the checks and drop the reference to `look`."""
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
    """Replace a callback that must not be called any more."""
