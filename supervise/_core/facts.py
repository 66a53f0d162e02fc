"""The decision of the core on an event: actions, and facts for events and subscribers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

    from supervise._core.steps import (
        Action,
        RankFaulted,
        RankReady,
        Reason,
        Swept,
        TailEnded,
        WorkerFailedToStart,
        WorkerUnkillable,
    )
    from supervise.messages import WorkerExited, WorkerStarted


class RankExited(NamedTuple):
    """A rank has exited."""

    end: WorkerExited
    by_itself: bool
    """Whether the rank ended before the first signal."""
    started_ns: int
    """Monotonic time of the start of the rank's process."""


class StartFailed(NamedTuple):
    """The first start has failed, because a rank was not ready in time, or failed before all ranks were ready."""

    local_rank: int
    why: str


class LifeReplaced(NamedTuple):
    """The next life of a rank is about to be launched."""

    local_rank: int
    attempt: int
    """Number of the replaced life."""
    counted: bool
    """Whether two conditions hold: the end of this life caused the restart, and the restart counts toward the limit."""


class GangStopping(NamedTuple):
    """A stop of the gang has begun."""

    reason: Reason


class Leaked(NamedTuple):
    """A sweep has found escaped processes."""

    found: Swept
    pids: Mapping[int, int]
    """Rank to pid of the process that supervise has started for the rank."""


if TYPE_CHECKING:
    Fact: TypeAlias = (
        WorkerStarted
        | WorkerFailedToStart
        | WorkerUnkillable
        | TailEnded
        | RankExited
        | StartFailed
        | RankReady
        | RankFaulted
        | LifeReplaced
        | GangStopping
        | Leaked
    )


class Decision:
    """The actions and facts that follow from an event."""

    __slots__ = ("actions", "facts")

    def __init__(self) -> None:
        self.actions: list[Action] = []
        """Effects to carry out, in this order."""
        self.facts: list[Fact] = []
        """Occurrences to report before any action is carried out."""

    def do(self, *actions: Action) -> None:
        """Add actions."""
        self.actions += actions

    def tell(self, fact: Fact) -> None:
        """Add a fact."""
        self.facts.append(fact)
