"""Refuse a start that must run into a limit, or that this process cannot make."""

from __future__ import annotations

import os
import resource
import sys

from supervise._process import platform
from supervise.errors import SpecError

_SPARE = 32
"""Descriptors for the loop, the lifeline, the launch under way, and whatever the program opens meanwhile."""
_HELD: dict[str | None, int] = {None: 1, "spawn": 2, "fork": 2, "forkserver": 3}
"""Descriptors held for each running rank, by start method: its pidfd, its outcome, the fork server's word."""
_BELL = 1
"""Without pidfds, the waiting thread holds a copy of what it rings; and one of the fork server's word."""


_MANY = 1000
"""Ranks, up to which every kernel has numbers for processes."""


def check_host(nprocs: int, cwd: str | None) -> None:
    """Refuse what fails wherever it is first needed, with an error that does not say why.

    Args:
        nprocs: How many ranks.
        cwd: Their working directory; None is this process's.

    Raises:
        SpecError: Names what is missing, or the limit, and what to do. No process was started.
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
    if nprocs > _MANY and (most := _most_processes()) is not None and nprocs > most:
        msg = f"{nprocs} ranks are more than this machine can have processes: kernel.pid_max is {most}; use fewer ranks"
        raise SpecError(msg)


def _most_processes() -> int | None:
    try:
        with open("/proc/sys/kernel/pid_max", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):  # another system than Linux
        return None


def held_by_rank(start_method: str | None) -> int:
    """Return how many descriptors are held for each running rank; None is a program."""
    more = 0 if platform.PIDFD else _BELL + (start_method == "forkserver")
    return _HELD[start_method] + more


def check_open_files(nprocs: int, *, each: int, shown: int) -> int:
    """Compare what a gang will hold open at once with the soft limit.

    Args:
        nprocs: How many ranks.
        each: Descriptors held for each rank while it runs.
        shown: Log files that are read.

    Returns:
        How many more the limit allows.

    Raises:
        SpecError: The limit is too low; names it. No process was started.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    needed = nprocs * each + shown + _open_now() + _SPARE
    if needed > soft:
        raised = hard == resource.RLIM_INFINITY or needed <= hard
        top = "unlimited" if hard == resource.RLIM_INFINITY else hard
        msg = (
            f"{nprocs} ranks need about {needed} open files, and the soft limit RLIMIT_NOFILE is {soft}"
            f" (the hard limit: {top}); raise it with: ulimit -n {needed}"
            if raised
            else f"{nprocs} ranks need about {needed} open files, which is above the hard limit of {hard}"
            " (RLIMIT_NOFILE): use fewer ranks, or have root raise it"
        )
        raise SpecError(msg)
    return soft - needed


def _open_now() -> int:
    return len(os.listdir("/proc/self/fd"))
