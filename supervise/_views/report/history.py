"""The history of a run: the lives of each rank, what happened to them, and when. Read from its files alone."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from supervise._record import NamedTuple
from supervise._story.wording import hang_of, titled
from supervise._views.incidents import KINDS, Incident, end_of, incident, reason_of, short
from supervise._views.run_state import MOST_RANKS, Life, Occurrence, RankLives, RunState, is_a, parsed_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from supervise._views.recorded_run import RecordedRun


# The resource usage of ranks over time: the samples of a run, and the rates between samples


_MOST_SAMPLES = 2_000
_MOST_VALUES = 400_000
_MOST_TOTALS = 10_000


class Point(NamedTuple):
    """One sample of a rank's process tree."""

    at_s: float
    """Seconds since the epoch."""
    pid: int
    cpu_s: float
    rss_bytes: int
    output_bytes: int
    step: int | None


_Sample = tuple[float, dict[int, Point]]
"""The time of a sample, and local rank to its point."""


class Rate(NamedTuple):
    """The resource usage of a rank between two samples of one life, or of all ranks together between two samples."""

    from_s: float
    to_s: float
    cpu: float
    """Processors that were busy, such as 1.5."""
    rss_bytes: int
    """Resident memory at the end of the interval."""
    output_bytes_per_s: float
    steps: tuple[int, int] | None
    """The lowest and the highest step of a rank; None if no rank reports any."""


def _before(last: Point | None, rank: int, point: Point, starts: Mapping[tuple[int, int], float]) -> Point:
    """Return the point before another: the last one of the same life, or else its start, when it had used nothing."""
    if last is not None and last.pid == point.pid:
        return last
    return Point(starts.get((rank, point.pid), point.at_s), point.pid, 0.0, 0, 0, None)


def combined(used: Sequence[Rate], whole: Callable[[Iterator[Any]], Any]) -> Rate:
    """Return one rate in place of several.

    Args:
        used: The rates.
        whole: `sum` for those of several ranks at one time; `max` for adjacent ones.
    """
    steps = [rate.steps for rate in used if rate.steps is not None]
    return Rate(
        from_s=min(rate.from_s for rate in used),
        to_s=max(rate.to_s for rate in used),
        cpu=whole(rate.cpu for rate in used),
        rss_bytes=whole(rate.rss_bytes for rate in used),
        output_bytes_per_s=whole(rate.output_bytes_per_s for rate in used),
        steps=(min(low for low, _ in steps), max(high for _, high in steps)) if steps else None,
    )


def joined(used: Sequence[Rate], most: int) -> list[Rate]:
    """Return at most `most` rates. If there are more, join as many adjacent rates as needed."""
    size = max(1, -(-len(used) // most))
    return [combined(used[index : index + size], max) for index in range(0, len(used), size)]


def read_samples(
    samples: Iterable[dict[str, Any]], starts: Mapping[tuple[int, int], float]
) -> tuple[list[_Sample], list[Rate]]:
    """Return the samples with their valid values, and sums over all ranks at each sample.

    Drop every second sample of a long run, repeatedly if necessary. The dropped samples count in the sums.

    Args:
        samples: The samples.
        starts: Rank and process ID of a life to the time of its start, when its usage is zero.
    """
    kept: list[_Sample] = []
    totals: list[Rate] = []
    last: dict[int, Point] = {}
    stride, values = 1, 0
    timed = (sample for sample in samples if is_a(float, sample.get("time")))
    for number, sample in enumerate(timed):
        at_s = float(sample["time"])
        points = {
            int(word): point
            for word, row in sample["ranks"].items()
            if word.isascii() and word.isdigit() and len(word) < 10 and (point := _point(at_s, row)) is not None
        }
        pairs = [(_before(last.get(rank), rank, point, starts), point) for rank, point in points.items()]
        last = points
        if used := [rate for pair in pairs for rate in rates(pair)]:
            totals.append(combined(used, sum))
        if len(totals) > _MOST_TOTALS:
            totals = joined(totals, _MOST_TOTALS)
        if number % stride == 0:
            kept.append((at_s, points))
            values += len(points)
        if len(kept) > _MOST_SAMPLES or (values > _MOST_VALUES and len(kept) > 1):
            kept = kept[::2]
            stride *= 2
            values = sum(len(points) for _, points in kept)
    return kept, totals


def series_of(kept: list[_Sample], starts: Mapping[tuple[int, int], float]) -> dict[int, list[Point]]:
    """Return local rank to its points in the order of time, with the start of each life."""
    found: dict[int, list[Point]] = {}
    for _, points in sorted(kept, key=lambda each: each[0]):
        for rank, point in points.items():
            series = found.setdefault(rank, [])
            before = _before(series[-1] if series else None, rank, point, starts)
            if before.at_s < point.at_s and before not in series[-1:]:
                series.append(before)
            series.append(point)
    return found


def _point(at_s: float, row: Any) -> Point | None:
    if not isinstance(row, dict):
        return None
    numbers = [row.get(key) for key in ("pid", "cpu_s", "rss_bytes", "output_bytes")]
    if not all(is_a(float, number) for number in numbers):
        return None
    pid, cpu_s, rss, output = numbers
    step = row.get("step")
    return Point(at_s, int(pid), float(cpu_s), int(rss), int(output), int(step) if is_a(float, step) else None)  # type: ignore[arg-type]


def rates(points: Sequence[Point]) -> list[Rate]:
    """Return the rates between each two points of one life. If the processor time falls, its rate is 0."""
    found = []
    for before, after in pairwise(points):
        span_s = after.at_s - before.at_s
        if before.pid == after.pid and span_s > 0:
            cpu = max(0.0, after.cpu_s - before.cpu_s) / span_s
            output = max(0, after.output_bytes - before.output_bytes) / span_s
            steps = None if after.step is None else (after.step, after.step)
            found.append(Rate(before.at_s, after.at_s, cpu, after.rss_bytes, output, steps))
    return found


_MOST_LIVES = 20_000
_MOST_MARKS = 2_000
_INCIDENTS = frozenset(KINDS) - {
    *("gang.stopping", "process.exited", "process.faulted", "process.start_failed", "process.stopped"),
}
"""The events that the page lists as incidents. The bars of the ranks show the others."""
_OF_GANG = frozenset({"gang.restarting", "gang.started", "gang.stopping"})


@dataclass(slots=True)
class RankHistory:
    """The known facts about one rank."""

    rank: int
    title: str
    """Role and role rank, such as ``trainer3``."""
    known: RankLives
    points: list[Point] = field(default_factory=list)
    """The resource usage of its process tree at each sample, in the order of time."""

    @property
    def lives(self) -> list[Life]:
        """Its newest processes, oldest first."""
        return [life for life in self.known.lives if life.ran]

    @property
    def life(self) -> Life | None:
        """Its last process; None if it has not started."""
        return next(reversed(self.lives), None)

    def went_on_s(self, life: Life, hang: Occurrence) -> float | None:
        """Return when a sample shows more output, or a higher step, than before a hang.

        If no sample does, return the time of the hang if the rank went on at an unknown time, or None if it did not.
        """
        before: int | None = None
        for point in self.points:
            value = point.output_bytes if hang.fields["tier"] == "output" else point.step
            if point.pid != life.pid or value is None:
                continue
            if point.at_s <= hang.at_s:
                before = value
            elif before is not None and value > before:
                return point.at_s
        return None if hang is life.hang else hang.at_s

    @property
    def hangs(self) -> bool:
        """Whether its last life hangs, or hung until its end."""
        life = self.life
        return life is not None and life.hang is not None and self.went_on_s(life, life.hang) is None


class History:
    """The history of a run."""

    def __init__(self, run: RecordedRun) -> None:
        """Read the files of the run."""
        self._of_gang: list[Occurrence] = []
        self._told: list[Occurrence] = []
        self.more_incidents = 0
        """How many later incidents are left out."""
        self.root_cause: int | None = None
        self.several_roles = len(run.roles) > 1
        self.run = run
        self._last_s = 0.0
        count = max(1, min(run.info.get("world_size", 0), MOST_RANKS))
        self.state = RunState(most_lives=max(20, _MOST_LIVES // count))
        """The facts of the events."""
        for it in filter(None, map(self.state.apply, run.events())):
            self._last_s = max(self._last_s, it.at_s)
            self._take(it)
        self.ranks: dict[int, RankHistory] = {
            rank: RankHistory(rank, run.label(rank), self.state.of(rank))
            for rank in sorted({*range(count), *self.state.ranks})
        }
        """Local rank to its history, in the order of ranks."""
        self._read_points()
        self._conclude()

    def _take(self, it: Occurrence) -> None:
        if it.name in _OF_GANG and len(self._of_gang) < _MOST_MARKS:
            self._of_gang.append(it)
        if it.name not in _INCIDENTS or (it.rank is None and it.name.startswith("process.")):
            return
        if len(self._told) < _MOST_MARKS:
            self._told.append(it)
        else:
            self.more_incidents += 1

    def _read_points(self) -> None:
        starts = {(rank.rank, life.pid): life.started_s for rank in self.ranks.values() for life in rank.lives}
        kept, self.totals = read_samples(self.run.samples(), starts)
        """The resource usage of all ranks together, at each sample."""
        for rank, points in series_of(kept, starts).items():
            if rank in self.ranks:
                self.ranks[rank].points = points
                self._last_s = max(self._last_s, points[-1].at_s)

    def _conclude(self) -> None:
        run = self.run
        cause = run.result.get("root_cause")
        first = next(iter(self.state.failed), None)
        self.root_cause = first if not run.result and first in self.ranks else None  # it runs, or supervise was killed
        if isinstance(cause, int) and cause in self.ranks and run.result.get("outcome") in ("failed", "timed_out"):
            self.root_cause = cause
        starts = [rank.lives[0].started_s for rank in self.ranks.values() if rank.lives]
        begin = run.started.timestamp() if run.started is not None else min(starts, default=self._last_s)
        self.begin_s = min([begin, *starts])
        """When the run began, in seconds since the epoch."""
        ended = parsed_time(run.result.get("timestamp"))
        known_s = time.time() if run.state == "running" else 0.0 if ended is None else ended.timestamp()
        self._last_s = max(self._last_s, known_s)
        self.end_s = max(self._last_s, self.begin_s + 0.001)
        """The end of the run, or the last known moment."""
        canceled = {it for it in (*self._of_gang, *self._told) if self.state.is_canceled(it, run.state)}
        self.marks = [_mark(it) for it in self._of_gang if it not in canceled]
        """What happened to the whole gang: starts, restarts, its stop."""
        self.incidents = [incident(it, run.spans, present=False, canceled=it in canceled) for it in self._told]
        """Restarts, hangs, losses, and processes that remained, with the ranks in the text."""
        if run.state != "running":
            for rank in self.ranks.values():
                for life in rank.lives:
                    if life.ended_s is None:
                        life.ending = "unknown"

    @property
    def unsampled(self) -> float:
        """The part of the run that follows the last sample, from 0 to 1; 0 without samples."""
        sampled_s = max((total.to_s for total in self.totals), default=self.end_s)
        return (self.end_s - sampled_s) / (self.end_s - self.begin_s)


def marks_of(life: Life) -> list[Incident]:
    """Return the signals that supervise sent to a life, its suspensions and its hangs."""
    return [_mark(it) for it in life.occurrences]


def stacks_of(history: History) -> list[tuple[str, list[str]]]:
    """Return the newest files of stacks: path, and lines that say which ranks were at which place in their code."""
    return [
        (it.fields["path"], [titled(short(place), history.run.titles) for place in it.fields["places"][:200]])
        for it in history.state.stacks
    ]


def how(life: Life) -> str:
    """Return the end of a life as text, such as ``exit code 3`` or ``SIGKILL``; "" without an end."""
    return "" if life.end is None else end_of(life.end)


def _mark(it: Occurrence) -> Incident:
    """Return an event that concerns the whole gang, or a life, in words for the place where the event is drawn."""
    match it.name:
        case "process.signaled":
            kind, text = "signal", f"{short(it.fields['signal'])} from supervise ({reason_of(it.fields)})"
        case "process.stopped":
            kind, text = "suspended", f"suspended by {short(it.fields['signal'])}"
        case "process.hung":
            kind, text = "hung", hang_of(it.fields)
        case "gang.restarting":
            kind, text = "restart", "restart of all ranks"
        case "gang.started":
            kind, text = "started", "all ranks are ready"
        case _:
            kind, text = "stopping", f"supervise stops the ranks ({reason_of(it.fields)})"
    return Incident(it.at_s, kind, it.rank, text)


# The history of a run as an object for JSON


SCHEMA_VERSION = 1


def record(run: RecordedRun, history: History) -> dict[str, Any]:
    """Return the history; times are seconds since the epoch."""
    return {
        "schema_version": SCHEMA_VERSION,
        "name": run.name,
        "path": run.path,
        "state": run.state,
        "exit_code": run.result.get("exit_code"),
        "program": run.info["program"],
        "begin": history.begin_s,
        "end": history.end_s,
        "root_cause": history.root_cause,
        "incidents": [_mark_of(mark) for mark in history.incidents],
        "stacks": [{"path": path, "places": places} for path, places in stacks_of(history)],
        "ranks": {
            rank.rank: {
                "role": rank.title,
                "lives": rank.known.count,
                "newest_lives": [_life_of(life) for life in rank.lives],
                "samples": [point._asdict() for point in rank.points],
            }
            for rank in history.ranks.values()
        },
    }


def _life_of(life: Life) -> dict[str, Any]:
    return {
        "attempt": life.attempt,
        "pid": life.pid,
        "started": life.started_s,
        "ready": life.ready_s,
        "ended": life.ended_s,
        "ending": life.ending,
        "how": how(life) or None,
        "step": life.facts.get("step"),
        "status": life.facts.get("status"),
        "max_rss_bytes": life.facts.get("max_rss_bytes"),
        "cpu_s": life.facts.get("cpu_time_s"),
        "marks": [_mark_of(mark) for mark in marks_of(life)],
    }


def _mark_of(mark: Incident) -> dict[str, Any]:
    return {"at": mark.at_s, "kind": mark.kind, "text": mark.text}


# The same in the Trace Event Format, JSON object form, which Perfetto and ``chrome://tracing`` read
#
# Each rank is a process of the trace, because counters belong to a process. The lives of the rank are slices of one
# thread. Times are microseconds since the beginning of the run.


_GANG = 0
"""The number of the whole gang's process in the trace. Rank N has the number N + 1."""
_THREAD = 1


def trace(history: History, *, name: str) -> dict[str, Any]:
    """Return the trace as an object for JSON.

    Args:
        history: The history of the run.
        name: Name of the run.
    """
    events = [
        *_named(_GANG, f"gang {name}", "gang"),
        *(_event("i", _GANG, each.text, _us(history, each.at_s), cat="gang", s="g") for each in history.marks),
        *(_event("i", _GANG, each.text, _us(history, each.at_s), cat=each.kind, s="p") for each in history.incidents),
    ]
    for rank in history.ranks.values():
        events += _named(rank.rank + 1, f"rank {rank.rank} ({rank.title})", "lives")
        for life in rank.lives:
            events += _life(history, rank, life)
        events += _counters(history, rank)
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"run": name, "schema_version": "1"}}


def _us(history: History, at_s: float) -> float:
    return max(0.0, round((at_s - history.begin_s) * 1e6, 3))


def _event(phase: str, pid: int, name: str, at_us: float, **more: Any) -> dict[str, Any]:
    return {"ph": phase, "pid": pid, "tid": _THREAD, "name": name, "ts": at_us, **more}


def _named(pid: int, process: str, thread: str) -> list[dict[str, Any]]:
    return [
        _event("M", pid, "process_name", 0, args={"name": process}),
        _event("M", pid, "process_sort_index", 0, args={"sort_index": pid}),
        _event("M", pid, "thread_name", 0, args={"name": thread}),
    ]


def _life(history: History, rank: RankHistory, life: Life) -> Iterator[dict[str, Any]]:
    pid = rank.rank + 1
    begin_us = _us(history, life.started_s)
    end_us = _us(history, history.end_s if life.ended_s is None else life.ended_s)
    args = {
        "pid": life.pid,
        "attempt": life.attempt,
        "end": how(life) or life.ending,
        "root_cause": rank.rank == history.root_cause and life is rank.life,
    }
    cause = ", root cause" if args["root_cause"] else ""
    name = f"attempt {life.attempt}: {args['end']}{cause}"
    duration_us = round(max(0.0, end_us - begin_us), 3)
    yield _event("X", pid, name, begin_us, dur=duration_us, cat=f"life,{life.ending}", args=args)
    if life.ready_s is not None:
        ready_us = _us(history, life.ready_s)
        starting_us = round(max(0.0, ready_us - begin_us), 3)
        yield _event("X", pid, "starting", begin_us, dur=starting_us, cat="starting", args={"pid": life.pid})
    for mark in marks_of(life):
        yield _event("i", pid, mark.text, _us(history, mark.at_s), cat=mark.kind, s="t")


def _counters(history: History, rank: RankHistory) -> Iterator[dict[str, Any]]:
    pid = rank.rank + 1
    for rate in rates(rank.points):
        at_us = _us(history, rate.from_s)
        yield _event("C", pid, "processors", at_us, args={"busy": round(rate.cpu, 4)})
        yield _event("C", pid, "output", at_us, args={"bytes_per_s": round(rate.output_bytes_per_s, 1)})
    for point in rank.points:
        at_us = _us(history, point.at_s)
        yield _event("C", pid, "memory", at_us, args={"rss_bytes": point.rss_bytes})
        if point.step is not None:
            yield _event("C", pid, "step", at_us, args={"step": point.step})
