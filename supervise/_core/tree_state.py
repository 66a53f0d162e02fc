"""The state of a supervision tree, its events and its actions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from supervise.restarts import RestartKind, RestartPolicy, Strategy
    from supervise.trees import ChildState, TreePhase

Problem = Literal["", "unknown", "present", "ending", "ended", "failed", "terminated", "abandoned"]
"""The reason why an ask fails.

``ending``: the tree was already ending. ``ended``: the tree was stopped while the ask was pending.
"""
Outcome = Literal["stopped", "not_started", "gave_up", "abandoned"]
"""The reason why a tree ends."""
ALIVE = ("starting", "ready", "stopping")
"""The states in which the child may have an actor, for whose end the tree has to wait."""


@dataclass(slots=True)
class Child:
    """One child, through all of its lives."""

    id: str
    kind: RestartKind
    added: bool = False
    """Whether `AddAsked` added the child and the child was never ready.

    If its start fails, only the asker gets the error.
    """
    state: ChildState = "waiting"
    life: int = 0
    """Number of the lives that were started. An event of an earlier life is ignored."""
    doomed: bool = False
    """Whether the child is alive and is to be stopped in its turn."""
    then: Literal["waiting", "finished", "terminated", "removed"] = "finished"
    """The state of the child once its actor is gone."""
    was_ready: bool = False
    hold_s: float = 0.0
    """Time to wait before the next start of the child."""


@dataclass(slots=True)
class Tree:
    """The state of a tree. Children are in the order in which they start."""

    strategy: Strategy
    policy: RestartPolicy
    children: dict[str, Child] = field(default_factory=dict)
    phase: TreePhase = "new"
    restarts_ns: tuple[int, ...] = ()
    """Monotonic times (ns) of the restarts that still count."""
    asks: dict[int, tuple[str, Literal["ready", "gone"]]] = field(default_factory=dict)
    """Asks that are not answered yet: key of the ask to the child and the moment for which the ask waits."""
    outcome: Outcome | None = None
    """The reason why the tree ends. The first reason stays."""
    culprit: str = ""
    """The child because of which the tree ends."""


# Events


@dataclass(slots=True, frozen=True)
class StartAsked:
    """The start of the tree's children is requested."""


@dataclass(slots=True, frozen=True)
class StopAsked:
    """The end of the tree is requested."""


@dataclass(slots=True, frozen=True)
class Ready:
    """A life has started."""

    id: str
    life: int


@dataclass(slots=True, frozen=True)
class Ignored:
    """The start function has returned None, so there is no actor to wait for."""

    id: str
    life: int


@dataclass(slots=True, frozen=True)
class Ended:
    """A life has ended, or could not be started. Its cleanup may still run."""

    id: str
    life: int
    normal: bool
    at_ns: int = 0
    """Monotonic time."""


@dataclass(slots=True, frozen=True)
class Gone:
    """No process and no thread of a life remains. The event follows the `Ended` of this life."""

    id: str
    life: int


@dataclass(slots=True, frozen=True)
class StopExpired:
    """A life that was stopped, or that has ended, was not gone in time."""

    id: str
    life: int


@dataclass(slots=True, frozen=True)
class BackoffExpired:
    """The backoff of a child has expired."""

    id: str


@dataclass(slots=True, frozen=True)
class AddAsked:
    """A `StartChild` arrived."""

    key: int
    id: str
    kind: RestartKind


@dataclass(slots=True, frozen=True)
class TerminateAsked:
    """A `TerminateChild` arrived."""

    key: int
    id: str


@dataclass(slots=True, frozen=True)
class RestartAsked:
    """A `RestartChild` arrived."""

    key: int
    id: str


Ask = AddAsked | TerminateAsked | RestartAsked
Event = StartAsked | StopAsked | Ready | Ignored | Ended | Gone | StopExpired | BackoffExpired | Ask


# Actions


@dataclass(slots=True, frozen=True)
class Start:
    """Call the start function of a child. `Ready`, `Ignored` or `Ended` follows."""

    id: str
    life: int


@dataclass(slots=True, frozen=True)
class Stop:
    """Tell a life to stop, unless it has ended. `Gone` or `StopExpired` follows."""

    id: str
    life: int


@dataclass(slots=True, frozen=True)
class SetBackoff:
    """Report `BackoffExpired` after `delay_s`."""

    id: str
    delay_s: float


@dataclass(slots=True, frozen=True)
class CancelBackoff:
    """Cancel the timer of `BackoffExpired`."""

    id: str


@dataclass(slots=True, frozen=True)
class Restarting:
    """Tell subscribers that the children `ids` restart after the failure of the child `id`."""

    id: str
    ids: tuple[str, ...]
    delay_s: float


@dataclass(slots=True, frozen=True)
class Answer:
    """Answer an ask: with the ref of the child, with None, or with an error."""

    key: int
    problem: Problem = ""


@dataclass(slots=True, frozen=True)
class Started:
    """Every child has been started for the first time."""


@dataclass(slots=True, frozen=True)
class Stopping:
    """Report that the tree ends, and why. From then on, every child is stopped. A subscriber gets this report once."""

    outcome: Outcome
    id: str
    """The child because of which the tree ends. Empty after a stop."""


@dataclass(slots=True, frozen=True)
class Publish:
    """Set all pending replies, because every actor of the tree has ended."""


Action = Start | Stop | SetBackoff | CancelBackoff | Restarting | Answer | Started | Stopping | Publish
