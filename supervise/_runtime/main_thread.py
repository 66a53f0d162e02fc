"""What the main thread waits for: any thread rings, and so does every signal.

Python's handlers of signals run in the main thread, between two of its instructions. One that comes in the last
moment before a wait for a lock would have to wait as well, perhaps for ever: the lock is not free, and the wait has not
begun that the kernel would interrupt. So the interpreter writes into a pipe (`signal.set_wakeup_fd`), at which we wait.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import sys
from _thread import get_ident
from threading import main_thread
from typing import TYPE_CHECKING, Self

from supervise._runtime import fork_hooks
from supervise._runtime.marked import Marked
from supervise._runtime.wakeup import Bell

if TYPE_CHECKING:
    from types import TracebackType

_MOST_S = 2_000_000.0
"""What the kernel can be asked for: after these 23 days, a longer wait ends as if it were rung."""
_NO_DESCRIPTOR = -2
_displaced = -1
"""To what the interpreter wrote before."""
_ends: tuple[int, int] | None = None
"""The pipe: one for the process, made when it is first needed, and never closed, since anybody may ring late."""
waits = Marked()
"""Marks a function that has a ``with`` block of a bell: one that is on the stack below another was interrupted."""


def bell_for_this_thread() -> Bell | MainBell:
    """Return what the calling thread, and no other, can wait for."""
    if get_ident() != main_thread().ident or not _have_pipe():
        return Bell()
    return MainBell()


class MainBell:
    """A `Bell` whose wait is ended by signals, too; also by a late ring for an earlier wait. For one ``with`` block."""

    __slots__ = ("_ends", "_nested")

    def __enter__(self) -> Self:
        """Have signals ring."""
        self._ends = _ends
        # Else a handler's exception has left an earlier block before it could put back what it had displaced
        self._nested = not _arm() and waits.on_stack(sys._getframe(1).f_back)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Have the interpreter write to where it wrote before."""
        if self._ends is not _ends:  # this is a child that was forked meanwhile
            return
        if self._nested:  # in a handler, which may have taken a ring that was meant for whom it interrupts
            self.ring()
            return
        try:
            signal.set_wakeup_fd(_displaced, warn_on_full_buffer=False)
        except (OSError, ValueError):  # it was closed without a word
            signal.set_wakeup_fd(-1)
        _hand_on(_emptied())

    def ring(self) -> None:
        """End the wait. From any thread; never blocks."""
        if _ends is not None:
            _write(_ends[1], b"\0")

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until it is rung or a handler of a signal has run, and return True; False after `timeout_s`."""
        if not _have_pipe():  # in a forked child without descriptors
            return False
        _arm()  # a handler may have changed it since
        poll = select.poll()
        poll.register(_both_ends()[0], select.POLLIN)
        longest = timeout_s is not None and timeout_s > _MOST_S
        if poll.poll(None if timeout_s is None else min(max(timeout_s, 0.0), _MOST_S) * 1000):
            _hand_on(_emptied())
            return True
        return longest


def _arm() -> bool:
    """Have the interpreter write to our pipe; tell whether it did not already."""
    global _displaced  # noqa: PLW0603 - of the process's one descriptor for signals
    ours = _both_ends()[1]
    earlier = signal.set_wakeup_fd(ours, warn_on_full_buffer=False)
    if earlier == ours:
        return False
    _displaced = earlier
    return True


def _hand_on(rings: bytes) -> None:
    """Tell whom we have displaced of the signals among them, at once: what we wait for may depend on it."""
    if _displaced >= 0 and (numbers := rings.replace(b"\0", b"")):
        _write(_displaced, numbers)


def _both_ends() -> tuple[int, int]:
    assert _ends is not None  # noqa: S101 - or there would be no such bell
    return _ends


def _write(fd: int, rings: bytes) -> None:
    with contextlib.suppress(OSError):  # full: it is heard already; or, somebody else's, it is no more
        os.write(fd, rings)


def _have_pipe() -> bool:
    global _ends  # noqa: PLW0603 - one for the process
    if _ends is None:
        try:
            if not _is_allowed():
                return False
            _ends = _pipe()
        except OSError:  # no descriptor is left: wait as if there were no signals
            return False
    return True


def _is_allowed() -> bool:
    """Whether this thread may set the descriptor for signals: not in a subinterpreter, for one."""
    try:
        signal.set_wakeup_fd(_NO_DESCRIPTOR)
    except ValueError:
        return False
    except OSError:  # that there is no such descriptor is only asked of who may
        return True
    return True


def _pipe() -> tuple[int, int]:
    """Return a pipe above 2: where stdin, stdout or stderr is closed, it must not stand in for them."""
    with contextlib.ExitStack() as stack:
        for fd in (low := os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)):
            stack.callback(os.close, fd)
        read = fcntl.fcntl(low[0], fcntl.F_DUPFD_CLOEXEC, 3)
        try:
            return read, fcntl.fcntl(low[1], fcntl.F_DUPFD_CLOEXEC, 3)
        except OSError:
            os.close(read)
            raise


def _emptied() -> bytes:
    try:
        return b"" if _ends is None else os.read(_ends[0], 1 << 16)
    except BlockingIOError:
        return b""


def _forget_in_child() -> None:
    """A forked child's signals are not ours, nor ours its."""
    global _ends
    if _ends is None:
        return
    ends, _ends = _ends, None
    with contextlib.suppress(ValueError):  # another interpreter's thread
        if (installed := signal.set_wakeup_fd(-1)) != ends[1]:
            signal.set_wakeup_fd(installed)
    for fd in ends:
        os.close(fd)


fork_hooks.register("main_thread", in_child=_forget_in_child)
