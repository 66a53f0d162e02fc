"""Checks of the arguments of asks to a Supervisor."""

from __future__ import annotations

import functools
import signal
from typing import TYPE_CHECKING, Any

from supervise._seconds import check_seconds
from supervise.errors import SpecError
from supervise.recording import repr_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, TypeVar

    from supervise._core.model import Gang

    P = ParamSpec("P")
    T = TypeVar("T")


def _refusing(check: Callable[P, T]) -> Callable[P, T]:
    """Return `check`, which raises `SpecError` also if a method of the checked value raises, such as its `__repr__`.

    Any other exception of a check would end the gang, because the Supervisor would take it for its own mistake.
    """

    @functools.wraps(check)
    def refusing(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return check(*args, **kwargs)
        except SpecError:
            raise
        except BaseException as error:  # user code may raise anything
            raise SpecError(f"the message has a value that cannot be checked: it raised {repr_of(error)}") from error

    return refusing


@_refusing
def as_signal(what: str, value: Any) -> signal.Signals:
    """Return the signal for a `Signals` member or a number.

    Raises:
        SpecError: The value is not a signal; the text names the setting and the value.
    """
    try:
        return signal.Signals(value)
    except ValueError:
        raise SpecError(f"{what} is {value!r}; give a signal, such as signal.SIGTERM") from None


@_refusing
def checked_ranks(ranks: Any, nprocs: int) -> frozenset[int]:
    """Return a set of local ranks; None means all ranks.

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


@_refusing
def requested_ranks(ranks: Any, gang: Gang, name: str) -> frozenset[int]:
    """Return the ranks of a request to restart or to terminate ranks.

    Raises:
        SpecError: The value is not a set, the set is empty, a rank is not in the gang, or the gang does not run.
    """
    wanted = checked_ranks(ranks if ranks is not None else (), gang.nprocs)
    if not wanted:
        raise SpecError(f"ranks is {ranks!r}; give the local ranks, such as {{0}}")
    if gang.phase in ("new", "finished") or gang.end_asked or (gang.phase == "stopping" and gang.policy is None):
        phase = "stopping" if gang.end_asked and gang.phase != "finished" else gang.phase
        raise SpecError(f"{name}: the gang is {phase}; its ranks cannot be restarted or terminated")
    return wanted


@_refusing
def check_timeout(timeout: float | None) -> None:
    """Raise `SpecError` unless `timeout` is a number of seconds or None."""
    if timeout is not None:
        check_seconds("timeout", timeout)


@_refusing
def check_ref(value: Any) -> None:
    """Raise `SpecError` for a value that is not the ref of an actor."""
    if isinstance(value, type) or not (hasattr(value, "actor_urn") and callable(getattr(value, "tell", None))):
        raise SpecError(f"ref is {value!r}; give the ref of an actor, such as its self.actor_ref")


def stray(message: object) -> SpecError:
    """Return the error for a message that no Supervisor accepts. An ask raises the error; a tell logs it."""
    if isinstance(message, type):
        return SpecError(f"the message is the class {message.__name__}; send an instance: {message.__name__}(...)")
    accepted = (
        "Start(), Wait(), Poll(), Pids(), Status(), Close(), Signal(...), RestartRanks(...), TerminateRanks(...),"
        " Stacks(...), Subscribe(...) or Unsubscribe(...)"
    )
    return SpecError(f"a Supervisor does not accept {repr_of(message)}; send it {accepted}")
