"""Table of the live processes of a gang, for a cleanup that uses no actors."""

from __future__ import annotations

import contextlib
import select
import signal
import time
from typing import TYPE_CHECKING

from supervise import _platform as platform

if TYPE_CHECKING:
    from supervise._process.exits.leader import Process
    from supervise._process.launch.return_value import OutcomeFile


class ExitSlots:
    """Processes and result channels of a gang, by local rank."""

    def __init__(self) -> None:
        """Make an empty table."""
        self.processes: dict[int, Process] = {}
        """Processes, from the start of a rank until no process of its group is left."""
        self.outcomes: dict[int, OutcomeFile] = {}
        """Result channels, from the start of a rank until the host has read its return value."""

    def close_outcomes(self) -> None:
        """Close all result channels that the host has not read."""
        while self.outcomes:
            self.outcomes.popitem()[1].close()

    def ring_if_dead(self) -> None:
        """Make the descriptors of all dead processes readable now."""
        if not platform.PIDFD:
            for process in self.processes.values():
                process.ring_if_dead()

    def kill_all(self) -> None:
        """Send SIGKILL to every group."""
        for process in list(self.processes.values()):
            with contextlib.suppress(BaseException):  # an error at one group must not spare the others
                process.signal_group(signal.SIGKILL)

    def bury(self, timeout_s: float) -> bool:
        """Kill and reap all processes, for at most `timeout_s`; return whether all are reaped.

        The call blocks, so the loop's thread uses it only after a failure of the loop.
        """
        self.kill_all()
        deadline = time.monotonic() + timeout_s
        poll = select.poll()
        waiting = {}
        for process in self.processes.values():
            if process.fileno() >= 0:
                poll.register(process.fileno(), select.POLLIN)
                waiting[process.fileno()] = process
        while waiting and (left := deadline - time.monotonic()) > 0:
            for fd, _ in poll.poll(left * 1000):
                poll.unregister(fd)
                process = waiting.pop(fd)
                process.reap()
                process.close()
        self.processes.clear()
        return not waiting
