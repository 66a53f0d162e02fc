"""Checks before a start: limits of the machine, and properties of this process that every launch needs."""

from __future__ import annotations

import os
import resource
import sys

from supervise import _platform as platform
from supervise.errors import SpecError

_SPARE = 32
"""Descriptors for the loop, the lifeline, the current launch, and files that the program opens meanwhile."""
_HELD: dict[str | None, int] = {None: 1, "spawn": 2, "fork": 2, "forkserver": 3}
"""Descriptors for each running rank, by start method: pidfd, result channel, reports of the fork server."""
_BELL = 1
"""Further descriptors for each running rank without pidfds: the waiting thread duplicates that of its event.

With a fork server, the thread also duplicates that of the reports.
"""

_STREAMS = 2
_LATER = 40
"""Descriptors, independent of the number of ranks, that the host opens between the first check and the last."""

_MANY = 1000
"""Number of ranks for which every kernel has enough pids."""


def check_host(nprocs: int, cwd: str | None) -> None:
    """Check that /proc is mounted, the working directory exists, and the kernel has enough pids for the ranks.

    Args:
        nprocs: Number of ranks.
        cwd: Their working directory; None for that of this process.

    Raises:
        SpecError: A check failed; the text names the cause and a remedy. No process was started.
    """
    if not os.path.isdir("/proc/self/fd"):
        msg = "/proc is not mounted, which every start needs; mount it with: mount -t proc proc /proc"
        raise SpecError(msg)
    if cwd is None:
        try:
            os.getcwd()
        except FileNotFoundError:
            msg = "the working directory of this process has been deleted; go to another one first"
            raise SpecError(msg) from None
    check_count(nprocs)


def check_count(nprocs: int) -> None:
    """Check that the kernel has enough pids for the ranks.

    Raises:
        SpecError: It does not.
    """
    if nprocs > _MANY and (most := _most_processes()) is not None and nprocs > most:
        msg = f"{nprocs} ranks are more processes than this machine allows: kernel.pid_max is {most}; use fewer ranks"
        raise SpecError(msg)


def _most_processes() -> int | None:
    try:
        with open("/proc/sys/kernel/pid_max", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):  # not Linux
        return None


def held_by_rank(start_method: str | None) -> int:
    """Return the number of descriptors that the host holds for each running rank.

    Without a start method, the rank is a program.
    """
    more = 0 if platform.PIDFD else _BELL + (start_method == "forkserver")
    return _HELD[start_method] + more


def opened_later(nprocs: int, *, filters: int, more: int = 0) -> int:
    """Return the largest number of descriptors that a start opens between its first check and its last.

    Args:
        nprocs: Number of ranks.
        filters: Number of filtered files, for each of which the host reads a log of each rank again.
        more: Number of further descriptors for each rank.
    """
    return _LATER + nprocs * (_STREAMS + filters + more)


def check_open_files(nprocs: int, *, each: int, shown: int, later: int = 0) -> int:
    """Compare the number of descriptors that a gang needs with the soft limit.

    Args:
        nprocs: Number of ranks.
        each: Number of descriptors for each running rank.
        shown: Number of log files that the host reads.
        later: Number of descriptors that the host may open before it checks again. They are not required yet, but the
            advice includes them, so that the advised limit is enough for all checks.

    Returns:
        The number of further descriptors that the limit allows.

    Raises:
        SpecError: The limit is too low; the text names it. No process was started.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    needed = nprocs * each + shown + _open_now() + _SPARE
    if needed > soft:
        raised = hard == resource.RLIM_INFINITY or needed <= hard
        top = "unlimited" if hard == resource.RLIM_INFINITY else hard
        advised = needed + later if hard == resource.RLIM_INFINITY else min(needed + later, hard)  # if `raised`
        msg = (
            f"{nprocs} ranks need about {advised} open files, and the soft limit RLIMIT_NOFILE is {soft}"
            f" (the hard limit: {top}); raise it with: ulimit -n {advised}"
            if raised
            else f"{nprocs} ranks need about {needed} open files, which is above the hard limit of {hard}"
            " (RLIMIT_NOFILE): use fewer ranks, or have root raise it"
        )
        raise SpecError(msg)
    return soft - needed


def _open_now() -> int:
    return len(os.listdir("/proc/self/fd"))
