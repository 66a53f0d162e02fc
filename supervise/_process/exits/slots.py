"""All live processes of a gang, for the moments when actors cannot be relied on."""

from __future__ import annotations

import contextlib
import select
import signal
import time
from typing import TYPE_CHECKING

from supervise._process import platform

if TYPE_CHECKING:
    from supervise._process.exits.handle import Process
    from supervise._process.launch.return_value import OutcomeFile


class ExitSlots:
    """What the gang holds of the kernel, by local rank."""

    def __init__(self) -> None:
        """Make an empty one."""
        self.processes: dict[int, Process] = {}
        """From a rank's start until its group is empty."""
        self.outcomes: dict[int, OutcomeFile] = {}
        """From a rank's start until its return value was read."""

    def close_outcomes(self) -> None:
        """Let go of all return values that were not read."""
        while self.outcomes:
            self.outcomes.popitem()[1].close()

    def ring_if_dead(self) -> None:
        """Have the descriptors of all that are dead be readable now."""
        if not platform.PIDFD:
            for process in self.processes.values():
                process.ring_if_dead()

    def kill_all(self) -> None:
        """Send SIGKILL to every group, now."""
        for process in list(self.processes.values()):
            with contextlib.suppress(BaseException):  # whatever is wrong with one, the others must die
                process.signal_group(signal.SIGKILL)

    def bury(self, timeout_s: float) -> bool:
        """Kill everything and reap it, blocking for at most `timeout_s`; tell whether all is gone.

        For a thread that has nothing else to do: the loop's, when the loop is lost.
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
