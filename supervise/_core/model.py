"""The state of a gang. Only `decide` and what it calls change it."""

from __future__ import annotations

from dataclasses import dataclass, field
from signal import Signals
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from supervise._core.steps import Reason
    from supervise.messages import Phase, WorkerExited, WorkerFailedToStart, WorkerUnkillable
    from supervise.restarts import RestartPolicy

RankState = Literal["waiting", "starting", "running", "overdue", "ended", "lost"]
"""``overdue``: its launch had no answer when SIGKILL had had its time. ``lost``: its process outlived SIGKILL."""


@dataclass(slots=True)
class Rank:
    """One rank of the present attempt."""

    state: RankState = "waiting"
    pid: int | None = None
    """None until its process has started; kept after its end."""
    started_ns: int = 0
    end: WorkerExited | None = None
    by_itself: bool = False
    """Whether it ended before our first signal to it."""
    recorded_ns: int | None = None
    """When it recorded an exception, if it was alive at our first signal and had recorded one by then."""
    excused_ns: int | None = None
    """When it was decided to stop it alone, because another rank has failed: a later end of it is no failure."""


@dataclass(slots=True)
class Stop:
    """How the present attempt is stopped."""

    reason: Reason | None = None
    """The first reason stays. None: it is not being stopped, or only what it has left behind is."""
    death_sig: Signals = Signals.SIGTERM
    """The polite signal."""
    timeout_s: float = 0.0
    """From the polite signal to SIGKILL."""
    signaled: bool = False
    """Whether the polite signal was sent: a rank that ends from now on is not a cause."""
    reaped_ns: int = 0
    """When all dead ranks were reaped. A rank that died before but is reported later also ended by itself."""
    killed: bool = False
    """Whether SIGKILL was sent."""


@dataclass(slots=True)
class Drain:
    """What the result still waits for once all ranks have ended."""

    tails: int = 0
    """Tails that have not ended."""
    values: bool = False
    """Whether return values are still to be loaded."""
    begun: bool = False

    @property
    def pending(self) -> bool:
        """Whether a Tail or the return values are not ready."""
        return self.tails > 0 or self.values


@dataclass(slots=True)
class Sweep:
    """The search for processes that have left the groups of the ranks."""

    state: Literal["due", "asked", "done"] = "due"
    timeout_s: float | None = None
    """From SIGTERM to SIGKILL, if a later close has shortened it. None is the timeout of the stop."""


@dataclass(slots=True, kw_only=True)
class Gang:
    """A gang and its present attempt. Ranks are numbers in ``range(nprocs)``."""

    nprocs: int
    grace_s: float
    window: int = 1
    """How many launches may be under way at once."""
    kill_wait_s: float = 5.0
    """From SIGKILL until the processes that remain are reported as unkillable."""
    stop_on_failure: bool = True
    """Whether a rank that fails stops the others."""
    policy: RestartPolicy | None = None
    """When to restart it; None is never."""
    attempt: int = 0
    """How many times it was restarted."""
    restarts_ns: tuple[int, ...] = ()
    """Monotonic times of the restarts that still count."""

    # The present attempt; `begin_attempt` sets what it begins with

    phase: Phase = "new"
    end_asked: bool = field(init=False)
    """Whether a close was asked, or the gang's timeout expired: no restart follows, and the logs have a deadline."""
    launched: int = field(init=False)
    """Ranks below this number were launched."""
    start_failure: WorkerFailedToStart | None = field(init=False)
    """The first one."""
    ranks: list[Rank] = field(init=False)
    starting: set[int] = field(init=False)
    """The ranks in this state, as `move` has put them."""
    running: set[int] = field(init=False)
    """The ranks in this state, as `move` has put them."""
    ended: list[int] = field(init=False)
    """Ranks in the order in which their ends were reported."""
    leftovers: set[int] = field(init=False)
    """Reaped ranks whose process group is not empty."""
    unkillable: dict[int, WorkerUnkillable] = field(init=False)
    """The ranks of which something outlived SIGKILL."""
    stop: Stop = field(init=False)
    drain: Drain = field(init=False)
    sweep: Sweep = field(init=False)
    restart_announced: bool = field(init=False)

    def __post_init__(self) -> None:
        self.begin_attempt()

    def begin_attempt(self) -> None:
        """Forget all ranks and what was done about them."""
        self.end_asked = self.restart_announced = False
        self.launched = 0
        self.start_failure = None
        self.ranks = [Rank() for _ in range(self.nprocs)]
        self.starting, self.running, self.leftovers = set(), set(), set()
        self.ended, self.unkillable = [], {}
        self.stop, self.drain, self.sweep = Stop(), Drain(), Sweep()

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
