"""What goes into the core and what comes out: events, actions, facts.

Named tuples, because Python takes four times as long to make a dataclass, and there are many.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

from supervise.messages import Bare

if TYPE_CHECKING:
    from collections.abc import Mapping
    from signal import Signals

    from supervise.messages import WorkerExited, WorkerStarted

Reason = Literal["peer_failed", "close", "timeout", "start_failed"]
"""Why a gang is stopped."""
TimerName = Literal["grace", "kill", "drain", "backoff", "deadline"]
"""``deadline`` is that of the whole gang, and set by the actors."""


# Events: what Workers and Tails report, beside `WorkerStarted` and `WorkerExited`


class WorkerFailedToStart(NamedTuple):
    """A rank could not be started. Worker -> Supervisor; no process of it exists."""

    local_rank: int
    error: Exception


class WorkerUnkillable(NamedTuple):
    """A rank's process outlived SIGKILL by the bounded wait. Worker -> Supervisor."""

    local_rank: int
    pid: int
    state: str
    """The kernel's word for it, such as ``D`` (uninterruptible) or ``t`` (traced)."""


class GroupEmptied(NamedTuple):
    """The process group of a reaped rank is empty. Worker -> Supervisor."""

    local_rank: int


class Swept(NamedTuple):
    """A sweep has ended."""

    leaked: Mapping[int | None, tuple[int, ...]] = MappingProxyType({})
    """Escaped processes: local rank (None if it is unknown) to pids."""
    ended: bool = False
    """Whether those processes are gone; False if containment is ``group``, which only reports them."""


class TailEnded(NamedTuple):
    """A Tail has shown what it will show and has ended. Tail -> Supervisor, exactly once."""

    name: str
    remaining_bytes: int = 0
    """What the ranks had written and was not shown; it is in the files."""
    error: str | None = None


# Events: what is asked, and answers to actions


class TailsStarted(NamedTuple):
    """The Tails of an attempt were started. Before `StartAsked`, and between `Assemble` and `Assembled`."""

    tails: int
    values: bool = False
    """Whether return values are to be loaded as well, once all ranks have ended."""


class StartAsked(Bare):
    """The start was asked for."""


class CloseAsked(NamedTuple):
    """The end was asked for, or the gang's timeout expired."""

    death_sig: Signals
    timeout_s: float
    reason: Reason = "close"


class StopOnFailure(NamedTuple):
    """From now on a rank that fails stops the others, or does not. A rank that has failed before counts, too."""

    on: bool


class PeersStopped(NamedTuple):
    """The caller is going to stop these ranks, because another has failed: their ends do not count as failures."""

    ranks: frozenset[int]
    at_ns: int = 0
    """When, monotonic; the Supervisor sets it."""


class AllReaped(NamedTuple):
    """The exits of all ranks that are dead by now were reported; no signal was sent before."""

    recorded: Mapping[int, int]
    """Running ranks that have recorded an exception: rank -> monotonic ns of the record."""
    taken_ns: int = 0
    """When, monotonic. A fork server reports an exit status some time after the pidfd has reported the death."""


class TimerExpired(NamedTuple):
    """A timer has expired: `SetTimer` had set it, `AnnounceRestart` (backoff), or the actors (deadline)."""

    name: TimerName
    local_rank: int | None = None
    """None: it is a timer of the gang."""


class ValuesLoaded(NamedTuple):
    """The return values were loaded, or given up."""

    complaints: Mapping[int, str]
    """Rank to why its value could not be loaded."""


class Assembled(Bare):
    """The files and actors of the next attempt are ready."""


class NotAssembled(Bare):
    """The files and actors of the next attempt cannot be had: there will be none."""


# Actions


class LaunchRank(NamedTuple):
    """Start the process of a rank."""

    local_rank: int


class AnswerStart(Bare):
    """Answer the start: every rank runs, or has run."""


class ReapAll(Bare):
    """Reap all ranks that are dead, and look which have recorded an exception; then report `AllReaped`."""


class SendSignal(NamedTuple):
    """Signal the process groups of these ranks, and continue those that are suspended."""

    ranks: frozenset[int]
    sig: Signals
    escalation: int


class SetTimer(NamedTuple):
    """Report `TimerExpired` in `delay_s`, instead of when an earlier timer of this name and rank expires."""

    name: TimerName
    delay_s: float
    local_rank: int | None = None
    only_sooner: bool = False
    """Whether an earlier timer stays if it expires first."""


class ReportUnkillable(NamedTuple):
    """Report `WorkerUnkillable` for each of these ranks of which something is left."""

    ranks: frozenset[int]


class DrainTails(Bare):
    """All ranks are reaped: have the Tails show what these had written, and end."""


class AbandonTails(Bare):
    """End the Tails now, and go on without return values that are still being loaded."""


class LoadValues(Bare):
    """All ranks are reaped: load their return values if all succeeded; then report `ValuesLoaded`."""


class SweepUp(NamedTuple):
    """Look for processes that have left the groups of the ranks, end them if configured; then report `Swept`."""

    timeout_s: float
    """From SIGTERM to SIGKILL."""


class HurrySweep(NamedTuple):
    """Have the sweep that is under way send SIGKILL after this time, unless it would do so sooner."""

    timeout_s: float


class AnnounceRestart(NamedTuple):
    """Tell subscribers that the gang will be restarted; set the timer ``backoff`` to about `delay_s`."""

    delay_s: float
    """Before jitter."""


class Assemble(Bare):
    """Make the next attempt's files and actors; then report `Assembled` or `NotAssembled`."""


class Publish(Bare):
    """The gang has ended: answer every wait, now and from now on."""


class AnswerClose(Bare):
    """Nothing of the gang is left: answer every close."""


# Facts, beside reports of Workers and Tails that are told as they are


class RankExited(NamedTuple):
    """A rank has exited."""

    end: WorkerExited
    by_itself: bool
    """Whether it ended before our first signal to it."""
    started_ns: int
    """When its process had started, monotonic."""


class GangStopping(NamedTuple):
    """The gang is being stopped."""

    reason: Reason


class Leaked(NamedTuple):
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
