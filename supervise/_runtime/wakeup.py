"""What one thread waits for, and any other rings."""

from __future__ import annotations

import time
from _thread import TIMEOUT_MAX, allocate_lock
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


def remaining(deadline: float | None) -> float | None:
    """Seconds (monotonic) until `deadline`, never negative; None stays None."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


class Bell:
    """A ring ends a wait, or the next one. A signal handler may ring, or raise in a wait: nothing stays locked.

    A lock, since before Python 3.13 `queue.SimpleQueue.get` with a timeout may wait for ever: where its thread is
    held up for that long in its first steps, what is left of the timeout is negative, which it takes for none.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        """Make it, not rung."""
        self._lock = allocate_lock()
        self._lock.acquire()

    def __enter__(self) -> Self:
        """Nothing is to be prepared."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is to be put back."""

    def ring(self) -> None:
        """End the wait. From any thread; never blocks."""
        try:
            self._lock.release()
        except RuntimeError:  # it was rung already
            return

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until it is rung and return True; False after `timeout_s`. By one thread at a time."""
        return self._lock.acquire(timeout=-1 if timeout_s is None else min(max(timeout_s, 0.0), TIMEOUT_MAX))
