"""The notice of an exit by pidfd, and the choice between this notice and a thread."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from supervise import _platform as platform
from supervise._process.containment.groups import readable
from supervise._process.exits.status import remembered

if TYPE_CHECKING:
    from supervise._process.exits.handle import ExitNotice


class Pidfd:
    """The exit notice of a kernel that has pidfds: it needs no thread."""

    at_ns: int | None = None
    found: os.waitid_result | None = None

    def __init__(self, pidfd: int) -> None:
        """Take over a pidfd; -1 if other code reaped the process before its descriptor was opened."""
        self._fd = pidfd

    @property
    def dead(self) -> bool:
        """Whether the pidfd is readable."""
        return readable(self._fd)

    def fileno(self) -> int:
        """Return the pidfd."""
        return self._fd

    def look(self) -> None:
        """Do nothing, because the kernel makes a pidfd readable at once."""

    def peek(self) -> os.waitid_result | None:
        """Return the status of a child without reaping it; see `ExitNotice.peek`."""
        return os.waitid(os.P_PIDFD, self._fd, os.WEXITED | os.WNOHANG | os.WNOWAIT)

    def stop(self) -> os.waitid_result | None:
        """Return how a child was suspended; see `ExitNotice.stop`."""
        return os.waitid(os.P_PIDFD, self._fd, os.WSTOPPED | os.WNOHANG)

    def send(self, sig: int, flags: int) -> None:
        """Signal the process; with the flag for it, the group of the process."""
        signal.pidfd_send_signal(self._fd, sig, None, flags)

    def lost_status(self) -> tuple[int | None, bool]:
        """Return exit code and core dump, which the kernel keeps since Linux 6.15."""
        return remembered(self._fd)

    def is_being_reaped(self) -> bool:
        """Return whether other code is reaping the process now.

        During the reap, the process can still be signaled, and the kernel does not keep its status yet.
        """
        try:
            self.send(0, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return self.lost_status()[0] is None

    def close(self) -> None:
        """Close the pidfd. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def exit_notice(pid: int, *, pidfd: int = -1, parents_word: int | None = None) -> ExitNotice:
    """Return the exit notice of a process: by pidfd, or by a thread if the kernel lacks pidfds.

    Args:
        pid: A child of this process that is not reaped. With `parents_word`: a child of another process.
        pidfd: Pidfd of the process, which the notice takes over; -1 to open one.
        parents_word: A descriptor that becomes readable when the parent has reaped the process or has exited.

    Raises:
        OSError: No descriptor is left, or no thread is available.
    """
    if not platform.PIDFD:
        from supervise._process.exits.thread import ExitThread

        return ExitThread(pid, parents_word=parents_word)
    try:
        return Pidfd(os.pidfd_open(pid) if pidfd < 0 else pidfd)
    except ProcessLookupError:  # reaped already by its parent or by other code of this program
        return Pidfd(-1)
