"""Wake-ups: of a thread that waits for a lock, and of a thread that polls descriptors."""

from __future__ import annotations

import fcntl
import os
import time
from _thread import TIMEOUT_MAX, allocate_lock
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


def remaining(deadline: float | None) -> float | None:
    """Seconds (monotonic) until `deadline`, never negative; None stays None."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


class Bell:
    """A wake-up event for a single waiter: `ring` ends the wait, or the next one.

    A signal handler may ring, or raise in a wait: nothing stays locked. It is a lock, because before Python 3.13
    `queue.SimpleQueue.get` with a timeout may wait for ever: if its thread is held up for that long in its first
    steps, the rest of the timeout is negative, which `get` takes for no timeout.
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


class WakeFd:
    """A descriptor that polls as readable once a thread has called `set`, until `clear`. It never blocks.

    An eventfd, not the end of a pipe: a forked child holds a copy of a pipe's write end, so the end may never come.
    """

    __slots__ = ("_fd",)

    def __init__(self, same_as: WakeFd | None = None) -> None:
        """Make an event that is not set, or another descriptor of the event of `same_as`, to be closed by itself.

        The descriptor is above 2, because a worker's streams are put below.

        Raises:
            OSError: No descriptor is left.
        """
        made = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) if same_as is None else same_as.fileno()
        self._fd = made
        if same_as is not None or made <= 2:
            try:
                self._fd = fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, 3)
            finally:
                if same_as is None:
                    os.close(made)

    def fileno(self) -> int:
        """Return the descriptor, -1 after `close`."""
        return self._fd

    def set(self) -> None:
        """Make the descriptor readable. From any thread; harmless after `close`."""
        try:
            os.eventfd_write(self._fd, 1)
        except (OSError, ValueError):  # closed, or the largest count is reached; Python refuses -1 by ValueError
            return

    def clear(self) -> None:
        """Make the descriptor unreadable until the next `set`."""
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:  # not set
            return

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
