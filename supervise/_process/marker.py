"""How a descendant of a rank is known again, wherever it went: by what it has inherited.

One environment variable names the gang (by a random token) and the rank. /proc shows the environment
that a process had at its exec, so that everything a rank executes carries it. Of a process that was
forked off the host or a fork server it shows theirs: such a rank also holds a file with that name,
which its own forked children inherit.
"""

from __future__ import annotations

import os

from supervise._process.memory import anonymous_file

VARIABLE = "SUPERVISE_WORKER"
_FILE = "supervise-worker-"


def new_token() -> str:
    """Return the name of a gang that no other has."""
    return os.urandom(8).hex()


def value(token: str, rank: int) -> str:
    """Return the variable's value for a rank. In a gang within a gang, the outer one's stands before it."""
    return f"{os.environ.get(VARIABLE, '')} {token}:{rank}".lstrip()


def carry() -> None:
    """Hold the marker as a file, too. In a rank that was forked, which has its environment already."""
    mine = os.environ.get(VARIABLE, "").rpartition(" ")[2]
    if mine:
        anonymous_file(_FILE + mine)  # open for as long as the process lives


def rank_of(pid: int, token: str, *, forked: bool) -> int | None:
    """Return the rank of `token`'s gang that a process descends from; None: of none, or it cannot be told.

    Args:
        pid: The process.
        token: The gang's.
        forked: Whether the gang's ranks were forked: then the files of the process are looked at, too.
    """
    import re

    found = re.search(rf"{VARIABLE}=[^\0]*\b{token}:(\d+)".encode(), _environment(pid))
    if found is not None:
        return int(found[1])
    return _rank_by_file(pid, token) if forked else None


def _environment(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b"" if os.path.isdir("/proc/self") else _environment_without_proc(pid)
    except OSError as error:  # another user's, or it has just ended
        _unless_gone(error)
        return b""


def _environment_without_proc(pid: int) -> bytes:
    import psutil

    try:
        return f"{VARIABLE}={psutil.Process(pid).environ().get(VARIABLE, '')}".encode()
    except (psutil.Error, OSError):
        return b""


def _rank_by_file(pid: int, token: str) -> int | None:
    mark = f"{_FILE}{token}:"
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError as error:
        _unless_gone(error)
        return None
    for number in numbers:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{number}")
        except OSError:  # closed meanwhile
            continue
        if mark in target:
            return int(target.partition(mark)[2].replace("-", " ").split()[0])
    return None


def _unless_gone(error: OSError) -> None:
    from supervise._process.look import unless_gone  # the ranks, which import this module, never look

    unless_gone(error)
