"""Which rank the sender of a datagram belongs to, by the credentials that the kernel adds."""

from __future__ import annotations

import os

from supervise._process.containment.procfs import look

_ANCESTORS = 64
"""Limit on the search for a parent, in case processes exit and pids are reused in the meantime."""


def is_of_rank(pid: int, uid: int, leader: int) -> bool:
    """Return whether a sender is a process of the session that `leader` leads, or a descendant of one or of `leader`.

    A sender that has exited and was reaped counts if it belonged to this process's user. A daemon that has left the
    session and whose parent has exited is not recognized.

    Args:
        pid: The sender; 0 if it is in a pid namespace that this process does not see.
        uid: Its user.
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
