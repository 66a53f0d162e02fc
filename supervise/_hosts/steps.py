"""The events and the actions of the core of a gang over several hosts. Hosts are numbered from 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from signal import Signals

    from supervise.result import RunProcsResult


# Events. `epoch` is the number of the attempt of an event. The core drops events of earlier attempts.


@dataclass(frozen=True, slots=True)
class StartAsked:
    """The caller asks for the first attempt."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Each host of an attempt exists and has answered."""

    epoch: int


@dataclass(frozen=True, slots=True)
class NotPlaced:
    """The engine has no room for an attempt, or the caller's settings are not valid on a host."""

    epoch: int
    error: BaseException


@dataclass(frozen=True, slots=True)
class HostStarted:
    """All ranks of a host are ready."""

    epoch: int
    host: int
    pids: dict[int, int]
    """Local rank to pid."""


@dataclass(frozen=True, slots=True)
class HostNotStarted:
    """The ranks of a host could not be started. The host has reaped those of its ranks that ran."""

    epoch: int
    host: int
    error: BaseException


@dataclass(frozen=True, slots=True)
class RankFailed:
    """A rank has failed by itself. Its host stops its other ranks."""

    epoch: int
    host: int
    local_rank: int


@dataclass(frozen=True, slots=True)
class HostEnded:
    """All ranks of a host have ended, and nothing of them is left."""

    epoch: int
    host: int
    result: RunProcsResult


@dataclass(frozen=True, slots=True)
class HostLost:
    """A host is dead or does not answer. Its ranks may run until its lease is over."""

    epoch: int
    host: int
    why: str


@dataclass(frozen=True, slots=True)
class LeaseOver:
    """The lease of a lost host is over, so none of its ranks runs."""

    epoch: int
    host: int


@dataclass(frozen=True, slots=True)
class CloseAsked:
    """The caller asks for the end of the gang."""

    sig: Signals | None = None
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class TimeUp:
    """The gang has reached its time limit."""


@dataclass(frozen=True, slots=True)
class BackoffOver:
    """The delay before the next attempt is over."""

    epoch: int


Event = (
    StartAsked
    | Placed
    | NotPlaced
    | HostStarted
    | HostNotStarted
    | RankFailed
    | HostEnded
    | HostLost
    | LeaseOver
    | CloseAsked
    | TimeUp
    | BackoffOver
)


# Actions


@dataclass(frozen=True, slots=True)
class Place:
    """Ask the engine for the hosts of an attempt."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Launch:
    """Start the ranks of a host."""

    epoch: int
    host: int


@dataclass(frozen=True, slots=True)
class StopHost:
    """Stop the ranks of a host. Send `sig` at once (None: the gang's first signal), and SIGKILL after the grace."""

    epoch: int
    host: int
    sig: Signals | None
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class AwaitLease:
    """Stop the renewals of a host's lease, and report when the lease is over."""

    epoch: int
    host: int


@dataclass(frozen=True, slots=True)
class Release:
    """Give the hosts of an attempt back to the engine."""

    epoch: int


@dataclass(frozen=True, slots=True)
class AnswerStart:
    """Answer the start, if it is not answered yet. All ranks are ready, in the first attempt or in a later one."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Restart:
    """An attempt has failed, and all its ranks have ended. The next attempt begins after the delay."""

    epoch: int
    """Number of the next attempt."""
    delay_s: float


@dataclass(frozen=True, slots=True)
class Finish:
    """The gang has ended. `error` is set if its first start failed, or if a later attempt could not be placed."""

    error: BaseException | None = None


Action = Place | Launch | StopHost | AwaitLease | Release | AnswerStart | Restart | Finish
