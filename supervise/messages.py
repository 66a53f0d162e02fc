"""The messages of a gang: those that a Supervisor accepts, and those that it sends to its subscribers.

Every mapping is keyed by local rank, a number in ``range(nprocs)``. Times are nanoseconds of
`time.monotonic_ns` unless the name says otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from supervise._record import field, record

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet
    from signal import Signals

    import pykka

    from supervise.result import RankEnd, RunProcsResult
    from supervise.stacks import RankStacks  # noqa: F401 - for the type of a reply, which is a string
    from supervise.watchdog import HangTier

Phase = Literal["new", "starting", "running", "stopping", "restarting", "finished"]
"""The phases of a gang, in this order; with a `RestartPolicy`, ``restarting`` leads back to ``starting``."""


RankState = Literal[
    "waiting",
    "starting",
    "ready",
    "suspended",
    "returned",
    "stopping",
    "backoff",
    "finished",
    "failed",
    "terminated",
]
"""The state of a rank. ``waiting``: for its launch. ``suspended``: by SIGSTOP or SIGTSTP. ``returned``: its
function has returned, and its process still runs; with ``hold_returned``, until all functions have returned.
``backoff``: it waits for its restart."""


if TYPE_CHECKING:
    _Reply_co = TypeVar("_Reply_co", covariant=True)

    class Ask(Generic[_Reply_co]):
        """Base of the messages that a Supervisor replies to, with the type of the reply."""
else:

    class Ask:
        """Base of the messages that a Supervisor replies to, with the type of the reply."""

        __slots__ = ()

        def __class_getitem__(cls, _: object) -> type:
            """Return the class: only type checkers need the type of the reply."""
            return cls


class Bare:
    """Base of messages without fields. Instances of a class are equal. Not a dataclass, which would slow the import."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        """Return whether `other` has the same class."""
        return type(self) is type(other)

    def __hash__(self) -> int:
        """Return the hash of the class."""
        return hash(type(self))

    def __repr__(self) -> str:
        """Return the class name, as a call."""
        return f"{type(self).__name__}()"


# Accepted by the Supervisor


class Start(Bare, Ask["dict[int, int]"]):
    """Launch every rank. The reply is ``{rank: pid}`` when all ranks are ready.

    A rank is ready when its process runs, or when the conditions of its `ready` are met. The
    start fails in four cases: a rank cannot be launched; a rank with such conditions is not ready in time; such a rank
    ends before it is ready, whatever its exit code; in a gang with such conditions, any rank fails before all ranks are
    ready. If the start fails, the Supervisor reaps the ranks that had started, then replies with an error that names
    the rank.
    """


@record
class Wait(Ask["_Reply_co"]):
    """Request the result. The reply comes when the gang has finished; any number of waits may be pending."""

    timeout: float | None = None
    """Seconds after which the reply is None; None waits without limit."""

    if TYPE_CHECKING:

        @overload
        def __init__(self: Wait[RunProcsResult], *, timeout: None = None) -> None: ...
        @overload
        def __init__(self: Wait[RunProcsResult | None], *, timeout: float | None) -> None: ...
        def __init__(self: Any, *, timeout: float | None = None) -> None: ...


class Poll(Bare, Ask["RunProcsResult | None"]):
    """Request the result now: a `RunProcsResult`, or None until the gang has finished."""


class Pids(Bare, Ask["dict[int, int]"]):
    """Request ``{rank: pid}`` of all ranks that were started, including those that have ended."""


class Status(Bare, Ask["GangStatus"]):
    """Request a `GangStatus` now."""


@record
class Close(Ask["RunProcsResult | None"]):
    """Stop the gang. The reply is the result, sent when all processes of the gang are gone. Idempotent."""

    death_sig: Signals | None = None
    """The first signal, except to roles with a `stop_signal`; None is SIGTERM. SIGKILL kills the ranks at once."""
    timeout: float | None = None
    """Seconds from the first signal to SIGKILL; None is the gang's grace. Also bounds the wait for the logs.

    A gang with roles stops a role when no process of the roles that need it is left. With None, each role has its own
    grace, else that of the gang; a number bounds the whole stop."""


@record
class Signal(Ask["frozenset[int]"]):
    """Send a signal to running ranks. The reply is the set of ranks that were signaled."""

    sig: Signals
    ranks: AbstractSet[int] | None = None
    """Which ranks; None is all running ranks."""
    group: bool = False
    """Whether the signal also goes to the processes that a rank has started, by its process group.

    Most of them do not handle a signal such as SIGUSR1, which then ends them.
    """


@record(kw_only=False)
class RestartRanks(Ask["dict[int, int]"]):
    """Restart exactly these ranks, whatever the strategy.

    The restart needs no `RestartPolicy`, and does not count toward its limit. A running rank is stopped first. A rank
    in backoff starts at once, and so do the ranks that wait with it. A rank that has ended or was terminated starts.
    The reply is ``{rank: pid}`` when all of them are ready. If the gang ends first, or a rank fails before it is ready,
    the reply is a `SuperviseError` with the reason; a `RestartPolicy` may still start the rank again.
    """

    ranks: AbstractSet[int]


@record(kw_only=False)
class TerminateRanks(Ask["dict[int, int]"]):
    """Stop exactly these ranks, which stay down until a `RestartRanks`. Their ends are not failures.

    The reply comes when no process of these ranks is left. It is ``{rank: pid}`` of the processes that have ended; a
    rank whose last life could not be launched has no pid. A rank that had ended already stays as it is. A rank in
    backoff does not restart. The termination of the last rank ends the gang. While the gang starts, the ranks are
    stopped only when the start is over.
    """

    ranks: AbstractSet[int]


@record(kw_only=False)
class Reload(Ask["dict[int, bool]"]):
    """Send ready ranks their ``reload_signal``, each to its own process.

    The reply is rank to whether it has reloaded; False if neither the rank's role nor the gang has a reload signal. It
    leaves out ranks that do not run, are not ready or are being stopped. A rank with ``ready="notify"`` that answers by
    ``RELOADING=1`` has reloaded when it sends ``READY=1``; one that sends neither within 2 seconds counts as reloaded,
    and so does one without ``notify`` that still runs 0.3 seconds after the signal. If a rank ends meanwhile, or its
    ``ready_timeout_s`` expires, the reply is a `SuperviseError`.
    """

    ranks: AbstractSet[int] | None = None
    """Which ranks; None is all of them."""


@record
class Stacks(Ask["dict[int, RankStacks]"]):
    """Request the stacks of the threads of running ranks. The reply is ``{rank: RankStacks}``, in at most 2.5 s.

    The reply leaves out ranks that have ended. `supervise.stacks.group_stacks` returns the reply as text.
    """

    ranks: AbstractSet[int] | None = None
    """Which ranks; None is all running ranks."""


@record
class Subscribe(Ask["None"]):
    """Send lifecycle messages to `ref`: first those of the current life of each rank, then each new one.

    Raises:
        SpecError: `ref` is not an actor, or is a Supervisor, which would take them for reports of its own ranks.
    """

    ref: pykka.ActorRef[Any]


@record
class Unsubscribe(Ask["None"]):
    """Send no more lifecycle messages to `ref`."""

    ref: pykka.ActorRef[Any]


@record
class RankStatus:
    """The current state of one rank."""

    pid: int | None
    """Pid of its last process; None if none was started."""
    state: RankState
    attempt: int
    """Number of its current life; the first is 0."""
    restarts: int
    """Number of its restarts."""
    status: str | None = None
    """The last status text that its current life has reported by `supervise.notify`; None if it has reported none."""
    step: int | None = None
    """The last step that its current life has reported."""
    beat_age_s: float | None = None
    """Seconds since the last heartbeat or higher step of its current life."""
    role: str = ""
    """Name of its role; the gang's name if the gang has no roles."""
    role_rank: int = 0
    """Its number within the role."""


@record
class GangStatus:
    """The reply to `Status`."""

    phase: Phase
    pids: dict[int, int]
    running: frozenset[int]
    """Ranks that were started and are not reaped yet."""
    leftovers: frozenset[int]
    """Ranks that are reaped while other processes remain in their process group."""
    waiters: int
    """Number of `Wait` requests that await a reply."""
    attempt: int = 0
    """Number of the current attempt, greater than that of every earlier life of a rank. The first is 0."""
    ranks: dict[int, RankStatus] = field(default_factory=dict)
    """The current state of each rank."""


@record
class SoFar(Ask["RunProcsResult | None"]):
    """Request a partial result. The reply covers the ranks that have ended; it is None if none of them failed.

    The contexts of `start_processes` send this message, because PyTorch lets an agent decide when the other ranks are
    stopped.
    """

    stop_on_failure: bool
    """Whether, from now on, a rank that fails stops the others."""


# Sent to subscribers


@record
class GangStarted:
    """All ranks are ready."""

    pids: dict[int, int]


@record
class GangRestarting:
    """An attempt has failed, its processes are gone, and another attempt will start."""

    attempt: int
    """Number of the next attempt, greater than that of every life of a rank so far."""
    max_restarts: int
    delay_s: float
    """Delay before the next attempt starts."""
    result: RunProcsResult
    """Result of the attempt that failed."""
    left_out: frozenset[int] = frozenset()
    """Local ranks that do not start again: temporary ones that have ended, and those that the caller had terminated."""
    restarts: int = 0
    """Number of restarts that count toward `max_restarts` now."""


@record
class GangFinished:
    """The gang has ended and will not restart. The last message, sent exactly once."""

    result: RunProcsResult | None
    """None if the start failed or the Supervisor crashed."""
    error: BaseException | None = None
    """Why there is no result; otherwise None."""


@record
class WorkerRestarting:
    """A rank has ended or was stopped, no process of it is left, and it will start again; the others continue.

    Subscribers receive it once for each life, even if another rank's failure delays the next life beyond `delay_s`.
    """

    local_rank: int
    attempt: int
    """Number of the next life, greater than that of the life before and that of the gang's attempt."""
    delay_s: float
    """Delay before the next life starts."""
    end: RankEnd
    """The end of the life that is replaced."""
    restarts: int = 0
    """Number of restarts, of all ranks of the gang, that count toward the limit now."""


# Sent by Workers to the Supervisor, and by the Supervisor to subscribers


@record
class WorkerStarted:
    """A rank's process runs. Worker -> Supervisor."""

    local_rank: int
    pid: int
    started_ns: int
    """Time at which the launch of the process began."""
    attempt: int = 0
    """Number of the rank's life; the first is 0."""


@record
class WorkerReady:
    """A rank is ready; not sent with ``ready="exec"``. Supervisor -> subscribers."""

    local_rank: int
    pid: int
    ready_ns: int
    """When the Supervisor read the report."""
    attempt: int = 0
    """Number of the rank's life; the first is 0."""


@record
class WorkerHung:
    """A rank has given no sign of life for too long; see `Watchdog`. Supervisor -> subscribers, once until the next."""

    local_rank: int
    attempt: int
    """Number of the rank's life; the first is 0."""
    tier: HangTier
    """What was missing: ``heartbeat``, ``output`` or ``answer``."""
    age_s: float
    """Seconds since its last sign of life."""
    step: int | None
    """The last step that it has reported."""
    status: str | None
    """The last status that the rank has reported; with ``answer``, the probe and its last answer."""
    evidence: str = ""
    """Why the watchdog names this rank, if several ranks fell silent together at the same step: ``by its stack: ...``,
    ``silent longest: the stacks are alike``, or the rank that exited or returned before; also which stacks could not be
    read. "" if silence or the steps decide."""


@record
class WorkerExited:
    """A rank's process has ended and is reaped. Worker -> Supervisor, exactly once per rank and life."""

    local_rank: int
    pid: int
    exitcode: int | None
    """0 to 255; ``-N`` when killed by signal N, as in `subprocess`; None when the status was lost."""
    ended_ns: int
    """When the Worker noticed the exit."""
    core_dumped: bool = False
    error_ns: int | None = None
    """When the rank recorded the exception that ended it; None if it recorded none."""
    lost_peer: bool = False
    """Whether that exception says that a connection to another process broke."""
    complaint: str | None = None
    """Why an exit code of 0 is a failure, or a fact that the exit code does not show; otherwise None."""
    has_value: bool = False
    """Whether the complete return value of the rank's function has arrived."""
    lingered: str = ""
    """The threads of the rank, if it did not exit within five seconds after its function had returned; otherwise ""."""
    log_bytes: dict[str, int] = field(default_factory=dict)
    """Size of each of its log files when it was reaped, by path."""
    max_rss_bytes: int | None = None
    cpu_time_s: float | None = None
    group_left: bool = False
    """Whether other processes remain in its process group."""
    oom_kill: bool = False
    """Whether an out-of-memory kill is likely: SIGKILL ended the rank, and its cgroup counted such a kill meanwhile."""
    attempt: int = 0
    """Number of the rank's life; the first is 0."""
    step: int | None = None
    """The last step that it has reported, even if just before its end."""
    status: str | None = None
    """The last status text that it has reported."""


@record
class WorkerStopped:
    """A signal (SIGSTOP, SIGTTIN, ...) has suspended a rank's process until SIGCONT. Worker -> Supervisor."""

    local_rank: int
    pid: int
    sig: Signals
