"""Signal dispositions and masks of this process, of which its workers inherit a part.

Signals are plain numbers here, because `signal` converts each to an enum, which would take a tenth of a millisecond.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # no stub: it is what `signal` wraps
import signal

TYPE_CHECKING = False  # without an import of typing, as in `bootstrap`
if TYPE_CHECKING:
    from collections.abc import Iterable

_BY_PYTHON = frozenset({int(signal.SIGPIPE), int(signal.SIGXFSZ)})
"""Signals that Python ignores for itself."""
_PASSED_ON = int(signal.SIGHUP)
"""A worker inherits an ignored SIGHUP, the effect of nohup."""
_UNCHANGEABLE = frozenset({int(signal.SIGKILL), int(signal.SIGSTOP)})
_ALL = frozenset(_signal.valid_signals()) - _UNCHANGEABLE
ALL_BUT_HANGUP = _ALL - {_PASSED_ON}
"""Signals that programs start with as default: all that a process can reset, because glibc calls the kernel once for a
signal that it resets, and twice for another."""
_INTERRUPT = int(signal.SIGINT)
_TO_DEFAULT = tuple(_ALL - _BY_PYTHON - {_INTERRUPT})
_DEFAULT, _IGNORED = int(signal.SIG_DFL), int(signal.SIG_IGN)


def kernel_reaps() -> bool:
    """Whether this process ignores SIGCHLD, so that the kernel reaps each child at its exit."""
    return bool(_signal.getsignal(signal.SIGCHLD) == _IGNORED)


def others_may_reap() -> bool:
    """Whether this process ignores SIGCHLD, or has a handler for it, which may reap any child."""
    return bool(_signal.getsignal(signal.SIGCHLD) != _DEFAULT)


def block() -> set[int]:
    """Block every signal in this thread; return the mask for `unblock`."""
    mask: set[int] = _signal.pthread_sigmask(signal.SIG_BLOCK, _ALL)
    return mask


def unblock(mask: Iterable[int]) -> None:
    """Restore the signal mask of this thread from before `block`."""
    _signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def be_default() -> None:
    """Reset the handlers of the host in a forked worker, and unblock all signals."""
    _signal.set_wakeup_fd(-1)
    _signal.signal(_INTERRUPT, _signal.default_int_handler)
    for number in _TO_DEFAULT:
        handler = _signal.getsignal(number)
        if handler != _DEFAULT and not (number == _PASSED_ON and handler == _IGNORED):
            _signal.signal(number, _DEFAULT)
    unblock(())
