"""Refuse a start that must run into a limit."""

from __future__ import annotations

import os
import resource

from supervise.errors import SpecError

_SPARE = 32
"""Descriptors for the loop, the lifeline, the launch under way, and whatever the program opens meanwhile."""


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
        top = "unlimited" if hard == resource.RLIM_INFINITY else hard
        msg = (
            f"{nprocs} ranks need about {needed} open files, and the soft limit RLIMIT_NOFILE is {soft}"
            f" (the hard limit: {top}); raise it with: ulimit -n {needed}"
        )
        raise SpecError(msg)


def _open_now() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return len(os.listdir("/dev/fd"))
