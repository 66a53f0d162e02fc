"""Termination signals become `SignalException` in the main thread, and only in the user's own code.

While the main thread is inside a protected function of the façade the handler records the signal and
wakes the function, which ends what it does; the caller outside of it raises. So no handler ever raises
while something of ours is half done. Installed once a process, put back with the last gang.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from supervise._api.uncovered import put_off
from supervise._runtime import fork_hooks
from supervise._runtime.main_thread import bell_for_this_thread, waits
from supervise._runtime.marked import Marked
from supervise._runtime.wakeup import remaining
from supervise.errors import SignalException

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from supervise._runtime.future import Reply
    from supervise._runtime.main_thread import MainBell
    from supervise._runtime.wakeup import Bell

    Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None

log = logging.getLogger("supervise")

DEFAULT_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
"""PyTorch's list; the variable ``TORCHELASTIC_SIGNALS_TO_HANDLE`` holds another."""

protected = Marked()
"""Marks a function in which a signal is recorded instead of raised. It must be called by one that `deliver`s."""


class _Desk:
    """What is known of signals, for the whole process."""

    def __init__(self) -> None:
        self.gangs: set[object] = set()
        """Who holds the handlers: one object a gang."""
        self.old: dict[signal.Signals, Handler] = {}
        self.recorded: deque[signal.Signals] = deque()
        self.delivered = 0
        """Signals that were raised since the first of the present gangs began."""
        self.bell: Bell | MainBell | None = None
        """What wakes the protected function that waits now."""


_desk = _Desk()


def _terminate_process_handler(signum: int, frame: FrameType | None) -> None:
    """Raise `SignalException`, or record the signal while the main thread is in a protected function.

    Raises:
        SignalException: In the user's code.
    """
    if not _desk.gangs:
        _pass_on(signum, frame)
        return
    sig = signal.Signals(signum)
    if protected.on_stack(frame):
        _desk.recorded.append(sig)
        bell = _desk.bell
        if bell is not None:
            bell.ring()
        return
    if put_off(signum, frame):
        return
    _desk.delivered += 1
    raise _exception(sig)


def raise_or_record(signum: int, frame: FrameType | None) -> None:
    """Raise `SignalException`, whether there is a gang or not: PyTorch's handler, for those who install it themselves.

    Raises:
        SignalException: Always, but for a signal that comes while the main thread is inside a gang's functions;
            those raise it at their end.
    """
    if not _desk.gangs:
        raise _exception(signal.Signals(signum))
    _terminate_process_handler(signum, frame)


def default_signal() -> signal.Signals:
    """Return the polite signal."""
    return signal.SIGTERM


def kill_signal() -> signal.Signals:
    """Return the signal that nobody can refuse."""
    return signal.SIGKILL


def _exception(sig: signal.Signals) -> SignalException:
    return SignalException(f"Process {os.getpid()} got signal: {sig}", sigval=sig)


def _pass_on(signum: int, frame: FrameType | None) -> None:
    """No gang holds the handlers any more, but another thread closed the last: do what was done before."""
    sig = signal.Signals(signum)
    old = _desk.old.get(sig)
    restore()
    if callable(old):
        old(signum, frame)
    elif old != signal.SIG_IGN:
        signal.raise_signal(sig)


def hold(names: str | None = None) -> object:
    """Install the handlers for one more gang; return what `let_go` takes. Only from the main thread: elsewhere None.

    Signals that are ignored stay ignored; one with a handler that Python did not install is left alone,
    since it could not be put back.

    Args:
        names: Comma-separated; None takes the environment's.
    """
    if threading.current_thread() is not threading.main_thread():
        log.warning(
            "signal handlers were not installed: the gang is started in thread %r, not in the main thread;"
            " a signal to this process ends it as if there were no gang",
            threading.current_thread().name,
        )
        return None
    if not _desk.gangs:
        restore()
        _desk.delivered = 0
        _desk.recorded.clear()
    gang = object()
    _desk.gangs.add(gang)
    for name in (names or os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE") or DEFAULT_SIGNALS).split(","):
        _install(name.strip())
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
    """One gang less holds the handlers; with the last they are put back, now or by the main thread's next call."""
    _desk.gangs.discard(gang)
    if threading.current_thread() is threading.main_thread():
        restore()


def restore() -> None:
    """Put the handlers back if no gang holds them. In the main thread."""
    if _desk.gangs:
        return
    for sig, old in list(_desk.old.items()):
        if signal.getsignal(sig) == _terminate_process_handler:  # otherwise the user has set another since
            signal.signal(sig, old)
        _desk.old.pop(sig, None)  # gone already if a signal that came just now was passed on


@waits
def wait_for(reply: Reply[Any], timeout: float | None = None, *, heed: bool = True) -> bool:
    """Wait, in a protected function; tell whether `reply` is there.

    Args:
        reply: What to wait for.
        timeout: Seconds; None waits for ever.
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


def recorded() -> signal.Signals | None:
    """Take the oldest recorded signal; None where there is none. In the main thread; elsewhere always None."""
    if threading.current_thread() is not threading.main_thread() or not _desk.recorded:
        return None
    return _desk.recorded.popleft()


def is_second() -> bool:
    """Whether a signal was raised before, since the present gangs began."""
    return _desk.delivered > 0


def deliver() -> None:
    """Raise what was recorded. Called outside of protected functions, after one.

    Raises:
        SignalException: There was a signal.
    """
    sig = recorded()
    if sig is not None:
        raise_signal(sig)


def raise_signal(sig: signal.Signals) -> None:
    """Raise a recorded signal as the handler would have.

    Raises:
        SignalException: Always.
    """
    _desk.delivered += 1
    raise _exception(sig)


def hand_over(sig: signal.Signals) -> None:
    """Give a signal that came during a close to whoever handles it after the close."""
    if _desk.gangs:
        raise_signal(sig)
    signal.raise_signal(sig)


def _forget_in_child() -> None:
    """A forked child holds no gang; the handlers that it inherits pass on."""
    _desk.gangs.clear()
    _desk.recorded.clear()


fork_hooks.register("signals", in_child=_forget_in_child)
