"""The inputs and outputs of the core: events, actions and facts.

The classes are named tuples, because the definition of a dataclass takes Python far longer, at every import.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeAlias

from supervise._record import NamedTuple
from supervise.messages import Bare, WorkerExited, WorkerStarted

if TYPE_CHECKING:
    from collections.abc import Mapping
    from signal import Signals

    from supervise.result import Outcome, Role


Reason = Literal["peer_failed", "close", "timeout", "start_failed"]
"""The reason why a gang is stopped."""
StopOrder = Literal["", "own", "each", "whole"]
"""The way in which a stop treats roles.

``""`` and ``own``: it stops all roles at once. ``each`` and ``whole``: it signals a role when nothing is left of the
roles that need it. With ``own`` and ``each``, the timeout is that of each role that has none of its own; otherwise it
limits the whole stop.
"""
TimerName = Literal["grace", "kill", "drain", "backoff", "deadline"]
"""``deadline`` is the timeout of the gang, a timer that the actors set."""


AskKind = Literal["restart", "terminate"]
"""What a caller requests for some ranks."""


# Events: reports of Workers and Tails, in addition to `WorkerStarted` and `WorkerExited`


class WorkerFailedToStart(NamedTuple):
    """The launch of a rank failed, so the rank has no process. Worker -> Supervisor."""

    local_rank: int
    error: Exception
    at_ns: int = 0
    """Monotonic time."""
    attempt: int | None = None
    """The attempt, if the environment of the rank does not have it, because no file of the attempt could be made."""


class WorkerUnkillable(NamedTuple):
    """A process of a rank survived SIGKILL for the whole bounded wait. Worker -> Supervisor."""

    local_rank: int
    pid: int
    state: str
    """The kernel's letter for the process state, such as ``D`` (uninterruptible) or ``t`` (traced)."""


class RankReady(NamedTuple):
    """A rank has reported that it is ready."""

    local_rank: int
    attempt: int
    """Number of the rank's life."""
    at_ns: int = 0
    """Monotonic time."""


class RankFaulted(NamedTuple):
    """A running rank has failed without an exit: the rank hangs, or was not ready in time. Its end will be a cause."""

    local_rank: int
    attempt: int
    """Number of the rank's life."""
    why: str
    """Message of the failure."""
    at_ns: int
    """Monotonic time."""


class RankReturned(NamedTuple):
    """The function of a rank has returned; its process waits for its release. Worker -> Supervisor."""

    local_rank: int


class GroupEmptied(NamedTuple):
    """The process group of a reaped rank is empty. Worker -> Supervisor."""

    local_rank: int


class Swept(NamedTuple):
    """A sweep has ended."""

    leaked: Mapping[int | None, tuple[int, ...]] = MappingProxyType({})
    """Escaped processes: local rank (None if it is unknown) to pids."""
    ended: bool = False
    """Whether the escaped processes have ended. False if containment is ``group``, which only reports them."""
    key: int = 0
    """Number of a batch; 0 for the sweep of the gang."""
    last: bool = True
    """Whether no other sweep for the same request runs: roles with different containment are swept separately."""


class TailDrained(Bare):
    """A Tail has shown what the ranks wrote, and follows leftovers until the next drain. Tail -> Supervisor."""


class TailEnded(NamedTuple):
    """A Tail has ended and shows nothing more. Tail -> Supervisor, exactly once."""

    name: str
    remaining_bytes: int = 0
    """Bytes that the ranks wrote and the Tail did not show. The files of the ranks have these bytes."""
    error: str | None = None
    drained: bool = False
    """Whether `TailDrained` came before."""


# Events: requests, and answers to actions


class TailsStarted(NamedTuple):
    """The Tails of an attempt were started.

    In the first attempt, this event comes before `StartAsked`; in later ones, between `Assemble` and `Assembled`.
    """

    tails: int
    values: bool = False
    """Whether return values will be loaded after all ranks have ended."""


class StartAsked(Bare):
    """A caller requested the start."""


class CloseAsked(NamedTuple):
    """A caller requested the end of the gang, or the timeout of the gang expired."""

    death_sig: Signals
    timeout_s: float
    reason: Reason = "close"
    order: StopOrder = ""


class StopOnFailure(NamedTuple):
    """Set whether the failure of a rank stops the others. The setting applies also to a rank that has failed before."""

    on: bool


class PeersStopped(NamedTuple):
    """The caller is about to stop these ranks because another rank has failed.

    The ends of these ranks are not causes.
    """

    ranks: frozenset[int]
    at_ns: int = 0
    """Monotonic time; the Supervisor sets it."""


class AllReaped(NamedTuple):
    """Workers have reported every rank that is dead. So the first signal may be sent."""

    recorded: Mapping[int, int]
    """Running ranks that have recorded an exception: rank to monotonic ns of the record."""
    taken_ns: int = 0
    """Monotonic time of the reap.

    A fork server reports an exit status some time after the pidfd has reported the death.
    """


class TimerExpired(NamedTuple):
    """A timer has expired.

    It was set by `SetTimer`, by an announcement (``backoff``), or by the actors (``deadline``).
    """

    name: TimerName
    key: int = 0
    """Number of a batch; 0 for a timer of the gang."""
    role: int | None = None
    """Number of the role whose grace it is; None for that of the whole batch."""


class RanksAsked(NamedTuple):
    """A caller requested the restart or the end of these ranks."""

    kind: AskKind
    key: int
    """Unique number of the request."""
    ranks: frozenset[int]


class ValuesLoaded(NamedTuple):
    """The return values were loaded, or the load was abandoned."""

    complaints: Mapping[int, str]
    """Rank to the reason why its value could not be loaded."""


class Assembled(Bare):
    """The files and actors of the next attempt are ready."""


class NotAssembled(NamedTuple):
    """The files or actors of the next attempt could not be made. No rank of that attempt was launched."""

    error: Exception
    at_ns: int = 0
    """Monotonic time."""


# Actions


class LaunchRank(NamedTuple):
    """Start the process of a rank."""

    local_rank: int


class AnswerStart(Bare):
    """Answer the start, because every rank was started."""


class ReapAll(Bare):
    """Reap all dead ranks, and check which of the other ranks have recorded an exception; then report `AllReaped`."""


class SendSignal(NamedTuple):
    """Signal the process groups of these ranks. Send SIGCONT to suspended groups."""

    ranks: frozenset[int]
    sig: Signals


class ReleaseRanks(NamedTuple):
    """Let these ranks exit, whose functions have returned."""

    ranks: frozenset[int]


class SetTimer(NamedTuple):
    """Report `TimerExpired` in `delay_s`. The timer replaces an earlier timer of the same name, key and role."""

    name: TimerName
    delay_s: float
    key: int = 0
    only_sooner: bool = False
    """Whether an earlier timer stays if it would expire sooner."""
    role: int | None = None


class ReportUnkillable(NamedTuple):
    """Report `WorkerUnkillable` for each of these ranks that still has a process."""

    ranks: frozenset[int]


class DrainTails(Bare):
    """Order the Tails to show all output and then end. All ranks are reaped.

    A Tail that shows the output of leftovers reports `TailDrained` instead, and ends after a second order.
    """


class AbandonTails(Bare):
    """End the Tails now, and abandon the load of the return values."""


class LoadValues(Bare):
    """Load the return values if all ranks succeeded; then report `ValuesLoaded`. All ranks are reaped."""


class SweepUp(NamedTuple):
    """Search for escaped processes, end them if the containment does so, then report `Swept` for each containment."""

    timeout_s: float
    """Time from SIGTERM to SIGKILL."""
    ranks: frozenset[int] | None = None
    """The ranks whose present lives are swept; None for the whole gang."""
    key: int = 0
    """Number of a batch; 0 for the sweep of the gang."""


class HurrySweep(NamedTuple):
    """Make the running sweep of the gang send SIGKILL after this time, unless the sweep sends it sooner anyway."""

    timeout_s: float


class Verdict(NamedTuple):
    """The decision on outcome, causes and roles."""

    outcome: Outcome
    roles: dict[int, Role]
    """Rank to role, for each rank that was started."""
    blamed: tuple[int, ...]
    """The ranks to list as failures.

    If the outcome is ``failed``, these are the causes, the root cause first. Otherwise, they were stopped: after a
    close, the ranks that it cut short and that did not exit with code 0; after a timeout, all ranks that it cut short.
    """


class AnnounceRestart(NamedTuple):
    """Tell subscribers that the gang will restart. Set the timer ``backoff`` to `delay_s` with jitter."""

    delay_s: float
    """Before jitter."""
    verdict: Verdict
    """The verdict on the attempt that failed. Requests that came during its stop do not change its causes."""


class AnnounceRestarts(NamedTuple):
    """Tell subscribers that these ranks will restart.

    Set the timer ``backoff`` of the batch to `delay_s` with jitter.
    """

    number: int
    """Number of the batch."""
    ranks: tuple[int, ...]
    delay_s: float
    """Delay without jitter."""


class RelaunchRank(NamedTuple):
    """Make the next life of a rank and start its process."""

    local_rank: int
    attempt: int


class AnswerAsk(NamedTuple):
    """Answer the request with this key: its ranks run again, or they are down."""

    key: int
    ranks: frozenset[int]


class FailAsks(NamedTuple):
    """Answer the requests with these keys by an error."""

    keys: tuple[int, ...]
    why: str
    cause: int | None = None
    """The rank whose failure is the reason; None for another reason."""


class Assemble(Bare):
    """Make the files and actors of the next attempt; then report `Assembled` or `NotAssembled`."""


class Publish(Bare):
    """Answer all present and later waits, because the gang has ended."""


class AnswerClose(Bare):
    """Answer every close, because no process of the gang remains."""


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
        | RankReady
        | RankFaulted
        | RankReturned
        | GroupEmptied
        | TailEnded
        | Swept
        | RanksAsked
    )
    Action = (
        LaunchRank
        | AnswerStart
        | ReapAll
        | SendSignal
        | ReleaseRanks
        | SetTimer
        | ReportUnkillable
        | DrainTails
        | AbandonTails
        | LoadValues
        | SweepUp
        | HurrySweep
        | AnnounceRestart
        | AnnounceRestarts
        | RelaunchRank
        | AnswerAsk
        | FailAsks
        | Assemble
        | Publish
        | AnswerClose
    )


# The decision of the core on an event: actions, and facts for events and subscribers


class RankExited(NamedTuple):
    """A rank has exited."""

    end: WorkerExited
    by_itself: bool
    """Whether the rank ended before the first signal."""
    failed: bool
    """Whether it ended without success."""
    started_ns: int
    """Monotonic time of the start of the rank's process."""


class StartFailed(NamedTuple):
    """The first start has failed, because a rank was not ready in time, or failed before all ranks were ready."""

    local_rank: int
    why: str


class LifeReplaced(NamedTuple):
    """The next life of a rank is about to be launched."""

    local_rank: int


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
