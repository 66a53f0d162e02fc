"""Readings of a run: the state that supervise reports, the usage of the processes, and the ends of the logs."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from supervise._printable import one_line
from supervise._views import usage
from supervise._views.failed_ranks import why_failed
from supervise._views.top.incidents import Incidents
from supervise._views.top.log_tails import LogTails
from supervise._views.top.reading import RankReading, Reading
from supervise._views.wording import ended_how

if TYPE_CHECKING:
    from supervise._views.recorded_run import RecordedRun
    from supervise._views.top.incidents import Hang
    from supervise._views.top.log_tails import LogEnd
    from supervise._views.usage import Usage

_SHORTEST_S = 1.0
_S_PER_RANK = 0.002
_COST_PARTS = 20
"""The time between two readings is at least this many times the processor time of a reading."""
_LONGEST_TEXT = 300
_OUTPUT_S = 10.0
"""The least time over which the growth of logs is averaged: many programs print a line every few seconds."""


class _Before(NamedTuple):
    """The values of the previous reading."""

    at_s: float
    """Monotonic."""
    used: dict[int, Usage]
    sizes: dict[int, tuple[int, int]]
    """Rank to its attempt and the size of its logs in bytes."""


class Reader:
    """Makes readings, and keeps the values from which rates are computed. Used by one thread."""

    def __init__(self, run: RecordedRun | None) -> None:
        """Begin without a reading.

        Args:
            run: The run; None for the gang of another program, whose files are not known.
        """
        self.interval_s = _SHORTEST_S
        """Time until the next reading, in seconds."""
        self.logs = None if run is None else LogTails(run.path)
        self.incidents = None if run is None or self.logs is None else Incidents(run.path, self.logs.last_words)
        self._run = run
        roles = [] if run is None else run.info.get("roles") or []
        self._several_roles = isinstance(roles, list) and len(roles) > 1
        self._remote = run is not None and run.info.get("engine", "local") != "local"
        self._before: deque[_Before] = deque()
        """The readings of the last `_OUTPUT_S`, and the one before these; the oldest first."""

    def first(self, status: dict[str, Any]) -> Reading:
        """Return a reading of what supervise reports, without inspecting processes or files.

        Args:
            status: The result of the request ``status``.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: `status` is not such a result.
        """
        return self._reading(status, {}, {}, {}, {})

    def read(self, status: dict[str, Any], *, same_pids: bool) -> Reading:
        """Return a reading. A value that cannot be read is None.

        Args:
            status: The result of the request ``status``.
            same_pids: Whether process IDs of supervise are valid in this process, too.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: `status` is not such a result.
        """
        begun_s = time.thread_time()
        now_s = time.monotonic()
        rows = {int(rank): row for rank, row in status["ranks"].items()}
        attempts = {rank: int(row["attempt"]) for rank, row in rows.items()}
        used = self._used(status, rows) if same_pids and not self._remote else {}
        ends: dict[int, LogEnd] = {}
        if self.logs is not None:
            ends = {rank: end for rank, at in attempts.items() if (end := self.logs.end(rank, at)) is not None}
            self.logs.forget_other_lives(ends)
        if self.incidents is not None:
            self.incidents.look()
        sizes = {rank: (attempts[rank], end.size_bytes) for rank, end in ends.items()}
        cpu, growth = self._rates(_Before(now_s, used, sizes))
        found = self._reading(status, used, ends, cpu, growth)
        cost_s = time.thread_time() - begun_s
        self.interval_s = max(_SHORTEST_S, len(rows) * _S_PER_RANK, cost_s * _COST_PARTS)
        return found

    def _used(self, status: dict[str, Any], rows: dict[int, dict[str, Any]]) -> dict[int, Usage]:
        pids = {int(rank): rows[rank]["pid"] for rank in status["running"] if isinstance(rows[rank]["pid"], int)}
        try:
            return usage.trees(pids)
        except OSError:  # no procfs
            return {}

    def _rates(self, now: _Before) -> tuple[dict[int, float], dict[int, float]]:
        kept = self._before
        kept.append(now)
        while len(kept) > 1 and kept[1].at_s <= now.at_s - _OUTPUT_S:
            kept.popleft()
        growth = {}
        for rank, (attempt, size_bytes) in now.sizes.items():
            oldest = next(before for before in kept if before.sizes.get(rank, (None, 0))[0] == attempt)
            if oldest.at_s < now.at_s:
                growth[rank] = max(0, size_bytes - oldest.sizes[rank][1]) / (now.at_s - oldest.at_s)
        before = kept[-2] if len(kept) > 1 else now
        past_s = now.at_s - before.at_s
        cpu = {
            rank: max(0.0, one.cpu_s - before.used[rank].cpu_s) / past_s
            for rank, one in now.used.items()
            if past_s > 0 and rank in before.used and before.used[rank].pid == one.pid
        }
        return cpu, growth

    def _reading(
        self,
        status: dict[str, Any],
        used: dict[int, Usage],
        ends: dict[int, LogEnd],
        cpu: dict[int, float],
        growth: dict[int, float],
    ) -> Reading:
        now_s = time.time()
        ranks = {}
        for key, row in sorted(status["ranks"].items(), key=lambda item: int(item[0])):
            rank = int(key)
            one, end = used.get(rank), ends.get(rank)
            ranks[rank] = RankReading(
                rank=rank,
                role=self._role(rank),
                state="hung" if self._hangs(rank, row, end, now_s) else one_line(str(row["state"])),
                end=self._end(rank, row),
                pid=row["pid"],
                attempt=int(row["attempt"]),
                restarts=int(row["restarts"]),
                cpu=cpu.get(rank),
                rss_bytes=None if one is None else one.rss_bytes,
                processes=None if one is None else one.processes,
                step=row["step"],
                beat_age_s=row["beat_age_s"],
                status=None if row["status"] is None else one_line(str(row["status"]))[:_LONGEST_TEXT],
                output_bytes=None if end is None else end.size_bytes,
                output_bytes_per_s=growth.get(rank),
                last_line=None if end is None or self.logs is None else self.logs.last_line(end),
            )
        phase = "starting" if status["phase"] == "new" else one_line(str(status["phase"]))
        return Reading(now_s, phase, int(status["attempt"]), int(status["pid"]), ranks)

    def _end(self, rank: int, row: dict[str, Any]) -> str | None:
        """Return how a rank that has failed ended; None if it has not failed, or its end is not known yet."""
        event = None if self.incidents is None else self.incidents.failed.latest.get(rank)
        if row["state"] != "failed" or event is None or event.get("attempt") != row["attempt"]:
            return None
        try:
            return ended_how(event)
        except (KeyError, TypeError, ValueError):  # the rank was not started
            return None

    def why(self, rank: int) -> list[str]:
        """Return why the last failed life of a rank failed; empty if no life has failed, or the run has no files."""
        event = None if self.incidents is None else self.incidents.failed.latest.get(rank)
        return [] if event is None or self._run is None else why_failed(self._run, event)

    def _role(self, rank: int) -> str:
        if self._run is None or not self._several_roles:
            return ""
        role, number = self._run.title(rank)
        return f"{one_line(role)[:40]}{number}"

    def _hangs(self, rank: int, row: dict[str, Any], end: LogEnd | None, now_s: float) -> bool:
        """Return whether the last reported hang continues."""
        hang: Hang | None = None if self.incidents is None else self.incidents.hangs.get(rank)
        if hang is None or hang.attempt != int(row["attempt"]) or row["state"] != "ready":
            return False
        if hang.by_beat:
            age_s = row["beat_age_s"]
            return age_s is None or now_s - float(age_s) < hang.at_s
        return end is None or end.written_s < hang.at_s
