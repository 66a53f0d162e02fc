"""``supervise logs RUN``: the output of the ranks, from their files."""

from __future__ import annotations

import errno
import heapq
import json
import os
import select
import sys
import time
from bisect import bisect_left
from contextlib import suppress
from datetime import datetime
from functools import cache
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING

from supervise._files import closing, data_begin, open_regular
from supervise._logs.lines import last_segment
from supervise._printable import one_line
from supervise._record import NamedTuple
from supervise._views.recorded_run import RecordedRun
from supervise._views.run_state import checked
from supervise.cli.commands.runs import RunParser
from supervise.cli.options import values
from supervise.cli.run.console import Console
from supervise.cli.streams import complaint

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Sequence

    _Write = Callable[["Log", float, float, list[bytes]], None]
    """Prints lines of a log, with the approximate time, and the seconds between the known times around it."""


# The lines of the logs of a run in the order of time
#
# The logs hold the bytes of the ranks and no times. The size of a log is known at some times: the log was empty when
# the life started, `samples.jsonl` has the sizes at intervals, and the last byte was written when the file was last
# modified. Between two such times, a constant rate of writing is assumed.


_PIECE_BYTES = 1 << 16
_LEAST_PIECE_BYTES = 1 << 12
_MANY = 32
"""With more logs, smaller pieces are read, because one piece of each log is kept in memory."""
_LARGEST_LINE = 8 << 20
"""A longer line is returned in pieces."""
_AT_ONCE_S = 0.05
"""Lines of one log that were written within this time stay together, without lines of other logs between them."""

Knot = tuple[float, int]
"""A time in seconds since the epoch, and the size of a log at that time."""
_size_of = itemgetter(1)


_TICK_S = 0.01
"""The longest step of the kernel's clock for files. A line without an end comes after the other lines of its step."""


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
    log: Log
    lines: list[bytes]
    """Without newlines."""
    within_s: float
    """Seconds between the two known times between which the first line was written."""


def logs_of(run: RecordedRun) -> list[Log]:
    """Return the logs of all lives of all ranks of a run; those of one rank are in the order of its lives."""
    return [
        Log(rank, attempt, os.path.basename(path).removesuffix(".log"), path)
        for rank, lives in run.lives().items()
        for attempt, paths in sorted(lives.items())
        for path in paths
    ]


class LogTimes:
    """The growth of the logs of a run over time, as far as its files show it."""

    def __init__(self, run: RecordedRun) -> None:
        """Read the events and the samples of a run."""
        self._started: dict[tuple[int, int], tuple[float, int]] = {}
        """Rank and attempt to the time of the start and the process ID."""
        self._sizes: dict[tuple[int, int], list[tuple[float, dict[str, int]]]] = {}
        """Rank and process ID to the times of samples, with the size of each log at that time."""
        self._run = run
        for event in run.events():  # only the starts, so that a long history takes little memory
            if event["event"] == "supervise.process.started" and (it := checked(event)) is not None:
                self._started[it.rank or 0, it.fields.get("attempt", 0)] = it.at_s, it.fields["pid"]
        for sample in run.samples():
            with suppress(AttributeError, KeyError, OverflowError, TypeError, ValueError):
                at_s = float(sample["time"])
                for rank, found in sample["ranks"].items():
                    err = int(found["stderr_bytes"])
                    sizes = {"stdout": int(found["output_bytes"]) - err, "stderr": err}
                    self._sizes.setdefault((int(rank), int(found["pid"])), []).append((at_s, sizes))

    def is_trimmed(self, log: Log) -> bool:
        """Return whether ``--log-max-bytes`` has removed a part of a log until now."""
        events = self._run.events()
        return any(it["event"] == "supervise.log.trimmed" and it.get("path") == log.path for it in events)

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

    def __init__(
        self, times: LogTimes, after_s: float | None, complain: Callable[[str], object] = lambda _: None
    ) -> None:
        """Begin at the start of each log.

        Args:
            times: When the logs have grown.
            after_s: Lines that were certainly written before this time are left out.
            complain: Called with a message if lines are gone that were not read.
        """
        self._complain = complain
        self._files: dict[str, os.stat_result] = {}
        """Path to the file that it was at the last look."""
        self._times = times
        self._after_s = -inf if after_s is None else after_s
        self._places: dict[str, Knot] = {}
        """Path to the number of bytes that were read, and the time at which the log had that size."""
        self._rests: dict[Log, bytes] = {}
        """Log to the beginning of a line whose end was not written yet."""
        self._written_s: dict[Log, float] = {}
        """Log to the time at which it was written last."""
        self._cut: set[str] = set()
        """Paths of logs whose read begins in the middle of a line. The rest of that line is left out."""
        self._past: set[Log] = set()
        """Logs of replaced lives, which were read to their end."""
        self._follows = False  # whether logs that are new may have lines that were removed before they were read

    def look(self, logs: Iterable[Log], now_s: float, *, last: bool = False) -> Iterator[Block]:
        """Return the lines that were written since the last call, in the order of time.

        All lines of a life of a rank come before those of its next life.

        Args:
            logs: The logs, those of an earlier life of a rank before those of a later one; new ones may appear in every
                call. The processes of a life have ended when the next life has logs.
            now_s: The time, in seconds since the epoch.
            last: Whether this is the last call. Then a last line without a newline is among the others.
        """
        found = []
        lives: dict[int, dict[int, list[Log]]] = {}
        for log in logs:
            lives.setdefault(log.rank, {}).setdefault(log.attempt, []).append(log)
            if log in self._past:
                continue
            with suppress(OSError):
                with closing(open_regular(log.path)) as fd:
                    state = os.fstat(fd)
                self._written_s[log] = written_s = min(state.st_mtime, now_s)
                if log.path in self._places:
                    knots = [self._places[log.path], (written_s, state.st_size)]
                else:
                    knots = self._times.knots(log, state.st_size, written_s)
                    self._begin(log, knots)
                place = self._places[log.path][1]
                same = os.path.samestat(self._files.setdefault(log.path, state), state)
                if state.st_size < place or not same:
                    replaced = "replaced; its rank still writes to the old file, which is not shown any more"
                    what = "truncated; lines may be missing" if same else replaced
                    self._complain(f"{one_line(log.path)} was {what}")
                    self._files[log.path] = state
                    self._rests.pop(log, None)
                    self._cut.discard(log.path)
                    self._places[log.path] = self._places[log.path][0], 0
                    place, knots = 0, [self._places[log.path], (written_s, state.st_size)]
                if state.st_size > place:
                    found.append((log, knots))
                elif state.st_size == place:
                    self._places[log.path] = now_s, place
        self._after_s = -inf
        piece_bytes = max(_LEAST_PIECE_BYTES, _PIECE_BYTES * _MANY // max(_MANY, len(found)))
        blocks = {log: self._blocks(log, knots, piece_bytes, last=last) for log, knots in found}
        yield from heapq.merge(*(self._of_rank([*each.values()], blocks) for each in lives.values()))
        for log, knots in found:
            self._places[log.path] = now_s, knots[-1][1]
        self._follows = True

    def _of_rank(self, lives: list[list[Log]], blocks: dict[Log, Iterator[Block]]) -> Iterator[Block]:
        """Return the lines of the lives of one rank, one life after the other."""
        at_s = 0.0
        for life in lives:
            for block in heapq.merge(*(blocks[log] for log in life if log in blocks)):
                at_s = max(at_s, block.at_s)
                yield block._replace(at_s=at_s)
            if life is not lives[-1]:
                self._past.update(life)
                yield from (Block(at_s, log, [rest], inf) for log, rest in self._take_rests(life))

    def rests(self) -> Iterator[tuple[Log, float, bytes]]:
        """Return the last line without a newline of each log that has not grown until the last look, and its time."""
        return ((log, self._written_s[log], rest) for log, rest in self._take_rests(sorted(self._rests)))

    def _take_rests(self, logs: Iterable[Log]) -> Iterator[tuple[Log, bytes]]:
        return ((log, rest) for log in logs if (rest := self._rests.pop(log, b"")))

    def _begin(self, log: Log, knots: list[Knot]) -> None:
        """Begin to read a log: at its last known size before the time from which lines are wanted."""
        begin = max((size for at_s, size in knots if at_s <= self._after_s), default=0)
        if begin:
            self._cut.add(log.path)
            begin -= 1  # the byte before shows whether a line begins here
        self._places[log.path] = knots[0][0], begin

    def _blocks(self, log: Log, knots: list[Knot], piece_bytes: int, *, last: bool) -> Iterator[Block]:
        place, end = self._places[log.path][1], knots[-1][1]
        while place < end:
            try:
                begin, piece, trimmed = _piece(log.path, place, min(piece_bytes, end - place))
            except OSError:
                return
            if not piece:
                return
            if begin > place:
                self._pass_hole(log, place, begin, trimmed=trimmed)
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
            yield from _timed(log, lines, knots, place - len(rest))
        if last:
            for _, rest in self._take_rests([log]):
                yield Block(knots[-1][0] + _TICK_S, log, [rest], 0.0)

    def _pass_hole(self, log: Log, place: int, begin: int, *, trimmed: bool) -> None:
        """Note that a log has a hole. Leave out the end of a line behind a hole that a bound has made."""
        self._rests.pop(log, None)
        trimmed = trimmed and (place > 0 or self._times.is_trimmed(log))
        if trimmed:
            self._cut.add(log.path)
        if trimmed and (place or self._follows):
            path = one_line(log.path)
            self._complain(f"{path}: --log-max-bytes has removed {begin - place} bytes that were not read")


def _timed(log: Log, lines: list[bytes], knots: list[Knot], end: int) -> Iterator[Block]:
    """Return lines as blocks. `end` is the place in the log where the last line ends."""
    if not lines:
        return
    place = end - sum(map(len, lines)) - len(lines)
    first_s, within_s = _time_at(knots, place + len(lines[0]) + 1)
    if _time_at(knots, end)[0] - first_s <= _AT_ONCE_S:
        yield Block(first_s, log, lines, within_s)
        return
    for line in lines:
        place += len(line) + 1
        at_s, within_s = _time_at(knots, place)
        yield Block(at_s, log, [line], within_s)


def _time_at(knots: list[Knot], size_bytes: int) -> tuple[float, float]:
    """Return the time at which a log had a size, and the seconds between the two known times around it."""
    after = bisect_left(knots, size_bytes, lo=1, hi=len(knots) - 1, key=_size_of)
    (from_s, least), (to_s, most) = knots[after - 1 : after + 1]
    part = (size_bytes - least) / (most - least) if most > least else 1.0
    return from_s + (to_s - from_s) * min(max(part, 0.0), 1.0), to_s - from_s


def _piece(path: str, place: int, most: int) -> tuple[int, bytes, bool]:
    """Return where the data of a file begins, from a place on; the data; and whether all before it is a hole.

    Such a hole is that of ``--log-max-bytes``, or a rank has made the file sparse.

    Raises:
        OSError: The file cannot be read.
    """
    with closing(open_regular(path)) as fd:
        begin = data_begin(fd, place)
        if begin is None:
            return place, b"", False
        return begin, os.pread(fd, most, begin), begin > 0 and begin == data_begin(fd, 0)


SCHEMA_VERSION = 1
_LOOK_S = 0.2
_EXACT_S = 2.0
"""A time that lies between two known times no farther apart is shown without ``~``: samples are 1 s apart at first."""


def _complain(text: str) -> None:
    print(f"supervise logs: {text}", file=sys.stderr)


def logs(words: Sequence[str]) -> int:
    """Print the output of the ranks; return the exit code.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    made = RunParser("logs")
    found = made.read(words)
    run: RecordedRun = found.run
    may_come = found.follow and run.is_running()
    if found.previous and may_come:
        made.error("--previous shows lives that have ended; omit it or -f")
    if not (_wanted(run, found) or may_come or _gone(run, found)):
        if found.ranks is not None and run.logs().keys().isdisjoint(found.ranks):
            made.error(f"there is no log of {run.spans(found.ranks)} in {one_line(run.name)}")
        if found.previous or found.life is not None:
            who = "no rank" if found.ranks is None else "none of these ranks"
            made.error(
                f"{who} has {'an earlier life' if found.previous else f'a life {found.life}'} in {one_line(run.name)}"
            )
        what = "log of stderr" if found.stderr else "logs"
        _complain(f"{one_line(run.name)} has no {what}; the options -t, -r and --merge of a run choose its logs")
    after_s = None if found.since is None else time.time() - found.since
    lines = LogLines(LogTimes(run), after_s, _complain if found.follow else lambda _: None)
    separated = not found.previous and found.life is None
    write = _json(run) if found.json else _plain(run, found, separated=separated)
    while True:
        going_on = found.follow and run.is_running()  # before the read, so that all output up to the end is shown
        for block in lines.look(_wanted(run, found), time.time(), last=not going_on):
            write(block.log, block.at_s, block.within_s, block.lines)
        if not going_on:
            for log, at_s, rest in lines.rests():
                write(log, at_s, 0.0, [rest])
        sys.stdout.buffer.flush()
        if not going_on:
            return _told_what_is_gone(RecordedRun(run.path), found)  # again, since its result may be new
        _pause()


def _pause() -> None:
    """Wait until the next look, but only while a process reads stdout.

    Raises:
        BrokenPipeError: The reader of stdout has gone.
    """
    stdout = select.poll()
    stdout.register(sys.stdout.fileno(), 0)  # errors and hangups, which are always reported
    if stdout.poll(_LOOK_S * 1000):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _wanted(run: RecordedRun, found: argparse.Namespace) -> list[Log]:
    logs = [log for log in logs_of(run) if _is_wanted(log.rank, log.stream, found)]
    if found.life is not None:
        return [log for log in logs if log.attempt == found.life]
    if found.previous:
        lives = {rank: sorted(lives) for rank, lives in run.lives().items()}
        return [log for log in logs if [log.attempt] == lives[log.rank][-2:-1]]
    return logs


def _is_wanted(rank: int, stream: str, found: argparse.Namespace) -> bool:
    return (found.ranks is None or rank in found.ranks) and (stream == "stderr" or not found.stderr)


def _told_what_is_gone(run: RecordedRun, found: argparse.Namespace) -> int:
    """Print which logs cannot be shown; return the exit code: 1 if there are some, and no log can be shown."""
    gone = _gone(run, found)
    for path, reason in sorted(gone.items()):
        *_, rank, name = path.split(os.sep)
        who = run.spans([int(rank)]) if values.is_count(rank) else f"rank {one_line(rank)}"
        print(f"supervise logs: {who} has no {name}: {one_line(reason)}", file=sys.stderr)
    return 1 if gone and all(log.path in gone for log in _wanted(run, found)) else 0


def _gone(run: RecordedRun, found: argparse.Namespace) -> dict[str, str]:
    """Return the wanted logs that were written and cannot be read: path to reason.

    A run without a result does not say which logs it has written. Then a log that is missing is not known.
    """
    paths = [log.path for log in _wanted(run, found)]
    if run.info.get("engine") != "ray" and found.life is None and not found.previous:  # Ray: other hosts may have them
        paths += [path for rank, stream, path in _written(run) if _is_wanted(rank, stream, found)]
    reasons = {}
    for path in dict.fromkeys(paths):
        try:
            os.close(open_regular(path))
        except OSError as error:
            reasons[path] = complaint(error)
    return reasons


def _written(run: RecordedRun) -> Iterator[tuple[int, str, str]]:
    """Yield rank, stream and path of the logs that the result names. The directory may have been moved."""
    for stream in ("stdout", "stderr"):
        named = run.result.get(f"{stream}s")
        for rank, path in named.items() if isinstance(named, dict) else ():
            if values.is_count(rank) and isinstance(path, str) and path.endswith(f"{os.sep}{stream}.log"):
                yield int(rank), stream, os.path.join(run.path, *path.split(os.sep)[-3:])


def _plain(run: RecordedRun, found: argparse.Namespace, *, separated: bool) -> _Write:
    """Return a function that prints lines for people. With `separated`, a line precedes each later life of a rank."""
    console = Console()
    prefixes = found.ranks is None or len(found.ranks) > 1
    # Another user may have put control sequences into the logs, to change this user's terminal
    foreign = os.stat(run.path).st_uid != os.geteuid()
    lives: dict[int, int] = {}

    @cache
    def prefix_of(rank: int) -> bytes:
        role, number = run.title(rank)
        return console.prefix(f"[{role}{number}]:", rank).encode(errors="replace") if prefixes else b""

    def write(log: Log, at_s: float, within_s: float, lines: list[bytes]) -> None:
        if separated and lives.get(log.rank, 0) != log.attempt:
            head = f"--- {run.spans([log.rank])}, life {log.attempt} ---\n"
            sys.stdout.buffer.write(head.encode(errors="replace"))
        lives[log.rank] = log.attempt
        prefix = prefix_of(log.rank)
        if found.timestamps:
            at = datetime.fromtimestamp(at_s).astimezone().isoformat(timespec="seconds")
            prefix += f"{'~' if within_s > _EXACT_S else ''}{at} ".encode()
        if foreign:
            lines = [one_line(line.decode(errors="replace")).encode() for line in lines]
        elif prefix:
            lines = [last_segment(line) for line in lines]
        sys.stdout.buffer.write(b"".join(b"%b%b\n" % (prefix, line) for line in lines))

    return write


def _json(run: RecordedRun) -> _Write:
    """Return a function that prints lines as JSON objects."""

    def write(log: Log, at_s: float, _within_s: float, lines: list[bytes]) -> None:
        role, number = run.title(log.rank)
        head = {
            "schema_version": SCHEMA_VERSION,
            "time": round(at_s, 3),
            "local_rank": log.rank,
            "role": role,
            "role_rank": number,
            "attempt": log.attempt,
            "log_iostream": log.stream,
        }
        whole = (json.dumps(head | {"line": line.decode(errors="replace")}) for line in lines)
        sys.stdout.buffer.write("".join(f"{each}\n" for each in whole).encode())

    return write
