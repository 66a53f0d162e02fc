"""Who is in a process group, held so that a number that is used again hits no stranger."""

from __future__ import annotations

import errno
import os
import select
import signal

from supervise._process import platform
from supervise._process.containment.procfs import all_pids, look


class Member:
    """One process of a gang: held by a pidfd, or known by its number and its start time."""

    __slots__ = ("_fd", "_started", "pid")

    def __init__(self, pid: int) -> None:
        """Take hold of the process that has this number now.

        Raises:
            ProcessLookupError: There is none.
            OSError: There is no descriptor left to hold it.
        """
        self.pid = pid
        self._fd = -1
        self._started = 0.0
        if platform.PIDFD:
            self._fd = os.pidfd_open(pid)
        elif (seen := look(pid)) is not None:
            self._started = seen.started
        else:
            raise ProcessLookupError(errno.ESRCH, "no such process")

    def fileno(self) -> int:
        """The descriptor that becomes readable when it is dead; -1 where there is no pidfd."""
        return self._fd

    def alive(self) -> bool:
        """Whether it runs. A zombie does not."""
        if self._fd >= 0:
            return not readable(self._fd)
        seen = look(self.pid)
        return seen is not None and seen.started == self._started and not seen.dead

    def send(self, sig: int) -> bool:
        """Signal it alone; tell whether that could be done."""
        try:
            if self._fd >= 0:
                signal.pidfd_send_signal(self._fd, sig)
            elif self.alive():
                os.kill(self.pid, sig)
            else:
                return False
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def close(self) -> None:
        """Let it go. Idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def members(pgid: int) -> list[Member]:
    """Return the live members of a process group; the caller closes them. A zombie is not live.

    Raises:
        OSError: There are too few descriptors to find out.
    """
    found: list[Member] = []
    try:
        for pid in all_pids():
            if _in_group(pid, pgid):
                found += _held(pid, pgid)
    except BaseException:
        for member in found:
            member.close()
        raise
    return found


def _held(pid: int, pgid: int) -> list[Member]:
    """Take hold of a process and look again, since its number may have been reused in between."""
    try:
        member = Member(pid)
    except ProcessLookupError:
        return []
    if member.alive() and _in_group(pid, pgid):
        return [member]
    member.close()
    return []


def _in_group(pid: int, pgid: int) -> bool:
    try:
        return os.getpgid(pid) == pgid
    except OSError:
        return False


def readable(fd: int) -> bool:
    """Whether there is something to read, now."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
