"""Readings of a run: the state that supervise reports, the usage of the processes, and the ends of the logs."""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from contextlib import suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from supervise._files import closing, open_regular
from supervise._printable import one_line, printable
from supervise._record import NamedTuple
from supervise._story.wording import spans
from supervise._views.incidents import (
    KINDS,
    LONGEST_TEXT,
    Incident,
    Name,
    exit_with_complaint,
    incident,
    why_failed,
)
from supervise._views.recorded_run import objects
from supervise._views.run_state import RunState
from supervise._views.samples import Usage, log_paths, trees

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from supervise._views.recorded_run import RecordedRun


# One reading of a run: the state and the resource usage of each rank, as plain data and as JSON


SCHEMA_VERSION = 1


class RankReading(NamedTuple):
    """The state and the resource usage of one rank. None: not known, or not read yet."""

    rank: int
    role: str
    """Role and role rank, such as ``trainer3``; empty in a run with one role."""
    state: str
    """A `RankState`; ``hung`` from the watchdog's report of a hang until the next heartbeat or output."""
    end: str | None
    """The end of its present life, such as ``exit code 3`` or ``SIGKILL``, if that life has failed; otherwise None."""
    pid: int | None
    attempt: int
    restarts: int
    cpu: float | None
    """Processors that its process tree has used on average since the last reading: 1.0 is one processor."""
    rss_bytes: int | None
    """Resident memory of its process tree."""
    processes: int | None
    """Number of processes in its tree."""
    step: int | None
    beat_age_s: float | None
    """Seconds since its last heartbeat or higher step."""
    status: str | None
    """Its last status text, on one printable line."""
    output_bytes: int | None
    """Size of the logs of its present life."""
    output_bytes_per_s: float | None
    """Mean growth of these logs over the last 10 s, or since the first reading of this life."""
    last_line: str | None
    """The last line of its newest log, printable."""


class Reading(NamedTuple):
    """The state and the resource usage of a gang at one moment."""

    at_s: float
    """Seconds since the epoch."""
    phase: str
    attempt: int
    pid: int
    """Process ID of the process that supervises the gang."""
    ranks: dict[int, RankReading]
    """Local rank to its reading, in the order of ranks."""
    incidents: Sequence[Incident] = ()
    """The kept incidents, the oldest first."""
    incident_count: int = 0
    """Number of all incidents so far."""
    first_failure: Incident | None = None
    failed: Sequence[int] = ()
    """The ranks with a failed life, the first failure first."""
    complete: bool = True
    """False for the very first reading, which has only what supervise reports."""

    @property
    def restarts(self) -> int:
        """Restarts of all ranks together; a restart of the whole gang counts once."""
        return self.attempt + sum(max(0, rank.restarts - self.attempt) for rank in self.ranks.values())


def incident_objects(incidents: Iterable[Incident]) -> list[dict[str, Any]]:
    """Return incidents as JSON objects."""
    return [
        {"time": round(each.at_s, 3), "kind": each.kind, "rank": each.rank, "text": each.text} for each in incidents
    ]


def as_object(reading: Reading, incidents: Sequence[Incident]) -> dict[str, Any]:
    """Return a reading as the JSON object of a line.

    Args:
        reading: The reading.
        incidents: The incidents since the previous line.
    """
    return {
        "time": round(reading.at_s, 3),
        "phase": reading.phase,
        "attempt": reading.attempt,
        "pid": reading.pid,
        "restarts": reading.restarts,
        "ranks": {rank: _rank(row) for rank, row in reading.ranks.items()},
        "incidents": incident_objects(incidents),
    }


def _rank(row: RankReading) -> dict[str, Any]:
    found = row._asdict()
    del found["rank"]
    for name in ("cpu", "beat_age_s", "output_bytes_per_s"):
        if found[name] is not None:
            found[name] = round(found[name], 3)
    return found


# The ends of the logs of ranks: their sizes, their last lines, and the lines of the page of logs


_TAIL_BYTES = 4096
_PANE_BYTES = 128 << 10
_LONGEST_TAIL_LINE = 1000
_MOST_LINES = 1 << 13
"""The number of last lines that are kept. With more ranks than this, each reading reads the ends of all logs."""


class LogEnd(NamedTuple):
    """Where the logs of one life of a rank end. If it has not changed, the content has not changed."""

    size_bytes: int
    """Of both streams together."""
    written_s: float
    """The last write, in seconds since the epoch."""
    newest: str
    """Path of the log that was written last."""


def log_end(directory: str, rank: int, attempt: int) -> LogEnd | None:
    """Return where the logs of a life in a run directory end; None if it has none."""
    total, newest, found = 0, "", None
    for path in log_paths(directory, rank, attempt):
        try:
            one = os.lstat(path)
        except OSError:  # the stream is not redirected
            continue
        if stat.S_ISREG(one.st_mode):
            total += one.st_size
            if found is None or (one.st_size and (not found.st_size or one.st_mtime_ns >= found.st_mtime_ns)):
                newest, found = path, one
    return None if found is None else LogEnd(total, found.st_mtime, newest)


@lru_cache(maxsize=_MOST_LINES)
def last_line(end: LogEnd) -> str | None:
    """Return the last line with text of the newest log, printable; None if no line has text."""
    return _last_line(end.newest)


def _last_line(path: str) -> str | None:
    return next((line for line in reversed(read_lines(path, _TAIL_BYTES)) if line.strip()), None)


def read_lines(path: str, most_bytes: int = _PANE_BYTES) -> list[str]:
    """Return the last lines of a log as a terminal shows them, printable; empty if the log cannot be read.

    In a line with carriage returns, such as a progress bar, the last part that is not empty counts.
    """
    try:
        with closing(open_regular(path)) as fd:
            size = os.fstat(fd).st_size
            data = os.pread(fd, most_bytes, max(0, size - most_bytes))
    except OSError:
        return []
    lines = data.lstrip(b"\0").decode(errors="replace").split("\n")
    if size > most_bytes and len(lines) > 1 and data[0]:  # NUL: the first line begins after a hole
        del lines[0]  # the beginning of the line is missing
    if lines and not lines[-1]:
        del lines[-1]
    return [_shown(line) for line in lines]


def _shown(line: str) -> str:
    part = next((part for part in reversed(line.split("\r")) if part.strip()), "")
    return printable(part).expandtabs(8)[:_LONGEST_TAIL_LINE]


# The incidents of a run so far, from its events. The file of events is followed while the run goes on


MOST_KEPT = 500
_MOST_BYTES = 4 << 20
"""If a file, or its growth between two readings, is larger than this, only the end is read."""
_LEVELS = {"process.exited": ("error",), "process.restarting": ("warning",)}
"""Events that are an incident at some levels only: another rank may be the cause."""
_NO_INCIDENTS = ("process.leaked", "process.unkillable")


class Incidents:
    """Follows ``events.jsonl``. Used by one thread."""

    def __init__(self, directory: str, name: Name = spans) -> None:
        """Begin at the start of the file.

        Args:
            directory: The run directory.
            name: Function that returns ranks as text.
        """
        self._name = name
        self.kept: deque[Incident] = deque(maxlen=MOST_KEPT)
        """The newest incidents, the oldest first."""
        self.first: Incident | None = None
        """The first failure of the present attempt of the gang."""
        self.count = 0
        """Number of all incidents, with those that are not kept any more."""
        self.state = RunState()
        self._directory = directory
        self._place = 0
        """Where the first line begins that was not read, or that was not complete."""

    def look(self) -> list[Incident]:
        """Read the events that were written since the last call; return the new incidents."""
        found = []
        for event, place in objects(f"{self._directory}/events.jsonl", self._place, _MOST_BYTES):
            self._place = place
            if event is not None and (each := self._incident(event)) is not None:
                found.append(each)
        self.kept.extend(found)
        self.count += len(found)
        return found

    def _incident(self, event: dict[str, Any]) -> Incident | None:
        it = self.state.apply(event)
        if it is None or it.name not in KINDS or it.name in _NO_INCIDENTS:
            return None
        level = it.fields.get("level")
        told = it.name == "process.faulted" and it.fields["message"].startswith("hung")  # by the event of the hang
        if told or level not in _LEVELS.get(it.name, (level,)):
            return None
        found = incident(it, self._name, present=True)
        if it.name == "gang.restarting":
            self.first = None
        elif it.name == "process.exited" and it.rank is not None:
            logs = reversed(log_paths(self._directory, it.rank, it.fields.get("attempt", 0)))  # stderr first
            words = next(filter(None, map(_last_line, logs)), None)
            found = found._replace(text=f"{found.text}; last line: {words.strip()}") if words else found
            self.first = self.first or found
        return found


_SHORTEST_S = 1.0
_S_PER_RANK = 0.002
_COST_PARTS = 20
"""The time between two readings is at least this many times the processor time of a reading."""
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

    def __init__(self, run: RecordedRun | None, titles: Sequence[str] = ()) -> None:
        """Begin without a reading.

        Args:
            run: The run; None for the gang of another program, whose files are not known.
            titles: Role and role rank of each rank of that gang; empty if all have the same role.
        """
        self.interval_s = _SHORTEST_S
        """Time until the next reading, in seconds."""
        self._run = run
        self._titles = titles if run is None else run.titles
        self._directory = os.devnull if run is None else run.path  # there are no files below the null device
        self.incidents = Incidents(self._directory, partial(spans, titles=titles) if run is None else run.spans)
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
        return self._reading(status, {}, {}, {}, {})._replace(complete=False)

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
        used: dict[int, Usage] = {}
        if same_pids and not self._remote:
            pids = {int(rank): rows[rank]["pid"] for rank in status["running"] if isinstance(rows[rank]["pid"], int)}
            with suppress(OSError):  # no procfs
                used = trees(pids)
        ends = {rank: end for rank, at in attempts.items() if (end := log_end(self._directory, rank, at)) is not None}
        self.incidents.look()
        sizes = {rank: (attempts[rank], end.size_bytes) for rank, end in ends.items()}
        cpu, growth = self._rates(_Before(now_s, used, sizes))
        found = self._reading(status, used, ends, cpu, growth)
        cost_s = time.thread_time() - begun_s
        self.interval_s = max(_SHORTEST_S, len(rows) * _S_PER_RANK, cost_s * _COST_PARTS)
        return found

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
                status=None if row["status"] is None else one_line(str(row["status"]))[:LONGEST_TEXT],
                output_bytes=None if end is None else end.size_bytes,
                output_bytes_per_s=growth.get(rank),
                last_line=None if end is None else last_line(end),
            )
        phase = "starting" if status["phase"] == "new" else one_line(str(status["phase"]))
        told = self.incidents
        return Reading(
            now_s,
            phase,
            int(status["attempt"]),
            int(status["pid"]),
            ranks,
            incidents=list(told.kept),
            incident_count=told.count,
            first_failure=told.first,
            failed=list(told.state.last_failures),
        )

    def _end(self, rank: int, row: dict[str, Any]) -> str | None:
        """Return how a rank that has failed ended; None if it has not failed, or its end is not known yet."""
        found = self.incidents.state.last_failures.get(rank)
        if row["state"] != "failed" or found is None or found.life.attempt != row["attempt"]:
            return None
        return None if found.life.end is None else exit_with_complaint(found.life.end)

    def why(self, rank: int) -> list[str]:
        """Return why the last failed life of a rank failed; empty if no life has failed, or the run has no files."""
        found = self.incidents.state.last_failures.get(rank)
        return [] if found is None or self._run is None else why_failed(self._run, rank, found)

    def _role(self, rank: int) -> str:
        role, _, number = (self._titles[rank] if 0 <= rank < len(self._titles) else "").rpartition(" ")
        return f"{role[:40]}{number}"

    def _hangs(self, rank: int, row: dict[str, Any], end: LogEnd | None, now_s: float) -> bool:
        """Return whether the last reported hang continues."""
        known = self.incidents.state.ranks.get(rank)
        life = None if known is None else known.life
        hang = None if life is None else life.hang
        if life is None or hang is None or life.attempt != int(row["attempt"]) or row["state"] != "ready":
            return False
        if hang.fields["tier"] == "heartbeat":
            age_s = row["beat_age_s"]
            return age_s is None or now_s - float(age_s) < hang.at_s
        return hang.fields["tier"] == "answer" or end is None or end.written_s < hang.at_s
