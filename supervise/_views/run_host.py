"""Whether the supervise of a run still runs: determined from its process, or from a lock on ``events.jsonl``.

Both are needed. A file system may have no locks, or only locks that are valid on one host. A process ID has no meaning
in another PID namespace.
"""

from __future__ import annotations

import fcntl
import os
import struct
from typing import Any

_FLOCK = "hhqqi0q"
"""C's ``struct flock``: type, whence, start, length, pid."""


def lock(fd: int) -> bool:
    """Lock a file until the last descriptor of this open is closed; return whether its file system has locks.

    The lock is an open-file-description lock, which readers can query. With `flock`, a reader would have to take the
    lock, and a run that starts meanwhile would not get the lock.
    """
    command = getattr(fcntl, "F_OFD_SETLK", None)  # Linux 3.15
    if command is None:
        return False
    try:
        fcntl.fcntl(fd, command, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except OSError:
        return False
    return True


def _is_locked(fd: int) -> bool:
    command = getattr(fcntl, "F_OFD_GETLK", None)
    if command is None:
        return False
    try:
        found = fcntl.fcntl(fd, command, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except OSError:
        return False
    return bool(struct.unpack(_FLOCK, found)[0] != fcntl.F_UNLCK)


def identity(*, locked: bool) -> dict[str, Any]:
    """Return the keys and values of ``run.json`` about this process. `still_runs` reads them.

    Args:
        locked: Whether `lock` has succeeded.
    """
    return {
        "host_name": os.uname().nodename,
        "boot_id": _boot_id(),
        "pid_namespace": _pid_namespace(),
        "pid": os.getpid(),
        "started_ticks": _started_ticks(os.getpid()),
        "locked": locked,
    }


def still_runs(info: dict[str, Any], fd: int | None) -> bool | None:
    """Return whether the supervise of a run still runs; None if this host cannot know.

    Args:
        info: The return value of `identity` in that process. A value that is missing or wrong counts as unknown.
        fd: A descriptor of the file that the supervise of the run locks; None if there is no such file.
    """
    if fd is not None and _is_locked(fd):
        return True
    boot_id = _boot_id()
    same_name = info.get("host_name") == os.uname().nodename
    same_kernel = info.get("boot_id") == boot_id if boot_id else same_name
    pid = info.get("pid")
    if same_kernel and info.get("pid_namespace") == _pid_namespace() and isinstance(pid, int) and pid > 0:
        return _is_process(pid, info.get("started_ticks"))
    if same_kernel and info.get("locked") is True and fd is not None:
        return False
    return False if same_name and not same_kernel else None  # this host has been booted since the start of the run


def _is_process(pid: int, started_ticks: object) -> bool:
    """Return whether a process exists and, if `started_ticks` is known, was started at that time."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return started_ticks is None or _started_ticks(pid) in (None, started_ticks)


def _started_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since the boot; -1 for a zombie, None where there is no procfs."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return -1 if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def _boot_id() -> str | None:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return None


def _pid_namespace() -> str | None:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None
