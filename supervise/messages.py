"""The messages of a gang: what a Supervisor accepts, and what it tells its subscribers.

Every mapping is keyed by local rank, a number in ``range(nprocs)``. Times are nanoseconds of
`time.monotonic_ns` unless the name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from signal import Signals

    import pykka

    from supervise.result import RunProcsResult

Phase = Literal["new", "starting", "running", "stopping", "restarting", "finished"]
"""The phases of a gang, in this order; with a `RestartPolicy`, ``restarting`` leads back to ``starting``."""


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


class Start(Bare):
    """Launch every rank. The reply is ``{rank: pid}`` when all ranks run.

    If the start fails, the Supervisor reaps the ranks that had started, then replies with an error that names the rank.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Request the result. The reply comes when the gang has finished; any number of waits may be open."""

    timeout: float | None = None
    """Seconds after which the reply is None; None waits without limit."""


class Poll(Bare):
    """Request the result now: a `RunProcsResult`, or None until the gang has finished."""


class Pids(Bare):
    """Request ``{rank: pid}`` of all ranks that were started, including those that have ended."""


class Status(Bare):
    """Request a `GangStatus` now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """Stop the gang. The reply is the result, sent when all processes of the gang are gone. Idempotent."""

    death_sig: Signals | None = None
    """The first signal; None is SIGTERM. SIGKILL kills the ranks at once."""
    timeout: float | None = None
    """Seconds from the first signal to SIGKILL; None is the gang's grace. Also bounds the wait for the logs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Send a signal to the process groups of running ranks. The reply is the set of ranks that were signaled."""

    sig: Signals
    ranks: frozenset[int] | None = None
    """Which ranks; None is all running ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """Send lifecycle messages to `ref`: first those of the present attempt so far, then each new one."""

    ref: pykka.ActorRef[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsubscribe:
    """Send no more lifecycle messages to `ref`."""

    ref: pykka.ActorRef[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GangStatus:
    """The reply to `Status`."""

    phase: Phase
    pids: dict[int, int]
    running: frozenset[int]
    """Ranks that were started and are not reaped yet."""
    leftovers: frozenset[int]
    """Ranks that are reaped while other processes remain in their process group."""
    waiters: int
    """How many `Wait` are open."""
    attempt: int = 0
    """Number of the present attempt: how often the gang was restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoFar:
    """Request a partial result. The reply covers the ranks that have ended if one of them failed; otherwise None.

    PyTorch's contexts send it, because there an agent decides when the other ranks are stopped.
    """

    stop_on_failure: bool
    """Whether, from now on, a rank that fails stops the others."""


# Sent to subscribers


@dataclass(frozen=True, slots=True, kw_only=True)
class GangStarted:
    """All ranks run."""

    pids: dict[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRestarting:
    """An attempt has failed, its processes are gone, and another attempt will start."""

    attempt: int
    """Number of the next attempt; the first restart is 1."""
    max_restarts: int
    delay_s: float
    """Delay before the next attempt starts."""
    result: RunProcsResult
    """Result of the attempt that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangFinished:
    """The gang has ended and will not restart. The last message, sent exactly once."""

    result: RunProcsResult | None
    """None if the start failed or the Supervisor crashed."""
    error: BaseException | None = None
    """Why there is no result; otherwise None."""


# Told by Workers and Tails to the Supervisor; WorkerStarted, WorkerExited and WorkerStopped also to subscribers


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted:
    """A rank's process runs. Worker -> Supervisor."""

    local_rank: int
    pid: int
    started_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerExited:
    """A rank's process has ended and is reaped. Worker -> Supervisor, exactly once per rank and attempt."""

    local_rank: int
    pid: int
    exitcode: int | None
    """0 to 255; ``-N`` when killed by signal N, as in `subprocess`; None when the status was lost."""
    ended_ns: int
    """When the Worker noticed the exit."""
    core_dumped: bool = False
    error_ns: int | None = None
    """When the rank recorded the exception that ended it; None if it recorded none."""
    complaint: str | None = None
    """Why an exit code of 0 is a failure, or what the exit code does not say; otherwise None."""
    has_value: bool = False
    """Whether the return value of the rank's function arrived complete."""
    log_bytes: dict[str, int] = field(default_factory=dict)
    """Size of each of its log files when it was reaped, by path."""
    max_rss_bytes: int | None = None
    cpu_time_s: float | None = None
    group_left: bool = False
    """Whether other processes remain in its process group."""
    oom_kill: bool = False
    """Whether an out-of-memory kill is likely: SIGKILL ended the rank, and its cgroup counted such a kill meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFailedToStart:
    """A rank could not be started. Worker -> Supervisor; no process of it exists."""

    local_rank: int
    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStopped:
    """A signal (SIGSTOP, SIGTTIN, ...) has suspended a rank's process until SIGCONT. Worker -> Supervisor."""

    local_rank: int
    pid: int
    sig: Signals


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerUnkillable:
    """A rank's process outlived SIGKILL by the bounded wait. Worker -> Supervisor."""

    local_rank: int
    pid: int
    state: str
    """The kernel's word for it, such as ``D`` (uninterruptible) or ``t`` (traced)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEmptied:
    """What a rank had left behind in its process group is gone. Worker -> Supervisor."""

    local_rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What had left the ranks' process groups was looked for, and ended if that was wanted. -> Supervisor."""

    leaked: dict[int | None, tuple[int, ...]] = field(default_factory=dict)
    """What was found: local rank (None: it cannot be told) to pids."""
    ended: bool = False
    """Whether those are gone; False where containment is ``group``, which only reports them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TailEnded:
    """A Tail has shown what it will show and has ended. Tail -> Supervisor, exactly once."""

    name: str
    remaining_bytes: int = 0
    """What the ranks had written and was not shown; it is in the files."""
    error: str | None = None


class MemberStopRequested(Bare):
    """Somebody asked a Worker or a Tail to stop. Its Supervisor closes the gang instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorDown:
    """A handler of a Worker or a Tail raised. Worker, Tail -> Supervisor, which kills the gang."""

    who: str
    error: BaseException


# Told by the Supervisor to Workers and Tails


class Launch(Bare):
    """Start your process. Supervisor -> Worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver:
    """Send a signal to your group. Supervisor -> Worker."""

    sig: Signals
    wake: bool = False
    """Whether SIGCONT follows: what is stopped must hear it, too."""


class LookForStop(Bare):
    """Look whether your process is stopped, and say `WorkerStopped` if that is news. Supervisor -> Worker."""


class ReportStuck(Bare):
    """SIGKILL has had its time: say `WorkerUnkillable`. Supervisor -> Worker."""


class Leave(Bare):
    """The gang has ended: leave the registry. Supervisor -> Worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Every rank is reaped: show what they had written, then end. Supervisor -> Tail."""

    sizes: dict[str, int]
    """Bytes to show of each file, by path."""
