"""What this process does with signals, which its workers are to inherit in part.

By their numbers: the functions of `signal` make an enum of each, which takes a tenth of a millisecond here.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # no stub: it is what `signal` wraps
import signal

RESTORED = frozenset({int(signal.SIGPIPE), int(signal.SIGXFSZ)})
"""What Python ignores for itself and no program is to inherit, as with `Popen`."""
_PASSED_ON = int(signal.SIGHUP)
"""An ignored SIGHUP is what nohup means; the worker inherits it."""
_UNCHANGEABLE = frozenset({int(signal.SIGKILL), int(signal.SIGSTOP)})
_ALL = frozenset(_signal.valid_signals()) - _UNCHANGEABLE
_DEFAULT, _IGNORED = int(signal.SIG_DFL), int(signal.SIG_IGN)


def to_reset() -> frozenset[int]:
    """Return the signals that this process ignores and a program that it starts must not."""
    return frozenset(n for n in _ALL - RESTORED - {_PASSED_ON} if _signal.getsignal(n) == _IGNORED)


def kernel_reaps() -> bool:
    """Whether this process ignores SIGCHLD: a child is gone as soon as it is dead, held or not."""
    return bool(_signal.getsignal(signal.SIGCHLD) == _IGNORED)


def others_may_reap() -> bool:
    """Whether this process ignores SIGCHLD, or has a handler for it, which may reap whatever has ended."""
    return bool(_signal.getsignal(signal.SIGCHLD) != _DEFAULT)


def block() -> set[int]:
    """Block every signal in this thread; return the mask for `unblock`."""
    mask: set[int] = _signal.pthread_sigmask(signal.SIG_BLOCK, _ALL)
    return mask


def unblock(mask: set[int]) -> None:
    """Have the signals blocked in this thread that were before `block`."""
    _signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def be_default() -> None:
    """In a worker that was forked: take back what the host does with signals, and let all of them through."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in _ALL - RESTORED - {int(signal.SIGINT)}:
        handler = _signal.getsignal(number)
        if handler != _DEFAULT and not (number == _PASSED_ON and handler == _IGNORED):
            _signal.signal(number, _DEFAULT)
    unblock(set())
