"""The messages between a Supervisor and its Workers and Tails that are not events of the core."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from supervise.messages import Bare

if TYPE_CHECKING:
    from signal import Signals


class Launch(Bare):
    """Start the rank's process. Supervisor -> Worker."""


class Deliver(NamedTuple):
    """Send a signal to the rank's process group. Supervisor -> Worker."""

    sig: Signals
    wake: bool = False
    """Whether SIGCONT follows, because a suspended process does not handle the signal before."""


class LookForStop(Bare):
    """Report `WorkerStopped` if the rank's process is newly suspended. Supervisor -> Worker."""


class ReportStuck(Bare):
    """Report `WorkerUnkillable` if a process has survived SIGKILL for the bounded wait. Supervisor -> Worker."""


class Leave(Bare):
    """Leave the registry, since the gang has ended. Supervisor -> Worker."""


class Drain(NamedTuple):
    """Show the rest of the output, then end. Every rank is reaped. Supervisor -> Tail."""

    sizes: dict[str, int]
    """Bytes to show of each file, by path."""


class MemberStopRequested(Bare):
    """Other code requested the stop of a Worker or a Tail. Worker, Tail -> Supervisor, which closes the gang."""


class ActorDown(NamedTuple):
    """A handler of a Worker or a Tail raised. Worker, Tail -> Supervisor, which kills the gang."""

    who: str
    error: BaseException
