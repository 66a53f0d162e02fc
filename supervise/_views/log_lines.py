"""The lines of the logs of a run in the order of time.

The logs hold the bytes of the ranks and no times. The size of a log is known at some times: the log was empty when the
life started, `samples.jsonl` has the sizes at intervals, and the last byte was written when the file was last modified.
Between two such times, a constant rate of writing is assumed.
"""

from __future__ import annotations

import heapq
import os
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from supervise._opening import open_regular
from supervise._views.wording import event_time_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from supervise._views.recorded_run import RecordedRun

_PIECE_BYTES = 1 << 16
_LEAST_PIECE_BYTES = 1 << 12
_MANY = 32
"""With more logs, smaller pieces are read, because one piece of each log is kept in memory."""
_LARGEST_LINE = 1 << 20
"""A longer line is returned in pieces."""
_AT_ONCE_S = 0.05
"""Lines of one log that were written within this time stay together, without lines of other logs between them."""

Knot = tuple[float, int]
"""A time in seconds since the epoch, and the size of a log at that time."""


class Log(NamedTuple):
    """A log file of one life of a rank."""

    rank: int
    attempt: int
    stream: str
    """``stdout`` or ``stderr``."""
    path: str


class Block(NamedTuple):
    """Lines of a log that were written together."""

    at_s: float
    """Approximate time of the first line, in seconds since the epoch."""
    rank: int
    stream: str
    log: Log
    lines: list[bytes]
    """Without newlines."""


def logs_of(run: RecordedRun) -> list[Log]:
    """Return the logs of the newest attempt of each rank of a run."""
    found = []
    for rank, paths in run.logs().items():
        for path in paths:
            folder, name = os.path.split(path)
            attempt = os.path.basename(os.path.dirname(folder)).rpartition("_")[2]
            found.append(Log(rank, int(attempt), name.removesuffix(".log"), path))
    return found


class LogTimes:
    """The growth of the logs of a run over time, as far as its files show it."""

    def __init__(self, run: RecordedRun) -> None:
        """Read the events and the samples of a run."""
        self._started: dict[tuple[int, int], tuple[float, int]] = {}
        """Rank and attempt to the time of the start and the process ID."""
        self._sizes: dict[tuple[int, int], list[tuple[float, dict[str, int]]]] = {}
        """Rank and process ID to the times of samples, with the size of each log at that time."""
        for event in run.events():
            if event["event"] == "supervise.process.started":
                with suppress(KeyError, OverflowError, TypeError, ValueError):  # a rank may have written the line
                    life = int(event["local_rank"]), int(event.get("attempt") or 0)
                    self._started[life] = event_time_s(event["timestamp"]), int(event["pid"])
        for sample in run.samples():
            with suppress(AttributeError, KeyError, OverflowError, TypeError, ValueError):
                at_s = float(sample["time"])
                for rank, found in sample["ranks"].items():
                    err = int(found["stderr_bytes"])
                    sizes = {"stdout": int(found["output_bytes"]) - err, "stderr": err}
                    self._sizes.setdefault((int(rank), int(found["pid"])), []).append((at_s, sizes))

    def knots(self, log: Log, size_bytes: int, written_s: float) -> list[Knot]:
        """Return the known sizes of a log with their times, both in ascending order.

        Args:
            log: The log.
            size_bytes: Its present size.
            written_s: When it was written last, in seconds since the epoch.
        """
        if (log.rank, log.attempt) not in self._started:
            return [(written_s, 0), (written_s, size_bytes)]
        started_s, pid = self._started[log.rank, log.attempt]
        found = [(min(started_s, written_s), 0)]
        for at_s, sizes in self._sizes.get((log.rank, pid), ()):
            if at_s >= written_s or sizes[log.stream] >= size_bytes:
                break
            if at_s >= found[-1][0] and sizes[log.stream] >= found[-1][1]:
                found.append((at_s, sizes[log.stream]))
        return [*found, (written_s, size_bytes)]


class LogLines:
    """Reads logs that may grow, and returns each line once."""

    def __init__(self, times: LogTimes, after_s: float | None) -> None:
        """Begin at the start of each log.

        Args:
            times: When the logs have grown.
            after_s: Lines that were certainly written before this time are left out.
        """
        self._times = times
        self._after_s = after_s
        self._places: dict[str, Knot] = {}
        """Path to the number of bytes that were read, and the time at which the log had that size."""
        self._rests: dict[Log, bytes] = {}
        """Log to the beginning of a line whose end was not written yet."""
        self._cut: set[str] = set()
        """Paths of logs whose read begins in the middle of a line. The rest of that line is left out."""

    def look(self, logs: Iterable[Log], now_s: float) -> Iterator[Block]:
        """Return the lines that were written since the last call, in the order of time.

        Args:
            logs: The logs; new ones may appear in every call.
            now_s: The time, in seconds since the epoch.
        """
        found = []
        for log in logs:
            with suppress(OSError):
                fd = open_regular(log.path)
                try:
                    state = os.fstat(fd)
                finally:
                    os.close(fd)
                written_s = min(state.st_mtime, now_s)
                if log.path in self._places:
                    knots = [self._places[log.path], (written_s, state.st_size)]
                else:
                    knots = self._times.knots(log, state.st_size, written_s)
                    self._begin(log, knots)
                if state.st_size > self._places[log.path][1]:
                    found.append((log, knots))
        self._after_s = None
        piece_bytes = max(_LEAST_PIECE_BYTES, _PIECE_BYTES * _MANY // max(_MANY, len(found)))
        yield from heapq.merge(*(self._blocks(log, knots, piece_bytes) for log, knots in found))
        for log, knots in found:
            self._places[log.path] = now_s, knots[-1][1]

    def rests(self) -> Iterator[tuple[Log, bytes]]:
        """Return the last line of each log that does not end in a newline. Call this method once."""
        rests, self._rests = self._rests, {}
        return ((log, rest) for log, rest in sorted(rests.items()) if rest)

    def _begin(self, log: Log, knots: list[Knot]) -> None:
        """Begin to read a log: at its last known size before the time from which lines are wanted."""
        begin = 0
        if self._after_s is not None:
            begin = max((size for at_s, size in knots if at_s <= self._after_s), default=0)
        if begin:
            self._cut.add(log.path)
            begin -= 1  # the byte before shows whether a line begins here
        self._places[log.path] = knots[0][0], begin

    def _blocks(self, log: Log, knots: list[Knot], piece_bytes: int) -> Iterator[Block]:
        clock = _Clock(knots)
        place, end = self._places[log.path][1], knots[-1][1]
        while place < end:
            try:
                begin, piece = _piece(log.path, place, min(piece_bytes, end - place))
            except OSError:
                return
            if not piece:
                return
            if begin > place:  # --log-max-bytes has removed the bytes in between
                self._rests.pop(log, None)
            place = begin + len(piece)
            if log.path in self._cut:
                _, newline, piece = piece.partition(b"\n")
                if not newline:
                    continue
                self._cut.discard(log.path)
            *lines, rest = (self._rests.get(log, b"") + piece).split(b"\n")
            if len(rest) > _LARGEST_LINE:
                lines, rest = [*lines, rest], b""
            self._rests[log] = rest
            yield from _timed(log, lines, clock, place - len(rest))


def _timed(log: Log, lines: list[bytes], clock: _Clock, end: int) -> Iterator[Block]:
    """Return lines as blocks. `end` is the place in the log where the last line ends."""
    if not lines:
        return
    place = end - sum(map(len, lines)) - len(lines)
    first_s = clock.at(place + len(lines[0]) + 1)
    if clock.peek(end) - first_s <= _AT_ONCE_S:
        yield Block(first_s, log.rank, log.stream, log, lines)
        return
    for line in lines:
        place += len(line) + 1
        yield Block(clock.at(place), log.rank, log.stream, log, [line])


class _Clock:
    """The times at which a log had a size; callers pass ascending sizes to `at`."""

    def __init__(self, knots: list[Knot]) -> None:
        self._knots = knots
        self._index = 0

    def at(self, size_bytes: int) -> float:
        self._index = self._find(size_bytes)
        return self._between(self._index, size_bytes)

    def peek(self, size_bytes: int) -> float:
        return self._between(self._find(size_bytes), size_bytes)

    def _find(self, size_bytes: int) -> int:
        index = self._index
        while index < len(self._knots) - 2 and self._knots[index + 1][1] < size_bytes:
            index += 1
        return index

    def _between(self, index: int, size_bytes: int) -> float:
        (from_s, least), (to_s, most) = self._knots[index : index + 2]
        part = (size_bytes - least) / (most - least) if most > least else 1.0
        return from_s + (to_s - from_s) * min(max(part, 0.0), 1.0)


def _piece(path: str, place: int, most: int) -> tuple[int, bytes]:
    """Return data of a file from a place on, and the place where the data begins: after a hole if there is one.

    Raises:
        OSError: The file cannot be read.
    """
    fd = open_regular(path)
    try:
        with suppress(OSError):  # no data follows, or no holes are known
            place = os.lseek(fd, place, os.SEEK_DATA)
        return place, os.pread(fd, most, place)
    finally:
        os.close(fd)
