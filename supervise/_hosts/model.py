"""The state of a gang over several hosts. Only `decide` changes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from signal import Signals

    from supervise.restarts import RestartPolicy
    from supervise.result import RunProcsResult

HostState = Literal["waiting", "launching", "running", "ended", "not_started", "lost", "gone"]
"""The states of a host.

``lost``: it is dead or cannot be reached, so its ranks may run until its lease is over. ``gone``: its lease is over.
"""
Phase = Literal["new", "placing", "launching", "running", "stopping", "backoff", "finished"]
Stopping = Literal["failure", "close", "timeout"]
"""The reason why the hosts are stopped."""

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
    """The reason why the ranks of the host could not be started."""
    lost: str = ""
    """The reason why the host is lost."""
    told_to_stop: bool = False
    """Whether the host was asked to stop. Ends of ranks after that are not failures by themselves."""
    failed_first: int | None = None
    """The local rank that failed first on this host, before the host was asked to stop."""


@dataclass(slots=True)
class HostsGang:
    """A gang over several hosts."""

    nnodes: int
    policy: RestartPolicy | None = None
    notifies: bool = False
    """Whether the start waits until the ranks have reported that they are ready.

    If so, a failure before that fails the first start.
    """
    phase: Phase = "new"
    epoch: int = 0
    """Number of the present attempt."""
    hosts: list[Host] = field(default_factory=list)
    causes: list[int] = field(default_factory=list)
    """The hosts that failed by themselves, in the order in which the driver learned it. The first one is the cause."""
    stopping: Stopping | None = None
    sig: Signals | None = None
    timeout_s: float | None = None
    """The time limit of the stop. The signal is in `sig`."""
    started: bool = False
    """Whether in some attempt all ranks were ready."""
    restarts_ns: tuple[int, ...] = ()
    """Monotonic times (ns) of the restarts that still count toward the limit."""
    in_a_row: int = 0
    """Number of restarts since the last one after which a whole period passed without a failure."""
    error: BaseException | None = None

    @property
    def alive(self) -> bool:
        """Whether some rank of the present attempt may run."""
        return any(host.state not in OVER and host.state != "waiting" for host in self.hosts)
