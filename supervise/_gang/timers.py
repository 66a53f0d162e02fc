"""The timers of a gang, by restart set and name."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from supervise._core.steps import TimerExpired

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise._core.steps import SetTimer
    from supervise._runtime.loop import Loop, Timer


class Timers:
    """The timers of a gang.

    The expiry of a timer is an event of the core, or calls a function. Used on the gang's loop.
    """

    def __init__(self, loop: Loop, expired: Callable[[TimerExpired], object]) -> None:
        """Begin without timers. `expired` is called on the loop."""
        self._loop = loop
        self._expired = expired
        self._timers: dict[tuple[int | None, str], Timer] = {}

    def set(self, action: SetTimer) -> None:
        """Set a timer as the core requests."""
        key = action.key, action.name
        earlier = self._timers.get(key)
        if earlier is not None and earlier.pending:
            if action.only_sooner and earlier.due_s <= time.monotonic() + action.delay_s:
                return
            earlier.cancel()
        expired = TimerExpired(name=action.name, key=action.key)
        self._timers[key] = self._loop.call_later(action.delay_s, partial(self._expire, expired))

    def _expire(self, expired: TimerExpired) -> None:
        if expired.key is not None:  # no other timer will have the key of this restart set
            self._timers.pop((expired.key, expired.name), None)
        self._expired(expired)

    def call_later(self, name: str, delay_s: float, act: Callable[[], object]) -> None:
        """Call `act` in `delay_s` seconds, unless the timer is canceled before. `act` must not raise."""
        self._timers[None, name] = self._loop.call_later(delay_s, act)

    def left_s(self, name: str) -> float | None:
        """Return the seconds until a timer of the gang expires; None if the timer was not set.

        The number is negative after the expiry.
        """
        timer = self._timers.get((None, name))
        return None if timer is None else timer.due_s - time.monotonic()

    def cancel(self, *names: str) -> None:
        """Cancel and forget timers of the gang."""
        for name in names:
            if (timer := self._timers.pop((None, name), None)) is not None:
                timer.cancel()

    def end(self) -> None:
        """Cancel every timer and drop the callback."""
        for timer in self._timers.values():
            timer.cancel()
        self._expired = _nothing


def _nothing(_: TimerExpired) -> None:
    """Replace a callback that must not be called any more."""
