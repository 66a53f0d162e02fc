"""The file ``samples.jsonl``: resource usage and output of each rank, at intervals that grow with the run's age."""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import TYPE_CHECKING, NamedTuple

from supervise._append import open_to_append

if TYPE_CHECKING:
    from collections.abc import Mapping

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


class Life(NamedTuple):
    """The present life of a rank that runs."""

    pid: int
    attempt: int
    step: int | None
    """The last step that it has reported."""


class SampleFile:
    """The file, which the first sample creates with mode 0600. Used by one thread."""

    def __init__(self, directory: str, ranks: int) -> None:
        """Plan the first sample.

        Args:
            directory: The run directory.
            ranks: Number of ranks.
        """
        self._directory = directory
        self._fd = -1
        self._parts = _AGE_PARTS * min(1.0, _MANY / ranks)
        self._shortest_s = self._interval_s = max(_SHORTEST_S, ranks * _S_PER_RANK)
        self._begun_s = time.monotonic()
        self._torn = False
        self.due_s = self._begun_s + self._interval_s
        """Time of the next sample (monotonic)."""

    def write(self, lives: Mapping[int, Life]) -> None:
        """Append a sample, and plan the next. A sample that cannot be read or written is left out.

        Args:
            lives: Local rank to its life; ranks that do not run are missing.
        """
        before_s = time.thread_time()
        with contextlib.suppress(OSError):  # a full disk, or no descriptor is left
            self._append(self._sample(lives))
        self._plan(time.thread_time() - before_s)

    def close(self) -> None:
        """Close the file. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _plan(self, cost_s: float) -> None:
        now_s = time.monotonic()
        age_s = now_s - self._begun_s
        self._interval_s = max(self._shortest_s, age_s / self._parts, cost_s * _COST_PARTS)
        self.due_s = now_s + self._interval_s

    def _sample(self, lives: Mapping[int, Life]) -> bytes:
        from supervise._views import usage  # a short run has no sample

        used = usage.trees({rank: life.pid for rank, life in lives.items()})
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
        return json.dumps(whole, separators=(",", ":")).encode() + b"\n"

    def _log_sizes(self, rank: int, attempt: int) -> dict[str, int]:
        total = size_bytes = 0
        for name in STREAMS:  # stderr is the last
            try:
                size_bytes = os.lstat(f"{self._directory}/attempt_{attempt}/{rank}/{name}").st_size
            except OSError:  # the stream is not redirected
                size_bytes = 0
            total += size_bytes
        return {"output_bytes": total, "stderr_bytes": size_bytes}

    def _append(self, line: bytes) -> None:
        if self._fd < 0:
            self._fd = open_to_append(os.path.join(self._directory, SAMPLES))
        if self._torn:
            line = b"\n" + line
        written = os.write(self._fd, line)
        self._torn = written < len(line)
