"""Search for the rank to which the sender of a datagram belongs, by the credentials that the kernel adds."""

from __future__ import annotations

import os

from supervise._process.containment.procfs import look

_ANCESTORS = 64
"""Limit on the generations of parents to follow, in case pids are reused during the search."""


def is_of_rank(pid: int, uid: int, leader: int) -> bool:
    """Return whether the sender of a datagram belongs to the rank of `leader`.

    The sender belongs to the rank if it, or an ancestor of it, is `leader` or a process of the session of `leader`. A
    sender that was already reaped counts if its user is that of this process. A daemon is not recognized if it has left
    the session and its parent has exited.

    Args:
        pid: The sender; 0 if it is in a pid namespace that this process does not see.
        uid: The user of the sender.
        leader: Pid of the rank.
    """
    if pid <= 0:
        return False
    if pid == leader:
        return True
    try:
        session = os.getsid(pid)
    except ProcessLookupError:
        return uid == os.getuid()
    except PermissionError:  # a security module
        session = 0
    return session == leader or _descends(pid, leader)


def _descends(pid: int, leader: int) -> bool:
    for _ in range(_ANCESTORS):
        seen = look(pid)
        if seen is None or seen.parent <= 1:
            return False
        pid = seen.parent
        try:
            if leader in (pid, os.getsid(pid)):
                return True
        except OSError:  # it has exited, or a security module refuses
            return False
    return False
