"""The state of a gang. Only `decide` and the functions that it calls change it.

Plain classes: to define a dataclass takes Python forty times as long, at every import.
"""

from __future__ import annotations

from signal import Signals
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from supervise._core.facts import StartFailed
    from supervise._core.steps import RankFaulted, Reason, StopOrder, WorkerFailedToStart, WorkerUnkillable
    from supervise.messages import Phase, WorkerExited
    from supervise.restarts import RestartKind, RestartPolicy, Strategy

RankState = Literal["waiting", "starting", "running", "overdue", "ended", "lost"]
"""``overdue``: its launch was pending when the wait after SIGKILL expired. ``lost``: its process survived SIGKILL."""


class Rank:
    """One rank and its present life."""

    __slots__ = (
        *(
            "attempt",
            "by_itself",
            "caused",
            "dismissed",
            "end",
            "excused_ns",
            "fault",
            "heeded",
            "kind",
            "notifies",
            "pid",
            "ready",
            "recorded_ns",
            "restarted_ns",
        ),
        *("restarts", "started_ns", "state", "streak", "terminated", "told"),
    )

    def __init__(self, kind: RestartKind, *, notifies: bool = False) -> None:
        self.kind: RestartKind = kind
        """After which end a policy restarts this rank."""
        self.notifies = notifies
        """Whether it reports that it is ready; otherwise it is ready when its process runs."""
        self.restarts = 0
        """Number of replaced lives."""
        self.streak = 0
        """Number of consecutive restarts that its ends have caused, for the backoff."""
        self.restarted_ns = 0
        """When its end last caused a restart."""
        self.begin_life(0)

    def begin_life(self, attempt: int) -> None:
        """Reset everything that belongs to one life."""
        self.attempt = attempt
        """Number of the life; the first is 0."""
        self.state: RankState = "waiting"
        self.pid: int | None = None
        """None until its process has started; kept after its end."""
        self.started_ns = 0
        self.ready = not self.notifies
        self.fault: RankFaulted | None = None
        """Why it has failed while it ran. Its end is a cause, whatever its exit code."""
        self.end: WorkerExited | None = None
        self.by_itself = False
        """Whether it ended before the first signal."""
        self.recorded_ns: int | None = None
        """When it recorded an exception, if it was alive at the first signal and had recorded one by then."""
        self.excused_ns: int | None = None
        """When the caller decided to stop it because another rank had failed. A later end is not a cause."""
        self.told = False
        """Whether a restart set has signaled it. Its end is not a cause."""
        self.heeded = False
        """Whether the strategy has dealt with its end."""
        self.caused: Literal["counted", "uncounted", "terminated", ""] = ""
        """Whether its end caused the restart that follows, and whether that counts toward the limit; or the caller had
        terminated it before."""
        self.terminated = False
        """Whether the caller asked for its end, so that it stays down."""
        self.dismissed = False
        """Whether it is a service that is stopped because all ranks of other roles have ended."""


class RestartSet:
    """Ranks that are stopped together, and then start again or stay down. No rank is in two sets."""

    __slots__ = ("delay_s", "down", "killed", "number", "pending", "ranks", "state")

    def __init__(self, number: int) -> None:
        self.number = number
        """Key of its timers and of its sweep."""
        self.state: Literal["stopping", "sweeping", "waiting"] = "stopping"
        """``waiting``: for the backoff."""
        self.ranks: set[int] = set()
        self.pending: set[int] = set()
        """Ranks with a process, a leftover, or a pending launch."""
        self.down: set[int] = set()
        """Ranks that stay down."""
        self.delay_s = 0.0
        """Delay before the restart, without jitter."""
        self.killed = False
        """Whether SIGKILL was sent."""


class Ask:
    """A pending request to restart or to terminate ranks."""

    __slots__ = ("attempt", "kind", "pending", "ranks")

    def __init__(self, kind: Literal["restart", "terminate"], ranks: frozenset[int], attempt: int) -> None:
        self.kind: Literal["restart", "terminate"] = kind
        self.ranks = ranks
        self.pending = set(ranks)
        """Ranks that have not started again, or are not down."""
        self.attempt = attempt
        """The gang's attempt at the time of the request."""


class Stop:
    """The stop of the present attempt."""

    __slots__ = ("death_sig", "killed", "order", "reaped_ns", "reason", "signaled", "timeout_s", "turn", "turn_killed")

    def __init__(self) -> None:
        self.reason: Reason | None = None
        """The first reason. None if there is no stop, or if it concerns only leftovers."""
        self.death_sig = Signals.SIGTERM
        """The first signal."""
        self.timeout_s = 0.0
        """Time from the first signal to SIGKILL."""
        self.signaled = False
        """Whether the first signal was sent. A rank that ends later is not a cause."""
        self.reaped_ns = 0
        """When all dead ranks were reaped. A rank that had died before then ended by itself, even if reported later."""
        self.killed = False
        """Whether SIGKILL was sent to all ranks."""
        self.order: StopOrder = ""
        self.turn: int | None = None
        """The role that is being stopped, and below which no role was signaled; None if all are stopped at once."""
        self.turn_killed = False
        """Whether SIGKILL was sent to that role."""


class Drain:
    """The wait for output and return values after all ranks have ended."""

    __slots__ = ("begun", "tails", "values")

    def __init__(self) -> None:
        self.tails = 0
        """Tails that have not ended."""
        self.values = False
        """Whether return values have yet to be loaded."""
        self.begun = False

    @property
    def pending(self) -> bool:
        """Whether a Tail or the return values are not ready."""
        return self.tails > 0 or self.values


class Sweep:
    """The search for escaped processes."""

    __slots__ = ("state", "timeout_s")

    def __init__(self) -> None:
        self.state: Literal["due", "asked", "done"] = "due"
        self.timeout_s: float | None = None
        """Time from SIGTERM to SIGKILL, if a later close has shortened it. None if the timeout of the stop applies."""


class Gang:
    """A gang and its present attempt. Ranks are numbers in ``range(nprocs)``."""

    def __init__(
        self,
        *,
        nprocs: int,
        grace_s: float,
        window: int = 1,
        kill_wait_s: float = 5.0,
        stop_on_failure: bool = True,
        policy: RestartPolicy | None = None,
        strategy: Strategy = "one_for_all",
        kinds: Sequence[RestartKind] | None = None,
        success: frozenset[int] = frozenset({0}),
        notifies: Collection[int] = (),
        role_of: Sequence[int] | None = None,
        services: frozenset[int] = frozenset(),
        stop_signal: Signals = Signals.SIGTERM,
    ) -> None:
        """Describe a gang that is not started.

        Args:
            nprocs: Number of ranks.
            grace_s: Time from the first signal to SIGKILL.
            window: Largest number of pending launches.
            kill_wait_s: Time from SIGKILL until the remaining processes are reported as unkillable.
            stop_on_failure: Whether the failure of a rank stops the others.
            policy: When to restart ranks; None for never.
            strategy: Which ranks the failure of a rank concerns.
            kinds: Restart kind of each rank; None: the policy's for all.
            success: Exit codes that are a success.
            notifies: Ranks that report that they are ready; the others are ready when they run.
            role_of: Number of each rank's role, in ascending order from 0; None: all ranks have one role.
            services: Ranks that are stopped once all others have ended.
            stop_signal: The first signal of each stop that the gang itself decides.
        """
        self.nprocs = nprocs
        self.grace_s = grace_s
        self.window = window
        self.kill_wait_s = kill_wait_s
        self.stop_on_failure = stop_on_failure
        self.policy = policy
        self.strategy: Strategy = strategy
        self.success = success
        self.role_of = tuple(role_of or (0,) * nprocs)
        self.roles = max(self.role_of) + 1
        """Number of roles."""
        self.services = services
        self.stop_signal = stop_signal
        self.attempt = 0
        """Number of the present attempt, which all ranks began together; the first is 0."""
        self.all_restarts_ns: tuple[int, ...] = ()
        """Monotonic times of the restarts of the whole gang, for the backoff, including those that do not count."""
        self.asks: dict[int, Ask] = {}
        """Pending requests by key."""
        self.sets_made = 0
        """Number of restart sets so far."""
        kind: RestartKind = policy.restart if policy is not None else "transient"
        self.ranks = [Rank(each, notifies=number in notifies) for number, each in enumerate(kinds or (kind,) * nprocs)]
        self.notifies = bool(notifies)
        """Whether the start waits for the readiness of a rank."""
        self.restarts_ns: tuple[int, ...] = ()
        """Monotonic times of the restarts that count toward the limit."""
        self.phase: Phase = "new"
        self.begin_attempt()

    def begin_attempt(self) -> None:
        """Reset everything that belongs to one attempt."""
        self.end_asked = False
        """Whether a close was requested or the timeout expired. If so, no restart follows and the drain is bounded."""
        self.launched = 0
        """Ranks below this number were launched."""
        self.start_failure: WorkerFailedToStart | StartFailed | None = None
        """Why the start has failed."""
        down = [number for number, rank in enumerate(self.ranks) if self.stays_down(rank)]
        for rank in self.ranks:
            if not self.stays_down(rank):  # otherwise it keeps its end
                rank.begin_life(self.attempt)
        self.culprit: int | None = None
        """The rank whose end made the strategy stop the gang, if that end is the root cause whatever its exit code."""
        self.sets: dict[int, RestartSet] = {}
        """Restart sets by number."""
        self.set_of: dict[int, RestartSet] = {}
        """Rank to the restart set that it is in."""
        self.queue: list[int] = []
        """Ranks whose next life is to be launched, in order."""
        self.starting: set[int] = set()
        """The ranks in this state; `move` maintains it."""
        self.running: set[int] = set()
        """The ranks in this state; `move` maintains it."""
        self.unready: set[int] = set()
        """Running ranks that are not ready; `move` maintains it."""
        self.ended: dict[int, None] = dict.fromkeys(down)
        """Ranks in the order in which their ends were reported."""
        self.leftovers: set[int] = set()
        """Reaped ranks whose process group is not empty."""
        self.unkillable: dict[int, WorkerUnkillable] = {}
        """The ranks with a process that survived SIGKILL."""
        self.stop, self.drain, self.sweep = Stop(), Drain(), Sweep()
        self.restart_announced = False
        self.counts = True
        """Whether the announced restart counts toward the limit."""

    def stays_down(self, rank: Rank) -> bool:
        """Return whether a restart of all ranks leaves a rank out: it is terminated, or temporary and has ended."""
        return rank.terminated or (self.policy is not None and rank.kind == "temporary" and rank.end is not None)

    @property
    def restarting(self) -> frozenset[int]:
        """The ranks that a restart of all ranks starts again."""
        return frozenset(number for number, rank in enumerate(self.ranks) if not self.stays_down(rank))

    def is_left_out(self, local_rank: int) -> bool:
        """Return whether the last restart of all ranks has left a rank out: its end is of an earlier attempt."""
        return self.ranks[local_rank].attempt < self.attempt

    @property
    def left_out(self) -> frozenset[int]:
        """The ranks that the last restart of all ranks has left out."""
        return frozenset(filter(self.is_left_out, range(self.nprocs)))

    @property
    def next_attempt(self) -> int:
        """Number of the attempt that a restart of all ranks begins; greater than that of every life so far."""
        return 1 + max(rank.attempt for rank in self.ranks)

    @property
    def idle(self) -> bool:
        """Whether no rank is starting, running or to be restarted."""
        return not (self.running or self.starting or self.sets or self.queue)

    def failed(self, end: WorkerExited) -> bool:
        """Return whether a rank ended without success; an end before the rank is ready never is one."""
        rank = self.ranks[end.local_rank]
        return end.exitcode not in self.success or end.complaint is not None or not rank.ready

    def lives(self, local_rank: int) -> bool:
        """Return whether a rank has a process, a leftover, or a pending launch."""
        return local_rank in self.running or local_rank in self.starting or local_rank in self.leftovers

    def may_launch(self, local_rank: int) -> bool:
        """Return whether the launch window has room for a rank and all launched ranks of lower roles are ready."""
        if len(self.starting) >= self.window:
            return False
        role = self.role_of[local_rank]
        return self.roles == 1 or all(self.role_of[rank] >= role for rank in self.starting | self.unready)

    @property
    def ends(self) -> tuple[WorkerExited, ...]:
        """The ends of the ranks, in the order in which they were reported."""
        return tuple(end for rank in self.ended if (end := self.ranks[rank].end) is not None)

    @property
    def pids(self) -> dict[int, int]:
        """Rank to pid of every rank that was started, also after its end."""
        return {number: rank.pid for number, rank in enumerate(self.ranks) if rank.pid is not None}

    def move(self, local_rank: int, state: RankState) -> None:
        """Change the state of a rank."""
        self.starting.discard(local_rank)
        self.running.discard(local_rank)
        self.unready.discard(local_rank)
        if state == "starting":
            self.starting.add(local_rank)
        elif state == "running":
            self.running.add(local_rank)
            if not self.ranks[local_rank].ready:
                self.unready.add(local_rank)
        self.ranks[local_rank].state = state
