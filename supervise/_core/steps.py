"""What goes into the core and what comes out: events, actions, facts.

Nobody changes one of these once it is made. That Python enforces this would double what it takes to import them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from supervise.messages import Bare

if TYPE_CHECKING:
    from collections.abc import Mapping
    from signal import Signals

    from supervise.messages import (
        GroupEmptied,
        Swept,
        TailEnded,
        WorkerExited,
        WorkerFailedToStart,
        WorkerStarted,
        WorkerUnkillable,
    )

Reason = Literal["peer_failed", "close", "timeout", "start_failed"]
"""Why a gang is stopped."""
TimerName = Literal["grace", "kill", "drain", "backoff", "deadline"]
"""``deadline`` is that of the whole gang, and set by the actors."""


# Events, beside the messages of Workers and Tails


@dataclass(slots=True, kw_only=True)
class TailsStarted:
    """The Tails of an attempt were started. Before `StartAsked`, and between `Assemble` and `Assembled`."""

    count: int
    values: bool = False
    """Whether return values are to be loaded as well, once all ranks have ended."""


class StartAsked(Bare):
    """The start was asked for."""


@dataclass(slots=True, kw_only=True)
class CloseAsked:
    """The end was asked for, or the gang's timeout expired."""

    death_sig: Signals
    timeout_s: float
    reason: Reason = "close"


@dataclass(slots=True, kw_only=True)
class StopOnFailure:
    """From now on a rank that fails stops the others, or does not. A rank that has failed before counts, too."""

    on: bool


@dataclass(slots=True, kw_only=True)
class PeersStopped:
    """The caller is going to stop these ranks, because another has failed: their ends are no failures."""

    ranks: frozenset[int]
    at_ns: int = 0
    """When, monotonic; the Supervisor sets it."""


@dataclass(slots=True, kw_only=True)
class AllReaped:
    """The exits of all ranks that are dead by now were reported; no signal was sent before."""

    recorded: Mapping[int, int]
    """Running ranks that have recorded an exception: rank -> monotonic ns of the record."""
    taken_ns: int = 0
    """When, monotonic. A fork server reports an exit status some time after the pidfd has reported the death."""


@dataclass(slots=True, kw_only=True)
class TimerExpired:
    """A timer has expired: `SetTimer` had set it, `AnnounceRestart` (backoff), or the actors (deadline)."""

    name: TimerName
    local_rank: int | None = None
    """None: it is a timer of the gang."""


@dataclass(slots=True, kw_only=True)
class ValuesLoaded:
    """The return values were loaded, or given up."""

    complaints: Mapping[int, str]
    """Rank to why its value could not be loaded."""


class Assembled(Bare):
    """The files and actors of the next attempt are ready."""


class NotAssembled(Bare):
    """The files and actors of the next attempt cannot be had: there will be none."""


# Actions


@dataclass(slots=True, kw_only=True)
class LaunchRank:
    """Start the process of a rank."""

    local_rank: int


class AnswerStart(Bare):
    """Answer the start: every rank runs, or has run."""


class ReapAll(Bare):
    """Reap all ranks that are dead, and look which have recorded an exception; then report `AllReaped`."""


@dataclass(slots=True, kw_only=True)
class SendSignal:
    """Signal the process groups of these ranks, and continue those that are suspended."""

    ranks: frozenset[int]
    sig: Signals
    escalation: int


@dataclass(slots=True, kw_only=True)
class SetTimer:
    """Report `TimerExpired` in `delay_s`, instead of when an earlier timer of this name and rank expires."""

    name: TimerName
    delay_s: float
    local_rank: int | None = None
    only_sooner: bool = False
    """Whether an earlier timer stays if it expires first."""


@dataclass(slots=True, kw_only=True)
class ReportUnkillable:
    """Report `WorkerUnkillable` for each of these ranks of which something is left."""

    ranks: frozenset[int]


class DrainTails(Bare):
    """All ranks are reaped: have the Tails show what these had written, and end."""


class AbandonTails(Bare):
    """Have the Tails end now, and go on without return values that are still being loaded."""


class LoadValues(Bare):
    """All ranks are reaped: load their return values if all succeeded; then report `ValuesLoaded`."""


@dataclass(slots=True, kw_only=True)
class SweepUp:
    """Look for processes that have left the groups of the ranks, end them if configured; then report `Swept`."""

    timeout_s: float
    """From SIGTERM to SIGKILL."""


@dataclass(slots=True, kw_only=True)
class HurrySweep:
    """Have the sweep that is under way send SIGKILL after this time, unless it would do so sooner."""

    timeout_s: float


@dataclass(slots=True, kw_only=True)
class AnnounceRestart:
    """Tell subscribers that the gang will be restarted; set the timer ``backoff`` to about `delay_s`."""

    delay_s: float
    """Before jitter."""


class Assemble(Bare):
    """Make the next attempt's files and actors; then report `Assembled` or `NotAssembled`."""


class Publish(Bare):
    """The gang has ended: answer every wait, now and from now on."""


class AnswerClose(Bare):
    """Nothing of the gang is left: answer every close."""


# Facts, beside messages of Workers and Tails that are told as they are


@dataclass(slots=True, kw_only=True)
class RankExited:
    """A rank has exited."""

    end: WorkerExited
    by_itself: bool
    """Whether it ended before our first signal to it."""
    started_ns: int
    """When its process had started, monotonic."""


@dataclass(slots=True, kw_only=True)
class GangStopping:
    """The gang is being stopped."""

    reason: Reason


@dataclass(slots=True, kw_only=True)
class Leaked:
    """A sweep has found processes that had left the groups of their ranks."""

    found: Swept
    pids: Mapping[int, int]
    """Of the ranks."""


if TYPE_CHECKING:
    Event = (
        TailsStarted
        | StartAsked
        | CloseAsked
        | StopOnFailure
        | PeersStopped
        | AllReaped
        | TimerExpired
        | ValuesLoaded
        | Assembled
        | NotAssembled
        | WorkerStarted
        | WorkerFailedToStart
        | WorkerExited
        | WorkerUnkillable
        | GroupEmptied
        | TailEnded
        | Swept
    )
    Action = (
        LaunchRank
        | AnswerStart
        | ReapAll
        | SendSignal
        | SetTimer
        | ReportUnkillable
        | DrainTails
        | AbandonTails
        | LoadValues
        | SweepUp
        | HurrySweep
        | AnnounceRestart
        | Assemble
        | Publish
        | AnswerClose
    )
    Fact = WorkerStarted | WorkerFailedToStart | WorkerUnkillable | TailEnded | RankExited | GangStopping | Leaked


class Decision:
    """What follows from an event."""

    __slots__ = ("actions", "facts")

    def __init__(self) -> None:
        self.actions: list[Action] = []
        """What must be done, in this order."""
        self.facts: list[Fact] = []
        """What has happened, to be told before any action is done."""

    def do(self, *actions: Action) -> None:
        """Add actions."""
        self.actions += actions

    def tell(self, fact: Fact) -> None:
        """Add a fact."""
        self.facts.append(fact)
