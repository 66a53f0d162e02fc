"""Wake-ups: for a thread that waits for a lock, and for a thread that polls descriptors."""

from __future__ import annotations

import fcntl
import os
import time
from _thread import TIMEOUT_MAX, allocate_lock
from typing import TYPE_CHECKING, Self

from supervise import _platform as platform

if TYPE_CHECKING:
    from types import TracebackType


def remaining(deadline: float | None) -> float | None:
    """Return the seconds (monotonic) until `deadline`, never negative; None if there is no deadline."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


class Bell:
    """A wake-up event for a single waiter. `ring` ends the present wait, or else the next one.

    A signal handler may call `ring`, or may raise during a wait: no lock stays locked by it. The implementation is a
    lock and not a `queue.SimpleQueue`, because `SimpleQueue.get` may ignore its timeout before Python 3.13. If the
    scheduler delays the thread by more than the timeout, the remaining time is negative, and `get` takes a negative
    time for no timeout.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        """Make an event that is not set."""
        self._lock = allocate_lock()
        self._lock.acquire()

    def __enter__(self) -> Self:
        """Return this event. There is nothing to prepare."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing, because there is nothing to restore."""

    def ring(self) -> None:
        """End the wait. Callable from any thread. Never blocks."""
        try:
            self._lock.release()
        except RuntimeError:  # it is set already
            return

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for `ring`; return False if `ring` was not called within `timeout_s`. One thread at a time may wait."""
        return self._lock.acquire(timeout=-1 if timeout_s is None else min(max(timeout_s, 0.0), TIMEOUT_MAX))


def _eventfd() -> int:
    return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)


class OwnedFd:
    """A descriptor that its object closes."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int = -1) -> None:
        """Take over a descriptor; -1 for none."""
        self._fd = fd

    def fileno(self) -> int:
        """Return the descriptor; -1 if there is none, or after `close`."""
        return self._fd

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class WakeFd(OwnedFd):
    """A descriptor that polls as readable from `set` to `clear`. No method blocks.

    The descriptor is an eventfd and not the end of a pipe. A forked child would keep a copy of the pipe's write end,
    which would delay EOF.
    """

    __slots__ = ()

    def __init__(self, same_as: WakeFd | None = None) -> None:
        """Make an event that is not set, or with `same_as` a duplicate of the descriptor of that event.

        The original and the duplicate are closed separately. The descriptor is above 2, because descriptors 0 to 2 are
        the streams of a worker.

        Raises:
            OSError: No descriptor is left, or the kernel refuses the system call.
        """
        made = platform.needed(_eventfd) if same_as is None else same_as.fileno()
        super().__init__(made)
        if same_as is not None or made <= 2:
            try:
                self._fd = fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, 3)
            finally:
                if same_as is None:
                    os.close(made)

    def set(self) -> None:
        """Make the descriptor readable. Callable from any thread. Has no effect after `close`."""
        try:
            os.eventfd_write(self._fd, 1)
        except (OSError, ValueError):  # the descriptor is closed (-1 is a ValueError), or the count is at its limit
            return

    def clear(self) -> None:
        """Make the descriptor unreadable until the next `set`."""
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:  # not set
            return
