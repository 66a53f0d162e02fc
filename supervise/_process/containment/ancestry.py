"""Of which rank a process is a descendant: by its marker, which it has inherited."""

from __future__ import annotations

import errno
import os
import threading
import time

from supervise._process.containment import marker
from supervise._process.containment.procfs import layout, unless_gone

_EXEC_S = 0.1
"""How long an exec is waited for; it takes microseconds, where no disk is in the way."""
_EXEC_LOOK_S = 0.0002
_ENOUGH = 1 << 17
_MOST = 1 << 23
"""No program gets an environment as large as that; but a process may say of any memory that it is its own."""


def rank_of(pid: int, token: str, *, forked: bool, waits: bool = True) -> int | None:
    """Return the rank of `token`'s gang that a process descends from; None: of none, or it cannot be told.

    Args:
        pid: The process.
        token: The gang's.
        forked: Whether the gang's ranks were forked: then the files of the process are looked at, too.
        waits: Whether to wait for a process that is in the middle of an exec.

    Raises:
        BlockingIOError: It cannot be told now, since the process does not get on with its exec.
    """
    exec_s = _EXEC_S if waits else 0.0
    rank, empty = _rank_at(str(pid), token, forked=forked, exec_s=exec_s)
    if empty and (thread := _another_thread(pid)) is not None:
        return _rank_at(thread, token, forked=forked, exec_s=exec_s)[0]
    return rank


def _rank_at(place: str, token: str, *, forked: bool, exec_s: float) -> tuple[int | None, bool]:
    """Return the rank by what a folder of /proc tells, and whether that is nothing."""
    # A file is closed by the exec that puts the variable in its place, so it is looked for first.
    if forked and (rank := _rank_by_file(place, token)) is not None:
        return rank, False
    environment = _environment(place, exec_s)
    return marker.rank_in_environment(environment, token), not environment


def _another_thread(pid: int) -> str | None:
    """Return where /proc tells of a process whose main thread has ended: at one that lives. None: it has not."""
    if layout(str(pid)) is not None:
        return None
    try:
        threads = {int(name) for name in os.listdir(f"/proc/{pid}/task")}
    except OSError as error:
        unless_gone(error)
        return None
    return next((f"{pid}/task/{thread}" for thread in threads - {pid}), None)


def _environment(place: str, exec_s: float) -> bytes:
    """Return the environment of a process's program; in the middle of an exec it has none, and is waited for."""
    deadline_s = None
    environment = _environment_now(place)
    while not environment and (before := layout(place)) is not None:
        environment = _environment_now(place)
        if environment or (before.complete and layout(place) == before) or not _layouts_are_told():
            break  # it is there; or there is none, or it is hidden: who has unmapped it shows none for ever
        now_s = time.monotonic()
        deadline_s = deadline_s or now_s + exec_s
        if now_s >= deadline_s:
            raise BlockingIOError(errno.EAGAIN, f"process {place} does not get on with its exec")
        threading.Event().wait(_EXEC_LOOK_S)  # nobody tells when it has its new program
    return environment


def _layouts_are_told() -> bool:
    """Whether this kernel says where programs lie. It is one that imitates Linux otherwise."""
    own = layout("self")
    return own is not None and own.complete


def _environment_now(place: str) -> bytes:
    """Read it in one call, in which the kernel gives all of one program's, whatever is executed meanwhile."""
    try:
        fd = os.open(f"/proc/{place}/environ", os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = _ENOUGH
            while len(read := os.pread(fd, size, 0)) == size and size < _MOST:
                size *= 4
            return read
        finally:
            os.close(fd)
    except FileNotFoundError:
        return b"" if os.path.isdir("/proc/self") else _environment_without_proc(int(place))
    except OSError as error:  # another user's, or it has just ended
        unless_gone(error)
        return b""


def _environment_without_proc(pid: int) -> bytes:
    import psutil

    try:
        return f"{marker.VARIABLE}={psutil.Process(pid).environ().get(marker.VARIABLE, '')}".encode()
    except (psutil.Error, OSError):
        return b""


def _rank_by_file(place: str, token: str) -> int | None:
    try:
        numbers = os.listdir(f"/proc/{place}/fd")
    except OSError as error:
        unless_gone(error)
        return None
    for number in numbers:
        try:
            target = os.readlink(f"/proc/{place}/fd/{number}".encode())
        except OSError:  # closed meanwhile
            continue
        if (rank := marker.rank_of_file(target, token)) is not None:
            return rank
    return None
