"""The result of a launch, and the interface of the launchers."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from supervise._process.exits.handle import Process
    from supervise._process.launch.fork_server import ServerStatus
    from supervise._process.launch.return_value import OutcomeFile
    from supervise._process.lifeline.lifeline import Lifeline


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Launched:
    """Result of a launch: a process, or a pending request to the fork server."""

    process: Process | None = None
    status: ServerStatus | None = None
    outcome: OutcomeFile | None = None
    line: Lifeline | None = None
    """Lifeline of the process."""
    read_end: int = -1
    """Read end of the lifeline, which the host keeps until `lifeline.release`; -1 if the host keeps none."""

    def arrived(self) -> Launched | None:
        """Return a copy with the process; None if the server has not forked yet.

        Call this only once `status` is readable.

        Raises:
            ChildProcessError: The server died before it forked.
            OSError: No descriptor is left for the process.
        """
        from supervise._process.exits.forkserver import ForkServerChild
        from supervise._process.launch.fork_server import DIED

        assert self.status is not None  # noqa: S101
        try:
            pid = self.status.read()
        except EOFError:
            raise ChildProcessError(DIED) from None
        if pid is None:
            return None
        try:
            process = ForkServerChild(pid, self.status)
        except OSError:  # without a descriptor, the host could not stop the process later
            if self.status.read() is None:  # the server has not reaped the process, so the pid was not reused
                os.kill(pid, signal.SIGKILL)
            raise
        return replace(self, process=process)


class Launcher(Protocol):
    """Object that starts the process of one rank. `supervise.testing` has fakes of it."""

    def launch(self) -> Launched:
        """Start the process without waiting for it.

        Raises:
            UnreapedError: The process was started and killed, but is not reaped.
            Exception: There is no process.
        """
