"""Refuse a start that must run into a limit."""

from __future__ import annotations

import os
import resource

from supervise._process import capability
from supervise.errors import SpecError

_SPARE = 32
"""Descriptors for the loop, the lifeline, the launch under way, and whatever the program opens meanwhile."""
_HELD: dict[str | None, int] = {None: 1, "spawn": 2, "fork": 2, "forkserver": 3}
"""Descriptors held for each running rank, by start method: its pidfd, its outcome, the fork server's word."""
_BELL = 1
"""Without pidfds, the waiting thread holds a copy of what it rings; and one of the fork server's word."""


def held_by_rank(start_method: str | None) -> int:
    """Return how many descriptors are held for each running rank; None is a program."""
    more = 0 if capability.PIDFD else _BELL + (start_method == "forkserver")
    return _HELD[start_method] + more


def check_open_files(nprocs: int, *, each: int, shown: int) -> None:
    """Compare what a gang will hold open at once with the soft limit.

    Args:
        nprocs: How many ranks.
        each: Descriptors held for each rank while it runs.
        shown: Log files that are read.

    Raises:
        SpecError: The limit is too low; names it. No process was started.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return
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


def _open_now() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return len(os.listdir("/dev/fd"))
