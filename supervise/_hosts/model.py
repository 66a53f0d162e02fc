"""The state of a gang over several hosts. Only `decide` changes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from signal import Signals

    from supervise.restarts import RestartPolicy
    from supervise.result import RunProcsResult

HostState = Literal["waiting", "launching", "running", "ended", "not_started", "lost", "gone"]
"""``lost``: dead or out of contact, so that its ranks may run until its lease is over; ``gone``: after that."""
Phase = Literal["new", "placing", "launching", "running", "stopping", "backoff", "finished"]
Stopping = Literal["failure", "close", "timeout"]
"""Why the hosts are stopped."""

OVER: frozenset[HostState] = frozenset({"ended", "not_started", "gone"})
"""The states of a host that has no running rank."""


@dataclass(slots=True)
class Host:
    """One host of the present attempt."""

    state: HostState = "waiting"
    pids: dict[int, int] = field(default_factory=dict)
    """Local rank to pid."""
    result: RunProcsResult | None = None
    error: BaseException | None = None
    """Why its ranks could not be started."""
    lost: str = ""
    """Why it is lost."""
    told_to_stop: bool = False
    """Whether it was asked to stop. Ends that follow are not failures of their own."""
    failed_first: int | None = None
    """The local rank that failed first on this host, before the host was asked to stop."""


@dataclass(slots=True)
class HostsGang:
    """A gang over several hosts."""

    nnodes: int
    policy: RestartPolicy | None = None
    notifies: bool = False
    """Whether the start waits for the readiness of ranks; a failure meanwhile fails the first start."""
    phase: Phase = "new"
    epoch: int = 0
    """Number of the present attempt."""
    hosts: list[Host] = field(default_factory=list)
    causes: list[int] = field(default_factory=list)
    """The hosts that failed by themselves, in the order in which the driver was notified; the first is the cause."""
    stopping: Stopping | None = None
    sig: Signals | None = None
    timeout_s: float | None = None
    """The signal and the time limit of the stop."""
    started: bool = False
    """Whether some attempt had all its ranks ready."""
    restarts_ns: tuple[int, ...] = ()
    """When restarts that still count toward the limit began, monotonic nanoseconds."""
    in_a_row: int = 0
    """Restarts since the last one that was followed by a whole period without a failure."""
    error: BaseException | None = None

    @property
    def alive(self) -> bool:
        """Whether some rank of the present attempt may run."""
        return any(host.state not in OVER and host.state != "waiting" for host in self.hosts)
