"""The public protocol of supervision trees: children, messages to a tree, and messages to its subscribers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from supervise._record import record
from supervise._settings import OF_ROLES, check_seconds
from supervise.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

    import pykka

    from supervise.restarts import RestartKind

ChildState = Literal["waiting", "starting", "ready", "stopping", "backoff", "finished", "terminated", "abandoned"]
"""``finished``: it has ended, or its `start` returned None. ``abandoned``: its thread did not end in time."""
TreePhase = Literal["new", "starting", "running", "stopping", "finished"]
"""The phases of a tree, in this order. It is ``running`` when every child has started for the first time."""


@record
class ChildSpec:
    """How a tree starts, restarts and stops one child.

    Raises:
        SpecError: A field is not valid; the text names it.
    """

    id: str
    """Unique among the children of a tree."""
    start: Callable[[], pykka.ActorRef[Any] | None]
    """A function that starts the child and returns its ref, or None if there is nothing to start. It is called on the
    tree's own thread, so it must return promptly. If it raises, the start has failed."""
    restart: RestartKind | None = None
    """After which end the child restarts: ``transient`` after a failure, ``permanent`` after any end,
    ``temporary`` after none. None: the kind of the tree's `RestartPolicy`."""
    shutdown_s: float | None = None
    """Seconds for the stop. Actor: by default 5, then the tree abandons it. Tree: by default no limit. Gang: the
    timeout of its `Close`, by default its grace; then SIGKILL."""

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise SpecError(f"id is {self.id!r}; give a child a name, a string that is not empty")
        if not callable(self.start):
            raise SpecError(
                f"start of {self.id!r} is {self.start!r}; give a function without arguments that starts the child, "
                f"such as functools.partial(MyActor.start, argument)"
            )
        if self.restart is not None:
            OF_ROLES["restart"].checked(self.restart)
        if self.shutdown_s is not None:
            check_seconds(f"shutdown_s of {self.id!r}", self.shutdown_s)


# Messages to a tree, in addition to Start, Wait, Status, Subscribe and Unsubscribe


@record
class StartChild:
    """Add a child after all others. The reply is its ref once it has started; None if its `start` returned None.

    If the start fails, the reply is the error, and the tree forgets the child.
    """

    spec: ChildSpec


@record
class TerminateChild:
    """Stop a child, and leave it stopped until `RestartChild`. The reply is None, and comes when the child is gone.

    The tree forgets a ``temporary`` child.
    """

    id: str


@record
class RestartChild:
    """Restart a child; a running child is stopped first. The reply is the new ref.

    If the child is in backoff, the children that wait with it start as well. No other child is affected.
    """

    id: str


@record
class ChildStatus:
    """One child in a `TreeStatus`."""

    state: ChildState
    ref: pykka.ActorRef[Any] | None
    """Its actor while it is starting, ready or stopping."""
    restarts: int
    """Number of its starts after the first."""


@record
class TreeStatus:
    """The reply of a tree to `Status`."""

    phase: TreePhase
    children: dict[str, ChildStatus]
    """The children by id, in the order of their start."""
    restarts_total: int
    """Number of failures that caused a restart."""
    waiters: int
    """Number of `Wait` requests that await a reply."""


# Messages to subscribers of a tree


@record
class ChildStarted:
    """A child has started: `on_start` of an actor has run; all ranks of a gang, or children of a tree, have started."""

    id: str
    ref: pykka.ActorRef[Any]


@record
class ChildDown:
    """A child has ended, or could not be started."""

    id: str
    reason: BaseException | str | None
    """The exception that ended it, or None. A string if no exception is known: ``"noproc"``, ``"lost"``."""
    normal: bool


@record
class ChildRestarting:
    """A child has failed. It restarts when all children that must stop first are gone."""

    id: str
    """The child that has failed."""
    ids: tuple[str, ...]
    """All children that restart, in order."""
    restarts: int
    """Number of restarts that count now, including this one."""
    delay_s: float
    """How long the tree waits before the first of these starts."""


@record
class TreeFinished:
    """No actor or process of the tree is left. The last message, exactly once, and the reply to `Wait` after a stop."""

    error: BaseException | None = None
    """Why the tree ended; None if it was stopped."""


# The message of `monitor`


@record
class Down:
    """An actor that is monitored has ended."""

    ref: pykka.ActorRef[Any]
    reason: BaseException | str | None
    """The exception that ended it; None for a stop. ``"noproc"``: it was dead when `monitor` was called. ``"lost"``:
    its thread ended without a stop, because a BaseException left `on_start`."""
    normal: bool
    """Whether it was stopped instead of failing."""
