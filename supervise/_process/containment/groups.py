"""Members of a process group, held so that a reused pid is never signaled."""

from __future__ import annotations

import errno
import math
import os
import select
import signal
import time
from typing import TYPE_CHECKING

from supervise import _platform as platform
from supervise._process.containment.procfs import all_pids, reading, unless_gone
from supervise._record import NamedTuple
from supervise._runtime.wakeup import OwnedFd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_NOT_SENT = frozenset({errno.ESRCH, errno.EPERM, errno.EMFILE, errno.ENFILE})
"""Errors of a signal that was not sent: the process has exited, belongs to another user, or no descriptor is left."""


class Member(OwnedFd):
    """One process of a gang, identified by a pidfd, or by its pid and start time.

    Its descriptor becomes readable at the exit; it is -1 if there is no pidfd.
    """

    __slots__ = ("_started", "local_rank", "pid")

    def __init__(self, pid: int) -> None:
        """Identify the process that has this pid now.

        Raises:
            ProcessLookupError: There is none.
            OSError: No descriptor is left.
        """
        super().__init__()
        self.pid = pid
        self.local_rank: int | None = None
        """The rank of a process that has left the groups of its gang; None if it is not known."""
        self._started = 0.0
        if platform.PIDFD:
            self.fd = platform.open_pidfd(pid)
        elif (seen := reading(pid)) is not None:
            self._started = seen.started
        else:
            raise ProcessLookupError(errno.ESRCH, "no such process")

    def alive(self) -> bool:
        """Whether the process runs, which a zombie does not. True also if no descriptor is left to find out."""
        if self.fd >= 0:
            return not readable(self.fd)
        try:
            return self._runs()
        except OSError:  # without a pidfd, such as EMFILE
            return True

    def _runs(self) -> bool:
        """Return whether the process still runs under its pid. For a process without a pidfd.

        Raises:
            OSError: No descriptor is left to find out.
        """
        seen = reading(self.pid)
        if seen is None or seen.started != self._started:
            return False
        try:  # the kernel shows a process as a zombie whose main thread has exited, also while other threads run
            return not seen.dead or len(os.listdir(f"/proc/{self.pid}/task")) > 1
        except OSError as error:
            unless_gone(error)
            return False

    def send(self, sig: int) -> bool:
        """Signal the process, not its group; return whether the kernel accepted the signal."""
        try:
            if self.fd >= 0:
                signal.pidfd_send_signal(self.fd, sig)
            elif self._runs():
                os.kill(self.pid, sig)
            else:
                return False
        except OSError as error:
            if error.errno not in _NOT_SENT:
                raise
            return False
        return True


class _Scan(NamedTuple):
    """A scan of the process groups of all processes of the machine."""

    begun_s: float
    """Monotonic time at which the scan began."""
    groups: dict[int, list[int]]
    """Number of each group, to the pids of its members."""


_newest = _Scan(-math.inf, {})


def members(pgid: int, *, since_s: float | None = None) -> list[Member]:
    """Return the live members of a process group; the caller closes them. A zombie is not live.

    Args:
        pgid: Number of the group.
        since_s: A monotonic time. The last scan is reused if it began after this time, so that one scan serves a
            thousand ranks that exit together. None: scan now.

    Raises:
        OSError: There are too few descriptors to find out.
    """
    scan = _newest
    if since_s is None or scan.begun_s < since_s:
        scan = _scan()
    return _hold(scan.groups.get(pgid, ()), pgid)


def _scan() -> _Scan:
    global _newest  # noqa: PLW0603 - replaced as a whole, because the loop of another gang may read it
    scan = _Scan(time.monotonic(), {})
    for pid in all_pids():
        try:
            scan.groups.setdefault(os.getpgid(pid), []).append(pid)
        except OSError:  # it has exited
            continue
    _newest = scan
    return scan


def _hold(pids: Iterable[int], pgid: int) -> list[Member]:
    found: list[Member] = []
    try:
        for pid in pids:
            if _in_group(pid, pgid):
                found += held(pid, lambda member: _in_group(member.pid, pgid))
    except BaseException:
        for member in found:
            member.close()
        raise
    return found


def held(pid: int, check: Callable[[Member], bool]) -> list[Member]:
    """Identify the process that has this pid now, then check it; return it, or nothing.

    If it is still alive then, its pid was not reused between the two steps.
    """
    try:
        member = Member(pid)
    except ProcessLookupError:
        return []
    wanted = False
    try:
        wanted = check(member) and member.alive()
    finally:
        if not wanted:
            member.close()
    return [member] if wanted else []


def _in_group(pid: int, pgid: int) -> bool:
    try:
        return os.getpgid(pid) == pgid
    except OSError:
        return False


def readable(fd: int) -> bool:
    """Whether `fd` is readable now."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
