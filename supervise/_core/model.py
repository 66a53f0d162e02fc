"""The state of a gang. Only `decide` and the functions that it calls change it.

Plain classes: to define a dataclass takes Python forty times as long, at every import.
"""

from __future__ import annotations

from signal import Signals
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from supervise._core.steps import Reason, WorkerFailedToStart, WorkerUnkillable
    from supervise.messages import Phase, WorkerExited
    from supervise.restarts import RestartPolicy

RankState = Literal["waiting", "starting", "running", "overdue", "ended", "lost"]
"""``overdue``: its launch was pending when the wait after SIGKILL expired. ``lost``: its process survived SIGKILL."""


class Rank:
    """One rank of the present attempt."""

    __slots__ = ("by_itself", "end", "excused_ns", "pid", "recorded_ns", "started_ns", "state")

    def __init__(self) -> None:
        self.state: RankState = "waiting"
        self.pid: int | None = None
        """None until its process has started; kept after its end."""
        self.started_ns = 0
        self.end: WorkerExited | None = None
        self.by_itself = False
        """Whether it ended before the first signal."""
        self.recorded_ns: int | None = None
        """When it recorded an exception, if it was alive at the first signal and had recorded one by then."""
        self.excused_ns: int | None = None
        """When the caller decided to stop it because another rank had failed. A later end is not a cause."""


class Stop:
    """The stop of the present attempt."""

    __slots__ = ("death_sig", "killed", "reaped_ns", "reason", "signaled", "timeout_s")

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
        """Whether SIGKILL was sent."""


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
        """Time from SIGTERM to SIGKILL, if a later close has shortened it. None if the timeout of the stop holds."""


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
    ) -> None:
        """Describe a gang that is not started.

        Args:
            nprocs: Number of ranks.
            grace_s: Time from the first signal to SIGKILL.
            window: Largest number of pending launches.
            kill_wait_s: Time from SIGKILL until the remaining processes are reported as unkillable.
            stop_on_failure: Whether the failure of a rank stops the others.
            policy: When to restart the gang; None for never.
        """
        self.nprocs = nprocs
        self.grace_s = grace_s
        self.window = window
        self.kill_wait_s = kill_wait_s
        self.stop_on_failure = stop_on_failure
        self.policy = policy
        self.attempt = 0
        """Number of restarts so far."""
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
        self.start_failure: WorkerFailedToStart | None = None
        """The first failed launch."""
        self.ranks = [Rank() for _ in range(self.nprocs)]
        self.starting: set[int] = set()
        """The ranks in this state; `move` maintains it."""
        self.running: set[int] = set()
        """The ranks in this state; `move` maintains it."""
        self.ended: list[int] = []
        """Ranks in the order in which their ends were reported."""
        self.leftovers: set[int] = set()
        """Reaped ranks whose process group is not empty."""
        self.unkillable: dict[int, WorkerUnkillable] = {}
        """The ranks of which a process survived SIGKILL."""
        self.stop, self.drain, self.sweep = Stop(), Drain(), Sweep()
        self.restart_announced = False

    @property
    def idle(self) -> bool:
        """Whether no rank is starting or running."""
        return not self.running and not self.starting

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
        if state == "starting":
            self.starting.add(local_rank)
        elif state == "running":
            self.running.add(local_rank)
        self.ranks[local_rank].state = state
