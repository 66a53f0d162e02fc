"""Everything the actors say to each other. What is not here cannot be said.

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
"""The life of a gang, in this order; ``restarting`` goes back to ``starting`` where a `RestartPolicy` is given."""


class Bare:
    """A message that says all by its name. Two of a kind are equal; not a dataclass, which takes long to be made."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        """Return whether `other` is of the same kind."""
        return type(self) is type(other)

    def __hash__(self) -> int:
        """Return the hash of the kind."""
        return hash(type(self))

    def __repr__(self) -> str:
        """Return the kind, as it is called."""
        return f"{type(self).__name__}()"


# Asked of the Supervisor


class Start(Bare):
    """Launch every rank. The reply is ``{rank: pid}``, once all run.

    Or the start has failed: every rank that had started is reaped, and the error names the rank.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Ask for the result. The reply comes when there is one; any number of waits may be open."""

    timeout: float | None = None
    """Seconds after which the reply is None; None waits for ever."""


class Poll(Bare):
    """Ask for the result, now: a `RunProcsResult`, or None while there is none."""


class Pids(Bare):
    """Ask for ``{rank: pid}`` of the ranks that were started, also after their end."""


class Status(Bare):
    """Ask for a `GangStatus`, now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """Stop the gang. The reply, the result, comes when nothing of it is left; asking twice is harmless."""

    death_sig: Signals | None = None
    """The polite signal; None is SIGTERM. SIGKILL kills now."""
    timeout: float | None = None
    """Seconds from the polite signal to SIGKILL; None is the gang's grace. Also bounds the wait for the logs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Send a signal to the groups of running ranks, without stopping the gang. The reply is the ranks reached."""

    sig: Signals
    ranks: frozenset[int] | None = None
    """Which ranks; None is all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """Have the lifecycle told to `ref`: what has happened so far (in this attempt), then what happens."""

    ref: pykka.ActorRef[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsubscribe:
    """Tell nothing more to `ref`."""

    ref: pykka.ActorRef[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GangStatus:
    """The reply to `Status`."""

    phase: Phase
    pids: dict[int, int]
    running: frozenset[int]
    """Ranks that were started and are not reaped."""
    leftovers: frozenset[int]
    """Ranks that are reaped and left processes behind in their group."""
    waiters: int
    """How many `Wait` are open."""
    attempt: int = 0
    """How many times it was restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoFar:
    """What has failed by now? The reply is a result of the ranks that have ended, while others run on; otherwise None.

    Asked by PyTorch's contexts, where an agent decides when the others are ended.
    """

    stop_on_failure: bool
    """Whether a failed rank stops the others from now on."""


# Told to subscribers


@dataclass(frozen=True, slots=True, kw_only=True)
class GangStarted:
    """Every rank runs."""

    pids: dict[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRestarting:
    """An attempt has failed, nothing of it is left, and another will be started."""

    attempt: int
    """Number of the attempt that will be started; the first restart is 1."""
    max_restarts: int
    delay_s: float
    """How long until then."""
    result: RunProcsResult
    """Of the attempt that has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangFinished:
    """The gang has ended, and will not be restarted. The last message, told exactly once."""

    result: RunProcsResult | None
    """None where there is none: the start failed, or the supervisor crashed."""
    error: BaseException | None = None
    """Why there is no result."""


# Told by Workers and Tails to the Supervisor; WorkerStarted, WorkerExited and WorkerStopped also to subscribers


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted:
    """A rank's process runs. Worker -> Supervisor."""

    local_rank: int
    pid: int
    started_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerExited:
    """A rank's process is gone and reaped. Worker -> Supervisor, exactly once a rank."""

    local_rank: int
    pid: int
    exitcode: int | None
    """0 to 255; ``-N`` when killed by signal N, as in `subprocess`; None when the status was lost."""
    ended_ns: int
    """When the death was noticed."""
    core_dumped: bool = False
    error_ns: int | None = None
    """When the rank recorded the exception it died of."""
    complaint: str | None = None
    """Why an exit code of 0 is a failure all the same, or what the exit code alone does not say."""
    has_value: bool = False
    """Whether the rank's function returned a value that arrived whole."""
    log_bytes: dict[str, int] = field(default_factory=dict)
    """Size of each of its log files when it was reaped, by path."""
    max_rss_bytes: int | None = None
    cpu_time_s: float | None = None
    group_left: bool = False
    """Whether something lives on in its process group."""
    oom_kill: bool = False
    """Whether it was killed, and the kernel has counted a kill for want of memory in its cgroup meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFailedToStart:
    """A rank could not be started. Worker -> Supervisor; no process of it exists."""

    local_rank: int
    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStopped:
    """A rank's process was stopped by a signal (SIGSTOP, SIGTTIN, ...): it waits for SIGCONT. Worker -> Supervisor."""

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
