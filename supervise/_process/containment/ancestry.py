"""Search for the life of a rank from which a process descends, by the marker that the process has inherited."""

from __future__ import annotations

import errno
import os
import threading
import time

from supervise._process.containment import marker
from supervise._process.containment.procfs import layout, unless_gone

_EXEC_S = 0.1
"""Limit on the wait for an exec, which takes microseconds unless it reads from a disk."""
_EXEC_LOOK_S = 0.0002
_ENOUGH = 1 << 17
_MOST = 1 << 23
"""Limit on the read.

No real environment is as large, but a process may tell the kernel that any part of its memory is its environment.
"""


def number_of(pid: int, token: str, *, forked: bool, waits: bool = True) -> int | None:
    """Return the number of the life from which a process descends, in the gang of `token`.

    The number is read from the marker that the process has inherited. Return None if the process descends from no rank
    of this gang, or if the number is not known.

    Return None if the process descends from no rank of this gang, or if the number is not known.

    Args:
        pid: The process.
        token: Token of the gang.
        forked: Whether the ranks of the gang were forked, so that the open files of the process are read, too.
        waits: Whether to wait for a process that is executing `exec`.

    Raises:
        BlockingIOError: The number is not known now, because the process has not finished an exec.
    """
    exec_s = _EXEC_S if waits else 0.0
    number, empty = _number_at(str(pid), token, forked=forked, exec_s=exec_s)
    if empty and (thread := _another_thread(pid)) is not None:
        return _number_at(thread, token, forked=forked, exec_s=exec_s)[0]
    return number


def _number_at(place: str, token: str, *, forked: bool, exec_s: float) -> tuple[int | None, bool]:
    """Return the number in the marker of a process, and whether the environment of the process is empty.

    Args:
        place: Path of the process below /proc.
        token: Token of the gang.
        forked: As for `number_of`.
        exec_s: Limit on the wait for an exec.
    """
    # An exec closes the file and sets the variable. A read in this order finds one of the two during an exec.
    if forked and (number := _number_by_file(place, token)) is not None:
        return number, False
    environment = _environment(place, exec_s)
    return marker.number_in_environment(environment, token), not environment


def _another_thread(pid: int) -> str | None:
    """Return the path below /proc of a live thread of a process whose main thread has exited.

    None if the main thread has not exited.
    """
    if layout(str(pid)) is not None:
        return None
    try:
        threads = {int(name) for name in os.listdir(f"/proc/{pid}/task")}
    except OSError as error:
        unless_gone(error)
        return None
    return next((f"{pid}/task/{thread}" for thread in threads - {pid}), None)


def _environment(place: str, exec_s: float) -> bytes:
    """Return the environment of a process. A process has none during an exec: wait for at most `exec_s`."""
    deadline_s = None
    environment = _environment_now(place)
    while not environment and (before := layout(place)) is not None:
        environment = _environment_now(place)
        if environment or (before.complete and layout(place) == before) or not _layouts_are_told():
            break  # it was read; or the process has none, or has unmapped it for good
        now_s = time.monotonic()
        deadline_s = deadline_s or now_s + exec_s
        if now_s >= deadline_s:
            raise BlockingIOError(errno.EAGAIN, f"process {place} has not finished its exec")
        threading.Event().wait(_EXEC_LOOK_S)  # the kernel does not report the end of an exec
    return environment


def _layouts_are_told() -> bool:
    """Whether /proc has the addresses of programs. A kernel that imitates Linux may lack them."""
    own = layout("self")
    return own is not None and own.complete


def _environment_now(place: str) -> bytes:
    """Read the environment in one call, so that the bytes are never those of two programs, also during an exec."""
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
    except OSError as error:  # a process of another user, or one that has exited
        unless_gone(error)
        return b""


def _environment_without_proc(pid: int) -> bytes:
    import psutil

    try:
        return f"{marker.VARIABLE}={psutil.Process(pid).environ().get(marker.VARIABLE, '')}".encode()
    except (psutil.Error, OSError):
        return b""


def _number_by_file(place: str, token: str) -> int | None:
    try:
        names = os.listdir(f"/proc/{place}/fd")
    except OSError as error:
        unless_gone(error)
        return None
    for name in names:
        try:
            target = os.readlink(f"/proc/{place}/fd/{name}".encode())
        except OSError:  # closed in between
            continue
        if (number := marker.number_of_file(target, token)) is not None:
            return number
    return None
