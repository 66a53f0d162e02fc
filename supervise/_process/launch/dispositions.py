"""Signal dispositions and masks of this process. Its workers inherit a part of them.

Signals are plain numbers here. The functions of `signal` convert each number to an enum, which would take a tenth of a
millisecond.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # no stub: it is what `signal` wraps
import signal

TYPE_CHECKING = False  # without an import of typing, as in `bootstrap`
if TYPE_CHECKING:
    from collections.abc import Iterable

_BY_PYTHON = frozenset({int(signal.SIGPIPE), int(signal.SIGXFSZ)})
"""Signals that Python ignores in its own process."""
_PASSED_ON = int(signal.SIGHUP)
"""SIGHUP. A worker inherits an ignored SIGHUP, as programs under nohup do."""
_UNCHANGEABLE = frozenset({int(signal.SIGKILL), int(signal.SIGSTOP)})
_ALL = frozenset(_signal.valid_signals()) - _UNCHANGEABLE
ALL_BUT_HANGUP = _ALL - {_PASSED_ON}
"""Signals that a program starts with at their default: all signals that a process can reset, except SIGHUP.

The set includes signals that are at their default already, because glibc makes one system call for a signal that it
resets, and two for another one.
"""
_INTERRUPT = int(signal.SIGINT)
_TO_DEFAULT = tuple(_ALL - _BY_PYTHON - {_INTERRUPT})
_DEFAULT, _IGNORED = int(signal.SIG_DFL), int(signal.SIG_IGN)


def kernel_reaps() -> bool:
    """Return whether this process ignores SIGCHLD. If so, the kernel reaps each child at its exit."""
    return bool(_signal.getsignal(signal.SIGCHLD) == _IGNORED)


def others_may_reap() -> bool:
    """Return whether code outside of supervise may reap children.

    The kernel does so if this process ignores SIGCHLD; a handler for SIGCHLD may do so.
    """
    return bool(_signal.getsignal(signal.SIGCHLD) != _DEFAULT)


def block() -> set[int]:
    """Block every signal in this thread; return the mask for `unblock`."""
    mask: set[int] = _signal.pthread_sigmask(signal.SIG_BLOCK, _ALL)
    return mask


def unblock(mask: Iterable[int]) -> None:
    """Restore the signal mask of this thread from before `block`."""
    _signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def be_default() -> None:
    """Reset the host's signal handlers in a forked worker, and unblock all signals."""
    _signal.set_wakeup_fd(-1)
    _signal.signal(_INTERRUPT, _signal.default_int_handler)
    for number in _TO_DEFAULT:
        handler = _signal.getsignal(number)
        if handler != _DEFAULT and not (number == _PASSED_ON and handler == _IGNORED):
            _signal.signal(number, _DEFAULT)
    unblock(())
