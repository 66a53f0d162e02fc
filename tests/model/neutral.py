"""Events and actions as plain names and values, so that tests of the core do not depend on its classes.

Ranks are ints, a set of ranks is a sorted tuple, a signal is its name. The order of the ranks within one action is not
promised, hence the sorting; the order of actions is.
"""

from dataclasses import fields
from enum import Enum
from functools import cache
from typing import Any, NamedTuple, Protocol, Self


class BrokenPromiseError(AssertionError):
    """An invariant does not hold."""


def check(holds: bool, what: str) -> None:
    """Break off where a promise does not hold.

    Raises:
        BrokenPromiseError: Names it.
    """
    if not holds:
        raise BrokenPromiseError(what)


class Neutral(NamedTuple):
    """One event or action."""

    name: str
    fields: dict[str, Any]

    def __str__(self) -> str:
        """Return it as a call."""
        return f"{self.name}({', '.join(f'{name}={value}' for name, value in self.fields.items())})"


def neutral(name: str, **values: Any) -> Neutral:
    """Return an event or action of this name."""
    return Neutral(name, values)


def neutral_of(thing: object) -> Neutral:
    """Return the neutral form of an object of a core: a dataclass, a named tuple, or a class without fields."""
    kind: Any = type(thing)
    return Neutral(kind.__name__, {name: _plain(getattr(thing, name)) for name in _field_names(kind)})


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    if hasattr(kind, "__dataclass_fields__"):
        return tuple(each.name for each in fields(kind))
    return getattr(kind, "_fields", ())


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return tuple(sorted(value))
    return value.name if isinstance(value, Enum) else value


class Spec(NamedTuple):
    """A gang to be run by a core."""

    nprocs: int
    grace_s: float = 5.0
    window: int = 1
    kill_wait_s: float = 5.0
    stop_on_failure: bool = True
    policy: tuple[int, float | None, float] | None = None
    """`max_restarts`, `within_s`, `backoff` of its `RestartPolicy`."""
    uncounted: frozenset[int] = frozenset()
    """Exit codes after which a restart does not count."""
    strategy: str = "one_for_all"
    kinds: tuple[str, ...] | None = None
    role_of: tuple[int, ...] | None = None
    needs: tuple[frozenset[int], ...] | None = None
    """The roles that each role needs, directly or not; None: those before it."""
    graces_s: tuple[tuple[int, float], ...] = ()
    """Roles with a grace of their own."""
    services: frozenset[int] = frozenset()
    notify: bool = False
    """Whether each rank reports that it is ready."""


class KnownBatch(NamedTuple):
    """What a core knows of ranks that it stops together."""

    number: int
    """0 for the stop of the gang."""
    ranks: frozenset[int]
    pending: frozenset[int]
    """The ranks of which something is left."""
    signaled: frozenset[int]
    """The ranks to whose roles the first signal was sent."""
    killed: frozenset[int]
    """The ranks to whose roles SIGKILL was sent."""
    state: str
    down: frozenset[int]


class Known(NamedTuple):
    """What a core knows, as far as the model checker must tell its states apart."""

    launched: frozenset[int]
    starting: frozenset[int]
    running: frozenset[int]
    leftovers: frozenset[int]
    ended: tuple[int, ...]
    """Ranks in the order in which their ends were told."""
    stuck: frozenset[int]
    spontaneous: frozenset[int]
    start_failure: int | None
    census_ns: int
    attempt: int
    batches: tuple["KnownBatch", ...]
    """The batch of all ranks if the gang is being stopped, otherwise the batches of the ranks that are stopped."""
    backoff: Any
    """The lengths of rows of restarts, and the delays of batches."""
    times_ns: tuple[int, ...]
    """The stamps on which the next restart depends."""
    rest: Any
    """Everything else; hashable."""


class Core(Protocol):
    """A core behind the seam. One object is one gang.

    The events have the names and fields that `tests.model.live` translates. ``TailsMade(count, values)`` comes before
    ``StartAsked`` and after ``Assemble``; ``ValuesLoaded(problems)`` comes once after ``DrainTails`` if ``values`` was
    true.
    """

    def __init__(self, spec: Spec) -> None:
        """Begin a gang."""

    def copy(self) -> Self:
        """Return a core that can go another way from here."""

    def feed(self, event: Neutral) -> list[Neutral]:
        """Tell the core an event; return what must be done."""

    def status(self) -> dict[str, Any]:
        """Return what users can see at any time."""

    def result(self) -> dict[str, Any]:
        """Return the verdict and what the actors make a result of."""

    def known(self) -> Known:
        """Return what tells this state from others."""

    def numbers(self) -> dict[int, int]:
        """Return the number of each batch -> its place among them."""

    def counted(self) -> int:
        """Return how many restarts count."""
