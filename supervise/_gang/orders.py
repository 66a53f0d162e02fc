"""The messages between a Supervisor and its Workers and Tails, except for those that are events of the core."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from supervise._record import NamedTuple
from supervise.messages import Bare

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from signal import Signals

    from supervise._logs.reader import LogReader


class Launch(Bare):
    """Start the rank's process. Supervisor -> Worker."""


class Deliver(NamedTuple):
    """Send a signal to the rank's process group, or to its own process. Supervisor -> Worker."""

    sig: Signals
    group: bool
    """Whether the signal goes to the whole group."""
    wake: bool = False
    """Whether to send SIGCONT to the group after `sig`. A suspended process handles a signal only after SIGCONT."""
    since_s: float | None = None
    """Monotonic time of the request, so that one scan of the processes serves all ranks of a stop."""


class Release(Bare):
    """Let the rank exit, whose function has returned. Supervisor -> Worker."""


class LookForStop(Bare):
    """Report `WorkerStopped` if the rank's process was suspended since the last report. Supervisor -> Worker."""


class ReportStuck(Bare):
    """Report `WorkerUnkillable` if a process has survived SIGKILL for the whole bounded wait. Supervisor -> Worker."""


class Leave(Bare):
    """Leave the registry, because the gang has ended. Supervisor -> Worker."""


class Drain(NamedTuple):
    """Show the remaining output, then end. Every rank is already reaped. Supervisor -> Tail.

    A Tail that shows files of `left` does not end, but reports `TailDrained`, and follows these files until the next
    `Drain`.
    """

    sizes: dict[str, int]
    """Path of each file to the number of its bytes to show."""
    left: Mapping[str, int] = MappingProxyType({})
    """Path of each file that processes may still write to the number of its bytes to show until the next `Drain`."""


class ChangeFiles(NamedTuple):
    """Show what is left in the log files of a rank's past life, then follow the files of its next life.

    Supervisor -> Tail. From then on, the Tail owns `feeds`. The processes of the past life have ended. The Tail closes
    their files once they are shown.
    """

    feeds: Sequence[LogReader]
    """Readers of the files of the next life. These files exist."""
    sizes: dict[str, int | None]
    """Path of each file of the past life to the number of its bytes to show. None: up to its present end."""


class MemberStopRequested(Bare):
    """Other code requested the stop of a Worker or a Tail, so the gang must be closed. Worker, Tail -> Supervisor."""


class ActorDown(NamedTuple):
    """A handler of a Worker or a Tail raised, so the gang must be killed. Worker, Tail -> Supervisor."""

    who: str
    error: BaseException
