"""Wake-ups for a thread that waits for a lock and for a thread that polls descriptors."""

from __future__ import annotations

import fcntl
import os
import time
from _thread import TIMEOUT_MAX, allocate_lock
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


def remaining(deadline: float | None) -> float | None:
    """Return the seconds (monotonic) until `deadline`, never negative; None if there is no deadline."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


class Bell:
    """A wake-up event for a single waiter: `ring` ends the wait, or the next one.

    A signal handler may call `ring`, or raise in a wait; no lock stays owned. The implementation is a lock and not a
    `queue.SimpleQueue`, because before Python 3.13 `SimpleQueue.get` may ignore its timeout: if the scheduler delays
    the thread by more than the timeout, the remaining time is negative, which `get` takes for no timeout.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        """Make an event that is not set."""
        self._lock = allocate_lock()
        self._lock.acquire()

    def __enter__(self) -> Self:
        """Return itself; there is nothing to prepare."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing; there is nothing to restore."""

    def ring(self) -> None:
        """End the wait. Callable from any thread; never blocks."""
        try:
            self._lock.release()
        except RuntimeError:  # it is set already
            return

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for `ring`; return False if `timeout_s` passed before. One thread at a time may wait."""
        return self._lock.acquire(timeout=-1 if timeout_s is None else min(max(timeout_s, 0.0), TIMEOUT_MAX))


class WakeFd:
    """A descriptor that polls as readable from `set` to `clear`. No method blocks.

    It is an eventfd and not a pipe: a forked child keeps a copy of a pipe's write end, which would delay EOF.
    """

    __slots__ = ("_fd",)

    def __init__(self, same_as: WakeFd | None = None) -> None:
        """Make an event that is not set, or a duplicate of the descriptor of `same_as`; each is closed separately.

        The descriptor is above 2, because 0 to 2 are the streams of a worker.

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
        """Make the descriptor readable. Callable from any thread; has no effect after `close`."""
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
