"""What the system says of a process by its number. The number may be another's: compare the start time."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEAD = frozenset("ZXx")
_ROUNDS = 16
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
    except (OSError, IndexError, ValueError):
        return None


def unless_gone(error: OSError) -> None:
    """Raise `error`, unless it says that a process is gone or somebody else's: not being able to look is not that."""
    if error.errno not in _GONE:
        raise error


def all_pids() -> Iterator[int]:
    """Give the number of every process, also of those that are started while the caller looks at the others.

    So what a process has forked before its own end is seen, however short its own life was. Where there are
    ever new ones, it ends all the same.

    Raises:
        OSError: There is no descriptor left to look with.
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
    """Where the program of a process lies in its memory."""

    code_end: int
    environment_start: int
    environment_end: int

    @property
    def complete(self) -> bool:
        """Whether it is in place: in the middle of an exec there is a memory, and nothing in it yet."""
        return self.code_end > 0


def layout(place: str) -> Layout | None:
    """Return where a program lies; None where there is no memory: of a thread of the kernel, or one that has ended.

    Args:
        place: The process or thread, by its folder in /proc.
    """
    try:
        with open(f"/proc/{place}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return Layout(*(int(fields[index]) for index in (24, 47, 48))) if int(fields[20]) else None
    except (OSError, IndexError, ValueError):
        return None
