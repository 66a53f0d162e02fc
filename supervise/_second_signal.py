"""The rule for the second signal: whether a signal after the first one of a stop asks for SIGKILL at once."""

from __future__ import annotations

from signal import SIGHUP, Signals

_SAME_S = 0.05
"""Two equal signals within this time count as one: `timeout` sends each signal twice."""
_OTHER_S = 1.0
"""Two different signals within this time count as one: systemd sends SIGHUP directly after SIGTERM."""


def is_repetition(sig: Signals, first: Signals, after_s: float) -> bool:
    """Return whether a signal belongs to the same event as the first one, which arrived `after_s` seconds before."""
    return after_s < (_SAME_S if sig == first else _OTHER_S)


def means_now(sig: Signals, first: Signals, after_s: float) -> bool:
    """Return whether a signal that arrived `after_s` seconds after the first one asks for SIGKILL at once.

    SIGHUP never does: when a terminal closes, the shell and the kernel send it, and the kernel once more when the shell
    has exited.
    """
    return sig != SIGHUP and not is_repetition(sig, first, after_s)
