"""What the system says of a process by its number. The number may be another's: compare the start time."""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

_DEAD = frozenset("ZXx")
_GONE = frozenset({errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.EACCES, errno.EPERM})


class Seen(NamedTuple):
    """A process at one moment."""

    state: str
    """The kernel's letter, such as D, T or Z."""
    parent: int
    """Its parent's number."""
    group: int
    """The number of its process group."""
    started: float
    """When it was started: two processes of one number differ in it."""
    stop_signal: int = 0
    """What stopped it, where the kernel tells and it is stopped; otherwise 0."""

    @property
    def dead(self) -> bool:
        """Whether it has ended; it may be a zombie."""
        return self.state in _DEAD


def look(pid: int) -> Seen | None:
    """Return what is known of the process that has this number now; None where there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return Seen(fields[0], int(fields[1]), int(fields[2]), int(fields[19]), int(fields[49]))
    except (FileNotFoundError, ProcessLookupError):
        return None if os.path.isdir("/proc/self") else _ask_psutil(pid)
    except (OSError, IndexError, ValueError):
        return None


def _ask_psutil(pid: int) -> Seen | None:
    """Look where there is no /proc."""
    import psutil

    letters = {psutil.STATUS_ZOMBIE: "Z", psutil.STATUS_STOPPED: "T", psutil.STATUS_DISK_SLEEP: "D"}
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            state = letters.get(process.status(), "S")
            return Seen(state, process.ppid(), os.getpgid(pid), process.create_time())
    except (psutil.Error, OSError):
        return None


def unless_gone(error: OSError) -> None:
    """Raise `error`, unless it says that a process is gone or somebody else's: not being able to look is not that."""
    if error.errno not in _GONE:
        raise error


def all_pids() -> list[int]:
    """Return the numbers of all processes.

    Raises:
        OSError: There is no descriptor left to look with.
    """
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except FileNotFoundError:
        import psutil

        return list(psutil.pids())
