"""Checks of the arguments of asks to a Supervisor."""

from __future__ import annotations

import signal
from typing import Any

from supervise.errors import SpecError


def as_signal(what: str, value: Any) -> signal.Signals:
    """Return the signal for a `Signals` member or a number.

    Raises:
        SpecError: The value is not a signal; names the setting and the value.
    """
    try:
        return signal.Signals(value)
    except ValueError:
        raise SpecError(f"{what} is {value!r}; give a signal, such as signal.SIGTERM") from None


def checked_ranks(ranks: Any, nprocs: int) -> frozenset[int]:
    """Return a set of local ranks; None means all.

    Raises:
        SpecError: The value is not a set, or one of its ranks is not in the gang.
    """
    every = frozenset(range(nprocs))
    try:
        wanted = every if ranks is None else frozenset(ranks)
    except TypeError:
        raise SpecError(f"ranks is {ranks!r}; give a set of local ranks, or None for all") from None
    if unknown := sorted(wanted - every, key=repr):
        raise SpecError(f"ranks {unknown} are not in this gang; its local ranks are 0 to {nprocs - 1}")
    return wanted


def check_ref(value: Any) -> None:
    """Raise `SpecError` for a value that is not the ref of an actor."""
    if isinstance(value, type) or not (hasattr(value, "actor_urn") and callable(getattr(value, "tell", None))):
        raise SpecError(f"ref is {value!r}; give the ref of an actor, such as its self.actor_ref")


def stray(message: object) -> SpecError:
    """Return the error for a message that no Supervisor accepts. An ask raises it; for a tell it is logged."""
    if isinstance(message, type):
        return SpecError(f"the message is the class {message.__name__}; send an instance: {message.__name__}(...)")
    accepted = (
        "Start(), Wait(), Poll(), Pids(), Status(), Close(), Signal(...), RestartRanks(...), TerminateRanks(...),"
        " Subscribe(...) or Unsubscribe(...)"
    )
    return SpecError(f"a Supervisor does not accept {message!r}; send it {accepted}")
