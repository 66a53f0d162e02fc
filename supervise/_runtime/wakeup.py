"""Wake-ups: for a thread that waits for a lock, for the main thread, and for a thread that polls descriptors."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from _thread import TIMEOUT_MAX, allocate_lock, get_ident
from threading import main_thread
from typing import TYPE_CHECKING, Any, Self, TypeVar

from supervise import _platform as platform
from supervise._runtime import fork_hooks
from supervise._runtime.descriptors import clear_of_stdio, stdio_taken

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType, TracebackType


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


class OwnedFd:
    """A descriptor that its object closes."""

    __slots__ = ("fd",)

    def __init__(self, fd: int = -1) -> None:
        """Take over a descriptor; -1 for none."""
        self.fd: int = fd

    def fileno(self) -> int:
        """Return the descriptor; -1 if there is none, or after `close`."""
        return self.fd

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        fd, self.fd = self.fd, -1
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
        flags = os.EFD_CLOEXEC | os.EFD_NONBLOCK
        made = platform.needed(lambda: os.eventfd(0, flags)) if same_as is None else os.dup(same_as.fileno())
        super().__init__(clear_of_stdio(made))

    def set(self) -> None:
        """Make the descriptor readable. Callable from any thread. Has no effect after `close`."""
        try:
            os.eventfd_write(self.fd, 1)
        except (OSError, ValueError):  # the descriptor is closed (-1 is a ValueError), or the count is at its limit
            return

    def clear(self) -> None:
        """Make the descriptor unreadable until the next `set`."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:  # not set
            return


# Main-thread wait. `ring` ends the wait from any thread, and every signal ends it
#
# Python runs signal handlers in the main thread, between two bytecode instructions. A signal that arrives just before a
# wait for a lock does not interrupt the wait. Its handler would run only after the wait, perhaps never. Therefore the
# main thread waits for a pipe, into which the interpreter writes the number of each signal (`signal.set_wakeup_fd`).


# Functions that a signal handler can recognize on the stack of the interrupted thread


F = TypeVar("F", bound="Callable[..., Any]")


class Marked:
    """A decorator that returns the function unchanged and remembers its code object."""

    def __init__(self) -> None:
        """Begin without a function."""
        self._codes: set[CodeType] = set()

    def __call__(self, function: F) -> F:
        """Mark a function; return it."""
        self._codes.add(function.__code__)
        return function

    def on_stack(self, frame: FrameType | None) -> bool:
        """Return whether `frame`, or a frame that called it, belongs to a marked function."""
        while frame is not None:
            if frame.f_code in self._codes:
                return True
            frame = frame.f_back
        return False


_MOST_S = 2_000_000.0
"""The longest timeout of `poll`, 23 days. A wait for a longer time ends after this time, as if `ring` was called."""
_MOST_IF_CLOSED_S = 1.0
"""The same once the application has closed the pipe: `ring` may use a number that another file has by then."""
_stays = True  # whether the application has never closed the pipe
_NO_DESCRIPTOR = -2
_displaced = -1
"""The descriptor to which the interpreter wrote signal numbers before this module set its own."""
_ends: tuple[int, int] | None = None
"""The pipe of the process. It is made at the first wait and never closed, because a thread may call `ring` late."""
_inode = 0
"""The number of the pipe's inode, which both ends have."""
waits = Marked()
"""Mark of the functions that wait with a `MainBell`.

If the stack has two of them, a signal handler has interrupted the wait of the older one.
"""


def bell_for_this_thread() -> Bell | MainBell:
    """Return a wake-up event on which only the calling thread may wait."""
    if get_ident() != main_thread().ident or not _have_pipe():
        return Bell()
    return MainBell()


class MainBell:
    """A `Bell` for one ``with`` block. Its wait ends also at a signal, or at a late `ring` for an earlier wait."""

    __slots__ = ("_ends", "_nested")

    def __enter__(self) -> Self:
        """Make the pipe the interpreter's descriptor for signals."""
        self._ends = _ends
        # Check the stack as well: an exception of a signal handler may have ended an earlier block without the restore
        self._nested = not _arm() and waits.on_stack(sys._getframe(1).f_back)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the interpreter's earlier descriptor for signals."""
        if self._ends is not _ends:  # this process was forked inside the block
            return
        if self._nested:  # in a signal handler, whose wait may have read a byte for the interrupted wait
            self.ring()
            return
        try:
            signal.set_wakeup_fd(_displaced, warn_on_full_buffer=False)
        except (OSError, ValueError):  # the owner of the descriptor has closed it without a reset
            signal.set_wakeup_fd(-1)
        _hand_on(_emptied())

    def ring(self) -> None:
        """End the wait. Callable from any thread. Never blocks."""
        if _ends is not None:
            _write(_ends[1], b"\0")

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for `ring` or a signal; return False if neither came within `timeout_s`."""
        if not _have_pipe():  # in a forked child without descriptors
            return False
        _arm()  # a signal handler may have changed the descriptor meanwhile
        poll = select.poll()
        poll.register(_both_ends()[0], select.POLLIN)
        most_s = _MOST_S if _stays else _MOST_IF_CLOSED_S
        if poll.poll((most_s if timeout_s is None else min(max(timeout_s, 0.0), most_s)) * 1000):
            _hand_on(_emptied())
            return True
        return timeout_s is None or timeout_s > most_s


def _arm() -> bool:
    """Make the pipe the interpreter's descriptor for signals; return False if it was so already."""
    global _displaced  # noqa: PLW0603 - a process has one descriptor for signals
    ours = _both_ends()[1]
    earlier = signal.set_wakeup_fd(ours, warn_on_full_buffer=False)
    if earlier == ours:
        return False
    _displaced = earlier
    return True


def _hand_on(rings: bytes) -> None:
    """Write the signal numbers to the earlier descriptor at once.

    The reader of that descriptor may have to act before the wait ends.
    """
    if _displaced >= 0 and (numbers := rings.replace(b"\0", b"")):
        _write(_displaced, numbers)


def _both_ends() -> tuple[int, int]:
    assert _ends is not None  # noqa: S101 - `bell_for_this_thread` has made the pipe
    return _ends


def _write(fd: int, rings: bytes) -> None:
    with contextlib.suppress(OSError):  # a full pipe is readable anyway, and the earlier descriptor may be closed
        os.write(fd, rings)


def _have_pipe() -> bool:
    global _ends, _inode, _stays  # noqa: PLW0603 - the process has one pipe
    if _ends is None or not _is_open(_ends):
        _stays = _stays and _ends is None
        try:
            if not _is_allowed():
                return False
            with stdio_taken():
                _ends = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            _inode = os.fstat(_ends[0]).st_ino
        except OSError:  # no descriptor is left: the wait does not end at signals
            return False
    return True


def _is_open(ends: tuple[int, int]) -> bool:
    """Return whether the application has not closed the pipe, as a daemon closes all descriptors.

    If it has, the numbers may be those of its own files now.
    """
    try:
        return os.fstat(ends[0]).st_ino == os.fstat(ends[1]).st_ino == _inode
    except OSError:
        return False


def _is_allowed() -> bool:
    """Return whether this thread may set the descriptor for signals. The main thread of a subinterpreter may not."""
    try:
        signal.set_wakeup_fd(_NO_DESCRIPTOR)
    except ValueError:
        return False
    except OSError:  # CPython checks the descriptor after the permission
        return True
    return True


def _emptied() -> bytes:
    try:
        return os.read(_ends[0], 1 << 16) if _ends is not None and _is_open(_ends) else b""
    except OSError:  # it is empty, or the application has closed it at this moment
        return b""


def _forget_in_child() -> None:
    """Close the pipe in a forked child, so that the child does not share it with its parent."""
    global _ends
    if _ends is None:
        return
    ends, _ends = _ends, None
    with contextlib.suppress(ValueError):  # the thread of a subinterpreter
        if (installed := signal.set_wakeup_fd(-1)) != ends[1]:
            signal.set_wakeup_fd(installed)
    for fd in ends:
        os.close(fd)


fork_hooks.register("main_thread", in_child=_forget_in_child)
