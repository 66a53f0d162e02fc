"""Processor time and memory of the process trees of ranks, in one pass over procfs.

psutil would read several files of each process, and all processes once for each rank.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Usage(NamedTuple):
    """The usage of one rank's processes: its leader, the members of its process group, and all their descendants."""

    pid: int
    """Process ID of the leader."""
    cpu_s: float
    """Processor time in seconds, with that of ended children for which a process of the tree has waited.

    The sum falls when a process ends for which no other process of the tree waits.
    """
    rss_bytes: int
    """Resident memory. A page that several processes share counts once for each process."""
    processes: int
    """Number of processes; a zombie is not counted."""


class _Process(NamedTuple):
    parent: int
    group: int
    ticks: int
    rss_pages: int
    alive: bool


def trees(pids: Mapping[int, int]) -> dict[int, Usage]:
    """Return the usage of the process tree of each rank.

    Args:
        pids: Rank to the process ID of its leader, which leads a process group.

    Returns:
        Rank to its usage; a rank without a process is missing.

    Raises:
        OSError: There is no procfs, or no descriptor is left.
    """
    processes = _all_processes()
    rank_of = {pid: rank for rank, pid in pids.items()}
    owner: dict[int, int | None] = dict(rank_of)
    sums: dict[int, list[int]] = {rank: [0, 0, 0] for rank in pids}
    for pid in processes:
        rank = _owner(pid, processes, rank_of, owner)
        if rank is not None:
            found, total = processes[pid], sums[rank]
            total[0] += found.ticks
            total[1] += found.rss_pages
            total[2] += found.alive
    return {
        rank: Usage(pids[rank], ticks / _TICKS_PER_S, pages * _PAGE_BYTES, count)
        for rank, (ticks, pages, count) in sums.items()
        if count
    }


def _owner(
    pid: int, processes: dict[int, _Process], rank_of: Mapping[int, int], owner: dict[int, int | None]
) -> int | None:
    """Return the rank to whose tree a process belongs. `owner` keeps the known owners."""
    path: list[int] = []
    rank: int | None = None
    at = pid
    while at not in owner:
        found = processes.get(at)
        if found is None or at in path:  # the parent is in another PID namespace, or has ended meanwhile
            break
        path.append(at)
        if found.group in rank_of:  # also a process whose parent has ended
            rank = rank_of[found.group]
            break
        at = found.parent
    else:
        rank = owner[at]
    owner.update(dict.fromkeys(path, rank))
    return rank


def _all_processes() -> dict[int, _Process]:
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := _read(name)) is not None:
            found[int(name)] = process
    return found


def _read(name: str) -> _Process | None:
    try:
        fd = os.open(f"/proc/{name}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    try:
        fields = os.read(fd, 4096).rpartition(b")")[2].split()
        ticks = sum(map(int, fields[11:15]))  # user and system, of the process and of the children it has waited for
        return _Process(int(fields[1]), int(fields[2]), ticks, int(fields[21]), fields[0] not in b"ZXx")
    except (ProcessLookupError, IndexError, ValueError):
        return None
    finally:
        os.close(fd)
