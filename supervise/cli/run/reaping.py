"""The reaping of strangers: orphans that the kernel makes children of PID 1, or of a child subreaper."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


_PR_GET_CHILD_SUBREAPER = 37


def is_needed() -> bool:
    """Return whether orphans become children of this process."""
    if os.getpid() == 1:
        return True
    import ctypes

    found = ctypes.c_int(0)
    try:
        prctl = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return False
    return prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(found), 0, 0, 0) == 0 and found.value != 0


def inherited() -> set[int]:
    """Return the pids of this process's children, for example those of a shell that became supervise by ``exec``."""
    found: set[str] = set()
    try:
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/children", encoding="ascii") as file:
                found.update(file.read().split())
    except OSError:  # there is no procfs, or the kernel has no such file
        return set()
    return set(map(int, found))


def reap_strangers(ranks: Callable[[], Collection[int] | None], inherited: set[int]) -> None:
    """Reap exited children that supervise has not started. Never blocks except in `ranks`.

    The kernel reports one exited child at a time. If that child is a rank or a helper, this function returns, and the
    owner of the child reaps it soon. The next call reaps the other children.

    Args:
        ranks: Returns the pids of all ranks that have been started until the call; None if they are not known.
        inherited: The result of `inherited` from before the first helper. A pid is removed when its process is reaped.
    """
    while (found := _next_exited()) is not None:
        try:
            group = os.getpgid(found)
        except ProcessLookupError:  # reaped meanwhile
            continue
        # The child is a helper: strangers descend from ranks, and ranks have their own process groups
        if group == os.getpgrp() and found not in inherited:
            return
        known = ranks()
        if known is None or found in known:
            return
        inherited.discard(found)
        try:
            os.waitpid(found, os.WNOHANG)
        except ChildProcessError:
            continue


def _next_exited() -> int | None:
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # there are no children
        return None
    return None if found is None else found.si_pid
