"""The messages between a Supervisor and its Workers and Tails that are not events of the core."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from supervise.messages import Bare

if TYPE_CHECKING:
    from collections.abc import Sequence
    from signal import Signals

    from supervise._logs.reader import LogReader


class Launch(Bare):
    """Start the rank's process. Supervisor -> Worker."""


class Deliver(NamedTuple):
    """Send a signal to the rank's process group. Supervisor -> Worker."""

    sig: Signals
    wake: bool = False
    """Whether to send SIGCONT after `sig`, because a suspended process handles a signal only after SIGCONT."""


class LookForStop(Bare):
    """Report `WorkerStopped` if the rank's process is newly suspended. Supervisor -> Worker."""


class ReportStuck(Bare):
    """Report `WorkerUnkillable` if a process has survived SIGKILL for the bounded wait. Supervisor -> Worker."""


class Leave(Bare):
    """Leave the registry, since the gang has ended. Supervisor -> Worker."""


class Drain(NamedTuple):
    """Show the remaining output, then end. Every rank is reaped. Supervisor -> Tail."""

    sizes: dict[str, int]
    """Bytes to show of each file, by path."""


class ChangeFiles(NamedTuple):
    """Show what remains in the log files of a rank's past life, close these, and follow the files of its next life.

    Supervisor -> Tail, which owns the readers of the message from then on. The processes of the past life have ended.
    """

    feeds: Sequence[LogReader]
    """Readers of the next life's files, which exist."""
    sizes: dict[str, int | None]
    """Bytes to show of each file of the past life, by path; None: up to its present end."""


class MemberStopRequested(Bare):
    """Other code requested the stop of a Worker or a Tail. Worker, Tail -> Supervisor, which closes the gang."""


class ActorDown(NamedTuple):
    """A handler of a Worker or a Tail raised. Worker, Tail -> Supervisor, which kills the gang."""

    who: str
    error: BaseException
