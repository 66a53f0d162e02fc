"""What Workers and Tails tell the old core; verbatim from ``supervise/messages.py``. See `tests.oracle.core`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

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
