"""The state of a gang. Only `decide` and what it calls change it.

Plain classes, because Python takes forty times as long to make a dataclass.
"""

from __future__ import annotations

from signal import Signals
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from supervise._core.steps import Reason, WorkerFailedToStart, WorkerUnkillable
    from supervise.messages import Phase, WorkerExited
    from supervise.restarts import RestartPolicy

RankState = Literal["waiting", "starting", "running", "overdue", "ended", "lost"]
"""``overdue``: its launch had no answer when SIGKILL had had its time. ``lost``: its process outlived SIGKILL."""


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
        """Whether it ended before our first signal to it."""
        self.recorded_ns: int | None = None
        """When it recorded an exception, if it was alive at our first signal and had recorded one by then."""
        self.excused_ns: int | None = None
        """When the caller decided to stop it because another rank has failed: a later end is not a cause."""


class Stop:
    """How the present attempt is stopped."""

    __slots__ = ("death_sig", "killed", "reaped_ns", "reason", "signaled", "timeout_s")

    def __init__(self) -> None:
        self.reason: Reason | None = None
        """The first reason stays. None: it is not being stopped, or only what it has left behind is."""
        self.death_sig = Signals.SIGTERM
        """The first signal."""
        self.timeout_s = 0.0
        """From the first signal to SIGKILL."""
        self.signaled = False
        """Whether the first signal was sent: a rank that ends from now on is not a cause."""
        self.reaped_ns = 0
        """When all dead ranks were reaped. A rank that died before but is reported later also ended by itself."""
        self.killed = False
        """Whether SIGKILL was sent."""


class Drain:
    """What the result still waits for once all ranks have ended."""

    __slots__ = ("begun", "tails", "values")

    def __init__(self) -> None:
        self.tails = 0
        """Tails that have not ended."""
        self.values = False
        """Whether return values are still to be loaded."""
        self.begun = False

    @property
    def pending(self) -> bool:
        """Whether a Tail or the return values are not ready."""
        return self.tails > 0 or self.values


class Sweep:
    """The search for processes that have left the groups of the ranks."""

    __slots__ = ("state", "timeout_s")

    def __init__(self) -> None:
        self.state: Literal["due", "asked", "done"] = "due"
        self.timeout_s: float | None = None
        """From SIGTERM to SIGKILL, if a later close has shortened it. None is the timeout of the stop."""


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
            nprocs: How many ranks.
            grace_s: From the first signal to SIGKILL.
            window: How many launches may be under way at once.
            kill_wait_s: From SIGKILL until the processes that remain are reported as unkillable.
            stop_on_failure: Whether a rank that fails stops the others.
            policy: When to restart it; None is never.
        """
        self.nprocs = nprocs
        self.grace_s = grace_s
        self.window = window
        self.kill_wait_s = kill_wait_s
        self.stop_on_failure = stop_on_failure
        self.policy = policy
        self.attempt = 0
        """How many times it was restarted."""
        self.restarts_ns: tuple[int, ...] = ()
        """Monotonic times of the restarts that still count towards the limit."""
        self.phase: Phase = "new"
        self.begin_attempt()

    def begin_attempt(self) -> None:
        """Forget all ranks and what was done about them."""
        self.end_asked = False
        """Whether a close was asked, or the timeout expired: no restart follows, and the logs have a deadline."""
        self.launched = 0
        """Ranks below this number were launched."""
        self.start_failure: WorkerFailedToStart | None = None
        """The first one."""
        self.ranks = [Rank() for _ in range(self.nprocs)]
        self.starting: set[int] = set()
        """The ranks in this state, as `move` has put them."""
        self.running: set[int] = set()
        """The ranks in this state, as `move` has put them."""
        self.ended: list[int] = []
        """Ranks in the order in which their ends were reported."""
        self.leftovers: set[int] = set()
        """Reaped ranks whose process group is not empty."""
        self.unkillable: dict[int, WorkerUnkillable] = {}
        """The ranks of which something outlived SIGKILL."""
        self.stop, self.drain, self.sweep = Stop(), Drain(), Sweep()
        self.restart_announced = False

    @property
    def idle(self) -> bool:
        """Whether no rank starts or runs."""
        return not self.running and not self.starting

    @property
    def ends(self) -> tuple[WorkerExited, ...]:
        """The ends of the ranks, in the order in which they were reported."""
        return tuple(end for rank in self.ended if (end := self.ranks[rank].end) is not None)

    @property
    def pids(self) -> dict[int, int]:
        """Rank to pid of every rank that has started, also after its end."""
        return {number: rank.pid for number, rank in enumerate(self.ranks) if rank.pid is not None}

    def move(self, local_rank: int, state: RankState) -> None:
        """Put a rank into another state."""
        self.starting.discard(local_rank)
        self.running.discard(local_rank)
        if state == "starting":
            self.starting.add(local_rank)
        elif state == "running":
            self.running.add(local_rank)
        self.ranks[local_rank].state = state
