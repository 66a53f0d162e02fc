"""The state of a gang. Only `decide`, and the functions that `decide` calls, change it.

The classes are plain, because the definition of a dataclass takes Python forty times as long, at every import.
"""

from __future__ import annotations

from signal import Signals
from typing import TYPE_CHECKING, Literal

from supervise._core.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from supervise._core.steps import (
        AskKind,
        RankFaulted,
        Reason,
        StartFailed,
        StopOrder,
        WorkerFailedToStart,
        WorkerUnkillable,
    )
    from supervise.messages import Phase, WorkerExited
    from supervise.restarts import RestartKind, RestartPolicy, Strategy

RankState = Literal["waiting", "starting", "running", "overdue", "ended", "unkillable"]
"""The states of a rank.

``overdue``: its launch was still pending when the wait after SIGKILL expired. ``unkillable``: its process
survived SIGKILL.
"""


_NO_RESTARTS = Backoff()


class Rank:
    """One rank and its present life."""

    __slots__ = (
        *(
            "attempt",
            "backoff",
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
        ),
        *("restarts", "returned", "started_ns", "state", "terminated", "told"),
    )

    def __init__(self, kind: RestartKind, *, notifies: bool = False) -> None:
        self.kind: RestartKind = kind
        """The ends after which a policy restarts this rank."""
        self.notifies = notifies
        """Whether the rank reports that it is ready. Otherwise it is ready when its process runs."""
        self.restarts = 0
        """Number of replaced lives."""
        self.backoff = _NO_RESTARTS
        """The restarts that the rank's ends have caused."""
        self.begin_life(0)

    def begin_life(self, attempt: int) -> None:
        """Reset everything that belongs to one life."""
        self.attempt = attempt
        """Number of the life; the first is 0."""
        self.state: RankState = "waiting"
        self.pid: int | None = None
        """Pid of its process, also after the end of the process. None until the process has started."""
        self.started_ns = 0
        self.ready = not self.notifies
        self.fault: RankFaulted | None = None
        """The reason why the rank has failed while it ran.

        If there is one, the rank's end is a cause, with any exit code.
        """
        self.end: WorkerExited | None = None
        self.returned = False
        """Whether its function has returned while its process still runs; only in a gang that holds such ranks."""
        self.by_itself = False
        """Whether the rank ended before the first signal."""
        self.recorded_ns: int | None = None
        """The time at which the rank recorded an exception.

        It is set only if the rank was alive at the first signal and had recorded the exception by then.
        """
        self.excused_ns: int | None = None
        """The time at which the caller decided to stop the rank because another rank had failed.

        An end after this time is not a cause.
        """
        self.told = False
        """Whether a batch has signaled the rank while the gang goes on. If so, the rank's end is not a cause."""
        self.heeded = False
        """Whether the strategy has dealt with the rank's end."""
        self.caused: Literal["counted", "uncounted", "terminated", ""] = ""
        """How the rank's end is related to the restart that follows.

        The end caused the restart, which counts toward the limit (``counted``) or does not (``uncounted``); or the
        caller had terminated the rank before (``terminated``).
        """
        self.terminated = False
        """Whether the caller requested the end of the rank, so that the rank stays down."""
        self.dismissed = False
        """Whether the rank is a service that is stopped, or not started again, as all ranks of other roles have ended.

        If so, the rank's end is not a cause.
        """


class Batch:
    """Ranks that are stopped together, and what follows for them.

    The batch of all ranks is the stop of the gang, and ends with the gang. While the gang goes on, a rank is in at most
    one batch; when nothing of the batch is left and it is swept, its ranks start again or stay down.
    """

    __slots__ = (
        *("death_sig", "killed", "number", "order", "pending", "ranks", "roles", "timeout_s"),
        *("delay_s", "down", "reason", "signaled", "state", "sweep_s"),
    )

    def __init__(self, ranks: Iterable[int], number: int = 0) -> None:
        self.number = number
        """Number of the batch, 0 for the stop of the gang. Its timers and its sweep have this number as their key."""
        self.ranks = set(ranks)
        self.pending: set[int] = set()
        """Ranks that have a process, a leftover, or a pending launch, and are not given up. Empty before the stop."""

        # The escalation
        self.death_sig = Signals.SIGTERM
        """The first signal to the roles that have none of their own."""
        self.timeout_s = 0.0
        """Time from the first signal to SIGKILL, as `order` says."""
        self.order: StopOrder = ""
        self.signaled = False
        """Whether the stop has begun. In the stop of the gang, a later end of a rank is not a cause."""
        self.roles = set[int]()
        """The roles to which the first signal was sent."""
        self.killed = set[int]()
        """The roles to which SIGKILL was sent; a part of `roles`."""

        # The fate
        self.reason: Reason | None = None
        """The first reason to end the gang. None if the gang goes on, or if only leftovers are stopped."""
        self.state: Literal["stopping", "sweeping", "swept"] = "stopping"
        """``swept``: the search for escaped processes has ended. Ranks that start again wait for the backoff."""
        self.sweep_s: float | None = None
        """Time from SIGTERM to SIGKILL for escaped processes. None: `grace_s`, until the sweep begins."""
        self.down: set[int] = set()
        """Ranks that stay down. The others start again, if the gang goes on."""
        self.delay_s = 0.0
        """Delay before the restart, without jitter."""

    @property
    def grace_s(self) -> float:
        """Time from the first signal to SIGKILL, which is 0 if the first signal is SIGKILL."""
        return grace_of(self.death_sig, self.timeout_s)


def grace_of(death_sig: Signals, timeout_s: float) -> float:
    """Return the time from the first signal to SIGKILL, which is 0 if the first signal is SIGKILL."""
    return 0.0 if death_sig == Signals.SIGKILL else timeout_s


class Ask:
    """A pending request to restart or to terminate ranks."""

    __slots__ = ("attempt", "begun", "kind", "pending", "ranks")

    def __init__(self, kind: AskKind, ranks: frozenset[int], attempt: int) -> None:
        self.kind: AskKind = kind
        self.ranks = ranks
        self.pending = set(ranks)
        """Ranks that have not started again yet, or that are not down yet."""
        self.attempt = attempt
        """Number of the gang's attempt at the time of the request."""
        self.begun = False
        """Whether the request was carried out, so that its ranks are in a batch or in a later life."""


class Drain:
    """The wait for output and return values after all ranks have ended."""

    __slots__ = ("begun", "last", "lasting", "tails", "values")

    def __init__(self) -> None:
        self.tails = 0
        """Number of Tails that have not shown all output of the ranks."""
        self.lasting = 0
        """Number of Tails that show what leftovers write."""
        self.last = False
        """Whether these Tails were ordered to end, because no leftover remains."""
        self.values = False
        """Whether the return values are still to be loaded."""
        self.begun = False

    @property
    def pending(self) -> bool:
        """Whether a Tail has not shown all output of the ranks, or the return values are not loaded."""
        return self.tails > 0 or self.values


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
        needs: Sequence[Collection[int]] | None = None,
        services: frozenset[int] = frozenset(),
        stop_signal: Signals = Signals.SIGTERM,
        stop_signals: Mapping[int, Signals] | None = None,
        graces_s: Mapping[int, float] | None = None,
        attempt: int = 0,
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
            kinds: Restart kind of each rank; None: all ranks have that of the policy.
            success: Exit codes that are a success.
            notifies: Ranks that report that they are ready. The others are ready when their processes run.
            role_of: The number of each rank's role. The numbers begin with 0 and never decrease from rank to rank.
                None: all ranks have one role.
            needs: The numbers of the roles that each role needs, directly or not. None: all roles before it.
            services: Ranks that are stopped once all other ranks have ended.
            stop_signal: The first signal of each stop that the gang itself decides.
            stop_signals: The number of a role to the first signal of every stop of its ranks. The other roles get the
                signal of the stop.
            graces_s: The number of a role to its own time from the first signal to SIGKILL.
            attempt: Number of the first attempt. It is not 0 if a driver has restarted the gang on this host.
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
        self.needs = tuple(map(frozenset, [range(role) for role in range(self.roles)] if needs is None else needs))
        """The roles that each role needs, directly or not."""
        self.needed_by = tuple(
            frozenset(role for role, needed in enumerate(self.needs) if each in needed) for each in range(self.roles)
        )
        """The roles that need each role, directly or not."""
        self.services = services
        self.stop_signal = stop_signal
        self.stop_signals = stop_signals or {}
        self.graces_s = graces_s or {}
        self.attempt = attempt
        """Number of the present attempt, which all ranks began together. The first one is 0."""
        self.backoff = Backoff()
        """The restarts of the whole gang, and of single ranks. If single ranks restart, only its count is used."""
        self.asks: dict[int, Ask] = {}
        """Pending requests by key."""
        self.batches_made = 0
        """Number of batches so far, without the stops of the gang."""
        kind: RestartKind = policy.restart if policy is not None else "transient"
        self.ranks = [Rank(each, notifies=number in notifies) for number, each in enumerate(kinds or (kind,) * nprocs)]
        self.notifies = bool(notifies)
        """Whether the start waits until a rank has reported that it is ready."""
        self.phase: Phase = "new"
        self.begin_attempt()

    def begin_attempt(self) -> None:
        """Reset everything that belongs to one attempt."""
        self.end_asked = False
        """Whether a close was requested or the timeout expired.

        If so, no restart follows, and the drain is bounded.
        """
        self.start_failure: WorkerFailedToStart | StartFailed | None = None
        """The reason why the start has failed."""
        down: dict[int, None] = {}
        for number, rank in enumerate(self.ranks) if self.attempt else ():  # the first lives have begun
            if self.stays_down(rank):  # the rank keeps its end
                down[number] = None
            else:
                rank.begin_life(self.attempt)
        self.culprit: int | None = None
        """The rank whose end made the strategy stop the gang.

        It is set only if that end is the root cause with any exit code.
        """
        self.batches: dict[int, Batch] = {}
        """Batches by number. Empty if the whole gang is being stopped."""
        self.batch_of: dict[int, Batch] = {}
        """Rank to the one of these batches that has the rank."""
        self.queue: list[dict[int, None]] = [{} for _ in range(self.roles)]
        """For each role, its ranks that are to be launched, in order."""
        for number in range(self.nprocs):
            if number not in down:
                self.enqueue(number)
        self.starting: set[int] = set()
        """The ranks in this state; `move` maintains it."""
        self.running: set[int] = set()
        """The ranks in this state; `move` maintains it."""
        self.unready: set[int] = set()
        """Running ranks that are not ready; `move` maintains it."""
        self.held: set[int] = set()
        """Running ranks whose functions have returned, and that are not released; `move` maintains it."""
        self.ended: dict[int, None] = down
        """Ranks in the order in which their ends were reported."""
        self.leftovers: set[int] = set()
        """Reaped ranks whose process group is not empty."""
        self.unkillable: dict[int, WorkerUnkillable] = {}
        """Rank to the report that its process survived SIGKILL."""
        self.stop = Batch(range(self.nprocs))
        """The stop of the present attempt."""
        self.reaped_ns = 0
        """The time at which all dead ranks were reaped, before the first signal of the stop.

        A rank that had died before this time ended by itself, even if its end is reported later.
        """
        self.drain = Drain()
        self.restart_announced = False

    def stays_down(self, rank: Rank) -> bool:
        """Return whether a restart of all ranks leaves a rank out.

        It does if the rank is terminated, or if it is temporary and has ended.
        """
        return rank.terminated or (self.policy is not None and rank.kind == "temporary" and rank.end is not None)

    @property
    def restarting(self) -> frozenset[int]:
        """The ranks that start again at a restart of all ranks."""
        return frozenset(number for number, rank in enumerate(self.ranks) if not self.stays_down(rank))

    def is_left_out(self, local_rank: int) -> bool:
        """Return whether the last restart of all ranks has left a rank out. Its end is that of an earlier attempt."""
        return self.ranks[local_rank].attempt < self.attempt

    @property
    def first_unready(self) -> int:
        """The first rank that was not launched or has not reported that it is ready; if there is none, the last."""
        unready = (number for number, rank in enumerate(self.ranks) if rank.state == "waiting" or not rank.ready)
        return next(unready, self.nprocs - 1)

    @property
    def left_out(self) -> frozenset[int]:
        """The ranks that were left out at the last restart of all ranks."""
        return frozenset(filter(self.is_left_out, range(self.nprocs)))

    @property
    def next_attempt(self) -> int:
        """Number of the next attempt, if all ranks restart. It is greater than the number of every life so far."""
        return 1 + max(rank.attempt for rank in self.ranks)

    def next_life(self, local_rank: int) -> int:
        """Number of the next life of a rank that restarts alone. It exceeds the gang's: the life is in no attempt."""
        return max(self.ranks[local_rank].attempt, self.attempt) + 1

    @property
    def idle(self) -> bool:
        """Whether no rank is starting, is running or is to be restarted."""
        return not (self.running or self.starting or self.batches or any(self.queue))

    @property
    def all_returned(self) -> bool:
        """Whether every rank has ended or is held, apart from services."""
        if self.starting or any(self.queue) or self.batches or len(self.running) > len(self.held) + len(self.services):
            return False
        return self.running <= self.held | self.services

    def failed(self, end: WorkerExited) -> bool:
        """Return whether a rank ended without success. An end before the rank was ready is never a success."""
        rank = self.ranks[end.local_rank]
        return end.exitcode not in self.success or end.complaint is not None or not rank.ready

    def lives(self, local_rank: int) -> bool:
        """Return whether a rank has a process, a leftover, or a pending launch."""
        return local_rank in self.running or local_rank in self.starting or local_rank in self.leftovers

    def is_queued(self, local_rank: int) -> bool:
        """Return whether a rank is to be launched."""
        return local_rank in self.queue[self.role_of[local_rank]]

    def enqueue(self, local_rank: int) -> None:
        """Let a rank wait for its launch."""
        self.queue[self.role_of[local_rank]][local_rank] = None

    def dequeue(self, ranks: Iterable[int]) -> None:
        """Let none of these ranks wait for its launch."""
        for local_rank in ranks:
            self.queue[self.role_of[local_rank]].pop(local_rank, None)

    def may_launch(self, role: int) -> bool:
        """Return whether ranks of a role may be launched now.

        Two conditions must hold: the launch window has room, and no rank of a role that this one needs waits for its
        launch, is starting, or is not ready.
        """
        if len(self.starting) >= self.window:
            return False
        needed = self.needs[role]
        if not needed:
            return True
        if any(self.queue[each] for each in needed):
            return False
        return all(self.role_of[rank] not in needed for rank in self.starting | self.unready)

    def following(self, local_rank: int) -> list[int]:
        """Return the ranks after a rank in the order of starts: those above it in its role, and all that need them."""
        role = self.role_of[local_rank]
        dependent = self.needed_by[role]
        return [
            rank for rank, own in enumerate(self.role_of) if own in dependent or (own == role and rank > local_rank)
        ]

    @property
    def ends(self) -> tuple[WorkerExited, ...]:
        """The ends of the ranks, in the order in which they were reported."""
        return tuple([end for rank in self.ended if (end := self.ranks[rank].end) is not None])

    @property
    def pids(self) -> dict[int, int]:
        """Rank to pid, for every rank that was started, also after the end of the rank."""
        return {number: rank.pid for number, rank in enumerate(self.ranks) if rank.pid is not None}

    def move(self, local_rank: int, state: RankState) -> None:
        """Change the state of a rank."""
        for members in (self.starting, self.running, self.unready, self.held):
            if local_rank in members:
                members.remove(local_rank)
        if state == "starting":
            self.starting.add(local_rank)
        elif state == "running":
            self.running.add(local_rank)
            if not self.ranks[local_rank].ready:
                self.unready.add(local_rank)
        self.ranks[local_rank].state = state
