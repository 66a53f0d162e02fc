"""The file ``samples.jsonl``: resource usage and output of each rank, at intervals that grow with the run's age."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import defaultdict
from typing import TYPE_CHECKING

from supervise._files import open_to_append
from supervise._record import NamedTuple
from supervise._runtime.wakeup import OwnedFd

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervise.messages import RankStatus


# Processor time and memory of the process trees of ranks, in one pass over procfs
#
# psutil would read several files of each process, and all processes once for each rank.


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
    processes = {
        int(name): process for name in os.listdir("/proc") if name.isdigit() and (process := _read(name)) is not None
    }
    rank_of = {pid: rank for rank, pid in pids.items()}
    owner: dict[int, int] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for pid, found in processes.items():
        children[found.parent].append(pid)
        if found.group in rank_of:  # also a process whose parent has ended
            owner[pid] = rank_of[found.group]
    owner |= rank_of
    reached = list(owner)
    for pid in reached:  # the list grows by the descendants
        for child in children[pid]:
            if child not in owner:
                owner[child] = owner[pid]
                reached.append(child)
    sums: dict[int, list[int]] = {rank: [0, 0, 0] for rank in pids}
    for pid, found in processes.items():
        if pid in owner:
            total = sums[owner[pid]]
            total[0] += found.ticks
            total[1] += found.rss_pages
            total[2] += found.alive
    return {
        rank: Usage(pids[rank], ticks / _TICKS_PER_S, pages * _PAGE_BYTES, count)
        for rank, (ticks, pages, count) in sums.items()
        if count
    }


def _read(name: str) -> _Process | None:
    try:
        fd = os.open(f"/proc/{name}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            fields = os.read(fd, 4096).rpartition(b")")[2].split()
        finally:
            os.close(fd)
        ticks = sum(map(int, fields[11:15]))  # user and system, of the process and of the children it has waited for
        return _Process(int(fields[1]), int(fields[2]), ticks, int(fields[21]), fields[0] not in b"ZXx")
    except (FileNotFoundError, ProcessLookupError, PermissionError, IndexError, ValueError):
        return None


SAMPLES = "samples.jsonl"
STREAMS = ("stdout.log", "stderr.log")
"""The log files of a rank in its folder."""
_SHORTEST_S = 1.0
_S_PER_RANK = 0.01
_AGE_PARTS = 300
"""An interval is at least the age of the run divided by this number. With more than `_MANY` ranks, it is longer.

So the file of a run of a week has at most about 30 MB.
"""
_MANY = 100
_COST_PARTS = 300
"""An interval is at least this many times the processor time that the last sample took."""


def log_paths(directory: str, rank: int, attempt: int) -> list[str]:
    """Return the paths of the logs of a life of a rank, stdout first; they may not exist."""
    return [f"{directory}/attempt_{attempt}/{rank}/{name}" for name in STREAMS]


class SampleFile(OwnedFd):
    """The file, which the first sample creates with mode 0600. Used by one thread."""

    def __init__(self, directory: str, ranks: int) -> None:
        """Plan the first sample.

        Args:
            directory: The run directory.
            ranks: Number of ranks.
        """
        super().__init__()
        self._directory = directory
        self._parts = _AGE_PARTS * min(1.0, _MANY / ranks)
        self._shortest_s = self._interval_s = max(_SHORTEST_S, ranks * _S_PER_RANK)
        self._begun_s = time.monotonic()
        self._torn = False
        self.due_s: float = self._begun_s + self._interval_s
        """Time of the next sample (monotonic)."""

    def write(self, lives: Mapping[int, RankStatus]) -> None:
        """Append a sample, and plan the next. A sample that cannot be read or written is left out.

        Args:
            lives: Local rank to the state of its life; ranks that do not run are missing.
        """
        before_s = time.thread_time()
        with contextlib.suppress(OSError):  # a full disk, or no descriptor is left
            used = trees({rank: life.pid for rank, life in lives.items() if life.pid is not None})
            whole = {
                "time": round(time.time(), 3),
                "interval_s": round(self._interval_s, 3),
                "ranks": {
                    rank: {
                        **found._asdict(),
                        **self._log_sizes(rank, lives[rank].attempt),
                        "step": lives[rank].step,
                    }
                    for rank, found in used.items()
                },
            }
            self._append(json.dumps(whole, separators=(",", ":")).encode() + b"\n")
        cost_s, now_s = time.thread_time() - before_s, time.monotonic()
        age_s = now_s - self._begun_s
        self._interval_s = max(self._shortest_s, age_s / self._parts, cost_s * _COST_PARTS)
        self.due_s = now_s + self._interval_s

    def _log_sizes(self, rank: int, attempt: int) -> dict[str, int]:
        total = size_bytes = 0
        for path in log_paths(self._directory, rank, attempt):  # stderr is the last
            try:
                size_bytes = os.lstat(path).st_size
            except OSError:  # the stream is not redirected
                size_bytes = 0
            total += size_bytes
        return {"output_bytes": total, "stderr_bytes": size_bytes}

    def _append(self, line: bytes) -> None:
        if self.fd < 0:
            self.fd: int = open_to_append(os.path.join(self._directory, SAMPLES))
        if self._torn:
            line = b"\n" + line
        self._torn = os.write(self.fd, line) < len(line)
