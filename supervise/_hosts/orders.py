"""The messages between the driver and a host."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise.logs import LogsSpecs
    from supervise.messages import GangStatus
    from supervise.result import RunProcsResult


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOrder:
    """The order for one host in one attempt. Mappings are keyed by local rank. Driver -> host."""

    name: str
    """Name of the gang."""
    number: int
    """Number of the host, from 0."""
    epoch: int
    """Number of the attempt."""
    lease_s: float
    entrypoint: Callable[..., Any] | str
    args: dict[int, tuple[Any, ...]]
    envs: dict[int, dict[str, str]]
    logs_specs: LogsSpecs | None
    log_line_prefixes: dict[int, str] | None
    settings: dict[str, Any] = field(default_factory=dict)
    """Further settings of the host's Supervisor."""
    sends_events: bool = False
    """Whether the driver has a listener for the host's events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAddress:
    """The place where a host runs. Host -> driver."""

    host_name: str
    node_id: str
    """The engine's name for the node."""
    ip: str
    port: int
    """A port that was free a moment ago, for the ranks' own rendezvous."""
    pid: int
    """Pid of the process that supervises the ranks."""
    keeper_port: int = 0
    """The port at which the keeper of the lease reports that it has killed the host and its ranks. 0: none."""
    omp_num_threads: str | None = None
    """The value of OMP_NUM_THREADS that the engine has set on the host; None if it is unset."""


NewsKind = Literal["event", "stdout", "stderr", "exited", "failed", "ended"]


@dataclass(frozen=True, slots=True)
class News:
    """One item of a host's news. Host -> driver, in order."""

    number: int
    kind: NewsKind
    what: Any
    """The content, which depends on the kind.

    ``event``: the fields of the event. ``stdout``, ``stderr``: bytes to show. ``exited``: a `WorkerExited`. ``failed``:
    the local rank that was the first to fail by itself. ``ended``: a `HostEnd`.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEnd:
    """The end of a host's ranks, of which nothing is left. Host -> driver.

    Exactly one of `result` and `error` is None.
    """

    result: RunProcsResult | None = None
    error: BaseException | None = None
    status: GangStatus | None = None
    """The last state of the ranks."""
