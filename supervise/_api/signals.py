"""The handlers that turn termination signals into `SignalException`, in user code of the main thread only.

While the main thread is inside a protected function of the façade, the handler only records the signal and wakes the
function. The function completes its step, and then its caller raises the exception. So a handler never raises in the
middle of a step of supervise. Handlers are installed once per process and restored with the last gang.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from typing import Any

from supervise._record import NamedTuple
from supervise._runtime import fork_hooks
from supervise._runtime.wakeup import Bell, MainBell, Marked, bell_for_this_thread, remaining, waits
from supervise._second_signal import is_repetition, means_now
from supervise.errors import SignalException
from supervise.events import log

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from supervise._runtime.future import Reply

    Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None

DEFAULT_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
"""PyTorch's default; the variable ``TORCHELASTIC_SIGNALS_TO_HANDLE`` replaces it."""

protected = Marked()
"""Decorator for functions in which a signal is recorded, not raised. The caller must call `deliver` after them."""


class Recorded(NamedTuple):
    """A signal that the handler has recorded."""

    sig: signal.Signals
    at_s: float
    """Monotonic time."""
    kills: bool | None
    """Whether it asks for SIGKILL at once; None for the first signal."""


class _Desk:
    """The process-wide state of signal handling."""

    def __init__(self) -> None:
        self.gangs: set[object] = set()
        """The holders of the handlers: one object per gang."""
        self.old: dict[signal.Signals, Handler] = {}
        self.recorded: deque[Recorded] = deque()
        self.last: tuple[signal.Signals, float] | None = None
        """The last signal that was raised, or recorded as the first one, and its monotonic time.

        None if there is none since the first of the present gangs began.
        """
        self.has_warned = False
        """Whether a warning about a start outside of the main thread was logged. Once is enough for a process."""
        self.bell: Bell | MainBell | None = None
        """Wakes the protected function that waits; None if none waits."""


_desk = _Desk()


def _terminate_process_handler(signum: int, frame: FrameType | None) -> None:
    """Raise `SignalException`, or record the signal while the main thread is in a protected function.

    A signal that belongs to the same event as the last one is recorded in user code as well: raised there, it would
    interrupt the `except` or ``with`` that is about to close the gang. The next wait raises it.

    Raises:
        SignalException: The main thread was in user code.
    """
    if not _desk.gangs:
        _pass_on(signum, frame)
        return
    sig, at_s = signal.Signals(signum), time.monotonic()
    inside, last = protected.on_stack(frame), _desk.last
    if inside or (last is not None and is_repetition(sig, last[0], at_s - last[1])):
        kills = None if last is None else means_now(sig, last[0], at_s - last[1])
        _desk.last = last or (sig, at_s)
        _desk.recorded.append(Recorded(sig, at_s, kills))
        bell = _desk.bell
        if bell is not None:
            bell.ring()
        return
    _desk.last = sig, at_s
    raise _exception(sig)


def raise_or_record(signum: int, frame: FrameType | None) -> None:
    """Raise `SignalException`, with or without a gang. PyTorch's handler, for callers that install it themselves.

    Raises:
        SignalException: Always, except while the main thread is inside a protected function. Then the exception follows
            after the function.
    """
    if not _desk.gangs:
        raise _exception(signal.Signals(signum))
    _terminate_process_handler(signum, frame)


def default_signal() -> signal.Signals:
    """Return the default first signal."""
    return signal.SIGTERM


def kill_signal() -> signal.Signals:
    """Return the signal that a process cannot handle: SIGKILL."""
    return signal.SIGKILL


def _exception(sig: signal.Signals) -> SignalException:
    return SignalException(f"Process {os.getpid()} got signal: {sig}", sigval=sig)


def _pass_on(signum: int, frame: FrameType | None) -> None:
    """Call the previous handler. A thread other than the main one closed the last gang, so it could not restore it."""
    sig = signal.Signals(signum)
    old = _desk.old.get(sig)
    restore()
    if callable(old):
        old(signum, frame)
    elif old != signal.SIG_IGN:
        signal.raise_signal(sig)


def hold() -> object:
    """Install the handlers for a gang; return the argument of `let_go`, or None outside of the main thread.

    The environment may name the signals. Ignored signals stay ignored. A handler that Python did not install stays,
    because Python could not restore it.
    """
    if threading.current_thread() is not threading.main_thread():
        if not _desk.has_warned:
            _desk.has_warned = True
            log.warning(
                "signal handlers were not installed: the gang is started in thread %r, not in the main thread;"
                " a signal to this process ends it as if there were no gang",
                threading.current_thread().name,
            )
        return None
    if not _desk.gangs:
        restore()
        _desk.last = None
        _desk.recorded.clear()
    gang = object()
    _desk.gangs.add(gang)
    wanted = os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", DEFAULT_SIGNALS)
    for name in filter(None, map(str.strip, wanted.split(","))):
        _install(name)
    return gang


def _install(name: str) -> None:
    sig = getattr(signal, name, None)
    if not isinstance(sig, signal.Signals) or sig in (signal.SIGKILL, signal.SIGSTOP):
        log.warning("no handler for %r: it is not the name of a signal that can be handled", name)
        return
    old = signal.getsignal(sig)
    if old is None or old in (signal.SIG_IGN, _terminate_process_handler):
        return
    _desk.old[sig] = old
    signal.signal(sig, _terminate_process_handler)


def let_go(gang: object) -> None:
    """Release the handlers for a gang. After the last gang, restore them: now, or at the main thread's next call."""
    _desk.gangs.discard(gang)
    if threading.current_thread() is threading.main_thread():
        restore()


def restore() -> None:
    """Restore the previous handlers if no gang holds them. Call on the main thread."""
    if _desk.gangs:
        return
    for sig, old in list(_desk.old.items()):
        if signal.getsignal(sig) == _terminate_process_handler:  # otherwise user code has replaced the handler
            signal.signal(sig, old)
        _desk.old.pop(sig, None)  # a signal that was just passed on may have removed it


@waits
def wait_for(reply: Reply[Any], timeout: float | None = None, *, heed: bool = True) -> bool:
    """Wait in a protected function; return whether `reply` is set.

    Args:
        reply: The reply to wait for.
        timeout: Seconds; None waits forever.
        heed: Return early, with False, when a signal has been recorded.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    main = threading.current_thread() is threading.main_thread()
    with bell_for_this_thread() as bell:
        ring = bell.ring
        if main and heed:
            _desk.bell = bell
        try:
            reply.add_done_callback(ring)
            while not (reply.done() or (main and heed and _desk.recorded)) and bell.wait(remaining(deadline)):
                pass
        finally:
            if main:
                _desk.bell = None
            reply.forget(ring)
    return reply.done()


def recorded() -> Recorded | None:
    """Remove and return the oldest recorded signal; None if there is none, and always outside of the main thread."""
    if threading.current_thread() is not threading.main_thread() or not _desk.recorded:
        return None
    return _desk.recorded.popleft()


def deliver() -> None:
    """Raise the recorded signal. Call after a protected function, outside of it.

    Raises:
        SignalException: A signal was recorded.
    """
    came = recorded()
    if came is not None:
        raise_signal(came)


def raise_signal(came: Recorded) -> None:
    """Raise a recorded signal as the handler would.

    Raises:
        SignalException: Always.
    """
    _desk.last = came.sig, came.at_s
    raise _exception(came.sig)


def hand_over(came: Recorded) -> None:
    """Raise again a signal that arrived during a close, for the handler that is in place after the close."""
    if _desk.gangs:
        raise_signal(came)
    signal.raise_signal(came.sig)


def is_handled_otherwise(sig: signal.Signals) -> bool:
    """Whether a signal has a Python handler other than that of supervise."""
    handler = signal.getsignal(sig)
    return callable(handler) and handler != _terminate_process_handler and not isinstance(handler, signal.Handlers)


def _forget_in_child() -> None:
    """Forget all gangs in a forked child, so that the inherited handlers call the previous ones."""
    _desk.gangs.clear()
    _desk.recorded.clear()


fork_hooks.register("signals", in_child=_forget_in_child)
