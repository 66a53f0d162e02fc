"""Readings of procfs by pid. If the kernel has reused the pid, the start time differs."""

from __future__ import annotations

import errno
import os
import signal
from typing import TYPE_CHECKING

from supervise._record import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


_DEAD = frozenset("ZXx")
_ROUNDS = 16
_STAT_BYTES = 4096
"""Bytes to read: more than the size of the file, so that the kernel returns all of it at once."""
_TRACKER_HOLDS = 1 << (signal.SIGTERM - 1) | 1 << (signal.SIGINT - 1)
_GONE = frozenset({errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.EACCES, errno.EPERM})


class Seen(NamedTuple):
    """Reading of a process at one moment."""

    state: str
    """The kernel's letter, such as D, T or Z."""
    parent: int
    """Pid of its parent."""
    group: int
    """Number of its process group."""
    started: float
    """Start time. It differs between two processes that have had the same pid."""
    stop_signal: int = 0
    """The signal that suspended the process. 0 if it is not suspended, or if the kernel does not report the signal."""

    @property
    def dead(self) -> bool:
        """Whether it has exited; it may be a zombie."""
        return self.state in _DEAD


def look(pid: int) -> Seen | None:
    """Return a reading of the process that has this pid now; None if there is none, or if the reading failed."""
    try:
        return reading(pid)
    except OSError:
        return None


def reading(pid: int) -> Seen | None:
    """Return a reading of the process that has this pid now; None if there is none.

    Raises:
        OSError: The reading failed, for example because no descriptor is left.
    """
    try:
        fields = _stat(pid)
        return Seen(fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[19]), int(fields[49]))
    except (IndexError, ValueError):
        return None
    except OSError as error:
        unless_gone(error)
        return None


def tracks_resources(pid: int) -> bool:
    """Return whether a process is a resource tracker of multiprocessing or of joblib.

    A tracker blocks SIGTERM and SIGINT from its fork on, and later ignores both. Its command line is empty while it
    executes the interpreter, and may not be readable while the kernel blocks it; then the masks decide.
    """
    try:
        fields = _stat(pid)
        held = int(fields[29]) | int(fields[30])
        if held and held & _TRACKER_HOLDS != _TRACKER_HOLDS:  # 0: a sandbox does not report them
            return False
        if held and fields[0] == b"D":
            return True
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read(_STAT_BYTES)
    except (OSError, IndexError, ValueError):
        return False
    return b".resource_tracker import main" in command or (bool(held) and not command.strip(b"\0"))


def started(pid: int) -> int | None:
    """Return the start time of a process, in clock ticks since the boot; None if it cannot be read."""
    try:
        return int(_stat(pid)[19])
    except (OSError, IndexError, ValueError):
        return None


def _stat(place: int | str) -> list[bytes]:
    """Return the fields of ``stat`` after the name.

    The function makes three system calls; a file object of Python makes eight.
    """
    fd = os.open(f"/proc/{place}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _STAT_BYTES).rpartition(b")")[2].split()
    finally:
        os.close(fd)


def unless_gone(error: OSError) -> None:
    """Re-raise `error` unless it means that the process has exited or belongs to another user.

    EMFILE, for example, means that the reading failed.
    """
    if error.errno not in _GONE:
        raise error


def all_pids() -> Iterator[int]:
    """Yield the pid of every process, also of those that start during the iteration.

    So the iteration finds the children of a process that exits meanwhile. The number of rounds is limited, because new
    processes may appear without end.

    Raises:
        OSError: No descriptor is left.
    """
    seen: set[int] = set()
    for _ in range(_ROUNDS):
        new = _pids_now() - seen
        if not new:
            return
        yield from sorted(new)
        seen |= new


def _pids_now() -> set[int]:
    try:
        return {int(name) for name in os.listdir("/proc") if name.isdigit()}
    except FileNotFoundError:
        import psutil

        return set(psutil.pids())


class Layout(NamedTuple):
    """Addresses of the program of a process in its memory."""

    code_end: int
    environment_start: int
    environment_end: int

    @property
    def complete(self) -> bool:
        """Whether the program is loaded. During an exec, the memory of the process is empty for a moment."""
        return self.code_end > 0


def layout(place: str) -> Layout | None:
    """Return the layout of a program; None if there is no memory.

    Kernel threads and threads that have exited have none.

    Args:
        place: The process or thread, as a path below /proc.
    """
    try:
        fields = _stat(place)
        return Layout(*(int(fields[index]) for index in (24, 47, 48))) if int(fields[20]) else None
    except (OSError, IndexError, ValueError):
        return None


# Search for the rank to which the sender of a datagram belongs, by the credentials that the kernel adds


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


def state_of(pid: int) -> str:
    """Return the state of a process for a message, such as ``D``; "?" if there is none.

    If this user may not signal the process, as after the exec of a set-user-ID program, the text says so.
    """
    seen = look(pid)
    if seen is None:
        return "?"
    try:
        os.kill(pid, 0)
    except PermissionError:
        return f"{seen.state}, of a user whose processes may not be signaled"
    except ProcessLookupError:
        return "?"
    return seen.state


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
