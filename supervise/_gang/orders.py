"""What a Supervisor and its Workers and Tails say to each other, beside what the core has to know."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from supervise.messages import Bare

if TYPE_CHECKING:
    from signal import Signals


class Launch(Bare):
    """Start your process. Supervisor -> Worker."""


class Deliver(NamedTuple):
    """Send a signal to your group. Supervisor -> Worker."""

    sig: Signals
    wake: bool = False
    """Whether SIGCONT follows, because a suspended process would not handle the signal."""


class LookForStop(Bare):
    """Report `WorkerStopped` if your process is suspended and was not before. Supervisor -> Worker."""


class ReportStuck(Bare):
    """SIGKILL has had its time: report `WorkerUnkillable` if something is left. Supervisor -> Worker."""


class Leave(Bare):
    """The gang has ended: leave the registry. Supervisor -> Worker."""


class Drain(NamedTuple):
    """Every rank is reaped: show what the ranks had written, then end. Supervisor -> Tail."""

    sizes: dict[str, int]
    """Bytes to show of each file, by path."""


class MemberStopRequested(Bare):
    """Other code asked a Worker or a Tail to stop. Worker, Tail -> Supervisor, which closes the gang instead."""


class ActorDown(NamedTuple):
    """A handler of a Worker or a Tail raised. Worker, Tail -> Supervisor, which kills the gang."""

    who: str
    error: BaseException
