"""The history of a run: the lives of each rank, what happened to them, and when. Read from its files alone."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from supervise._printable import one_line
from supervise._views.failed_ranks import FailedRanks
from supervise._views.report.series import Point, Totals, read_series
from supervise._views.wording import ended_how, event_time_s, failed_or_ended, seconds

if TYPE_CHECKING:
    from supervise._views.recorded_run import RecordedRun

Ending = Literal["running", "succeeded", "failed", "stopped", "unknown"]
"""How a life ended. ``stopped``: by supervise. ``unknown``: supervise was killed before the life ended."""

_MOST_LIVES = 20_000
_MOST_MARKS = 2_000
_MOST_HANGS = 50
_LONGEST_TEXT = 300
_MOST_RANKS = 100_000


class Mark(NamedTuple):
    """An occurrence at one moment."""

    at_s: float
    """Seconds since the epoch."""
    kind: str
    """A word, such as ``signal``, ``hung`` or ``restart``."""
    text: str


class Hang(NamedTuple):
    """A hang that the watchdog has reported. Times are seconds since the epoch."""

    from_s: float
    """The last beat or output before it."""
    told_s: float
    """The report."""
    by_output: bool
    """Whether output was missing; otherwise heartbeats."""


@dataclass(slots=True)
class Life:
    """One process of a rank. Times are seconds since the epoch."""

    attempt: int
    pid: int
    started_s: float
    ready_s: float | None = None
    ended_s: float | None = None
    ending: Ending = "running"
    how: str = ""
    """The end as text, such as ``exit code 3`` or ``SIGKILL``; empty without an end."""
    max_rss_bytes: int | None = None
    cpu_s: float | None = None
    hangs: list[Hang] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)


@dataclass(slots=True)
class RankHistory:
    """The known facts about one rank."""

    rank: int
    title: str
    """Role and role rank, such as ``trainer3``."""
    lives: deque[Life]
    """The newest lives, oldest first."""
    count: int = 0
    """Number of lives, with those that are not kept."""
    points: list[Point] = field(default_factory=list)
    """The resource usage of its process tree at each sample, in the order of time."""

    @property
    def life(self) -> Life | None:
        """Its last life; None if it has not started."""
        return self.lives[-1] if self.lives else None

    def went_on_s(self, life: Life, hang: Hang) -> float | None:
        """Return when a sample shows more output, or a higher step, than before a hang; None if no sample does."""
        before: int | None = None
        for point in self.points:
            value = point.output_bytes if hang.by_output else point.step
            if point.pid != life.pid or value is None:
                continue
            if point.at_s <= hang.told_s:
                before = value
            elif before is not None and value > before:
                return point.at_s
        return None

    @property
    def hangs(self) -> bool:
        """Whether its last life hangs, or hung until it was stopped."""
        life = self.life
        if life is None or not life.hangs or life.ending not in ("running", "stopped"):
            return False
        return self.went_on_s(life, life.hangs[-1]) is None


class History:
    """The history of a run."""

    def __init__(self, run: RecordedRun) -> None:
        """Read the files of the run."""
        self.ranks: dict[int, RankHistory] = {}
        """Local rank to its history, in the order of ranks."""
        self.marks: list[Mark] = []
        """What happened to the whole gang: starts, restarts, its stop, lost events."""
        self.incidents: list[Mark] = []
        """Restarts, hangs, and processes that remained, with the ranks in the text."""
        self.more_incidents = 0
        """How many later incidents are left out."""
        self.stacks: list[tuple[str, list[str]]] = []
        """For each file of stacks: its path, and lines that say which ranks were at which place in their code."""
        self.root_cause: int | None = None
        self.failed = FailedRanks()
        """The ranks whose last life has failed."""
        self.several_roles = len(run.info.get("roles") or ()) > 1
        self._run = run
        self.stop: tuple[float, str] | None = None
        """When (seconds since the epoch) and why supervise last began to stop the ranks; None if it never did."""
        self._count = max(1, _count(run.info.get("world_size")))
        self._last_s = 0.0
        for rank in range(min(self._count, _MOST_RANKS)):
            self._of(rank)
        for event in run.events():
            try:
                at_s = event_time_s(event["timestamp"])
                name = event["event"].removeprefix("supervise.")
                self._take(name, event, at_s)
                self.failed.take(name, event)
                self._last_s = max(self._last_s, at_s)
            except (AttributeError, KeyError, TypeError, ValueError, OverflowError):  # a rank may have written the line
                continue
        self._read_points()
        self._conclude()

    def _of(self, rank: int) -> RankHistory:
        if rank not in self.ranks:
            if len(self.ranks) >= _MOST_RANKS:
                raise ValueError(rank)
            role, number = self._run.title(rank)
            lives: deque[Life] = deque(maxlen=max(20, _MOST_LIVES // self._count))
            self.ranks[rank] = RankHistory(rank, f"{one_line(role)[:40]}{number}", lives)
        return self.ranks[rank]

    def _take(self, name: str, event: dict[str, Any], at_s: float) -> None:
        if name.startswith("process."):
            rank = event["local_rank"]
            if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0:
                self._of_process(name.removeprefix("process."), event, at_s, self._of(rank))
        else:
            self._of_gang(name, event, at_s)

    def _of_process(self, name: str, event: dict[str, Any], at_s: float, rank: RankHistory) -> None:
        life = rank.life
        match name:
            case "started":
                rank.lives.append(Life(int(event["attempt"]), int(event["pid"]), at_s))
                rank.count += 1
            case "ready" if life is not None:
                life.ready_s = at_s
            case "exited" if life is not None:
                self._ended(life, event, at_s)
            case "signaled" if life is not None:
                text = f"{_text(event['signal'])} from supervise ({_text(event['reason'])})"
                _append(life.marks, Mark(at_s, "signal", text))
            case "stopped" if life is not None:
                _append(life.marks, Mark(at_s, "suspended", f"suspended by {_text(event['signal'])}"))
            case "hung" if life is not None:
                self._hung(rank, life, event, at_s)
            case "restarting":
                how = ended_how(event)
                self._incident(at_s, "restart", f"rank {rank.rank} restarts in {_delay(event)}: {how}")
            case "leaked" | "unkillable" as what:
                self._incident(at_s, what, f"rank {rank.rank}: pid {_text(event['pid'])} is {what}")
            case _:
                pass

    def _hung(self, rank: RankHistory, life: Life, event: dict[str, Any], at_s: float) -> None:
        age_s = float(event["age_s"])
        text = f"no {_text(event['tier'])} for {seconds(age_s)}"
        if event.get("step") is not None:
            text += f", step {_text(event['step'])}"
        if len(life.hangs) < _MOST_HANGS:
            from_s = at_s - min(max(0.0, age_s), max(0.0, at_s - life.started_s))
            life.hangs.append(Hang(from_s, at_s, by_output=event["tier"] == "output"))
        _append(life.marks, Mark(at_s, "hung", text))
        self._incident(at_s, "hung", f"rank {rank.rank} hung: {text}")

    def _ended(self, life: Life, event: dict[str, Any], at_s: float) -> None:
        life.ended_s = at_s
        life.how = f"{ended_how(event)}, out of memory" if event.get("oom_kill") else ended_how(event)
        spontaneous = bool(event.get("spontaneous"))
        if event.get("level") == "error":
            life.ending = "failed"
        elif spontaneous and not event.get("complaint"):
            life.ending = "succeeded"
        else:
            life.ending = "failed" if spontaneous else "stopped"
        rss, cpu_s = event.get("max_rss_bytes"), event.get("cpu_time_s")
        life.max_rss_bytes = rss if isinstance(rss, int) else None
        life.cpu_s = float(cpu_s) if isinstance(cpu_s, (int, float)) else None

    def _of_gang(self, name: str, event: dict[str, Any], at_s: float) -> None:
        match name:
            case "gang.restarting":
                how = event["error_type"]
                why = f"rank {_text(event['root_cause_rank'])} {failed_or_ended(how)} ({_text(how)})"
                self._incident(at_s, "restart", f"all ranks restart in {_delay(event)}: {why}")
                _append(self.marks, Mark(at_s, "restart", f"restart {int(event['attempt'])} of all ranks"))
            case "gang.started":
                _append(self.marks, Mark(at_s, "started", "all ranks are ready"))
            case "gang.stopping":
                self.stop = at_s, _text(event["reason"])
                _append(self.marks, Mark(at_s, "stopping", f"supervise stops the ranks ({_text(event['reason'])})"))
            case "gang.stacks" if event["path"] and len(self.stacks) < 20:
                places = [_text(place) for place in event["places"][:200]]
                self.stacks.append((str(event["path"]), places))
            case "events.lost":
                self._incident(at_s, "lost", f"{int(event['count'])} events could not be written")
            case "host.lost":
                self._incident(at_s, "lost", f"host {_text(event['host'])} was lost: {_text(event['reason'])}")
            case _:
                pass

    def _incident(self, at_s: float, kind: str, text: str) -> None:
        if len(self.incidents) < _MOST_MARKS:
            self.incidents.append(Mark(at_s, kind, text))
        else:
            self.more_incidents += 1

    def _read_points(self) -> None:
        starts = {(rank.rank, life.pid): life.started_s for rank in self.ranks.values() for life in rank.lives}
        totals = Totals(starts)
        series = read_series(self._run.samples(), totals)
        self.totals = totals.found
        """The resource usage of all ranks together, at each sample."""
        for rank, points in series.items():
            if rank in self.ranks:
                self.ranks[rank].points = points
                self._last_s = max(self._last_s, points[-1].at_s)
                for life in self.ranks[rank].lives:  # at its start, a life has used nothing
                    index = next((index for index, point in enumerate(points) if point.pid == life.pid), None)
                    if index is not None and points[index].at_s > life.started_s:
                        points.insert(index, Point(life.started_s, life.pid, 0.0, 0, 0, None))

    def _conclude(self) -> None:
        run = self._run
        cause = run.result.get("root_cause")
        first = self.failed.first
        self.root_cause = first if not run.result and first in self.ranks else None  # it runs, or supervise was killed
        if isinstance(cause, int) and cause in self.ranks and run.result.get("outcome") in ("failed", "timed_out"):
            self.root_cause = cause
        cause_life = None if self.root_cause is None else self.ranks[self.root_cause].life
        if cause_life is not None and cause_life.hangs and cause_life.ending == "stopped":
            cause_life.ending = "failed"  # the hang is the failure; the signal was its consequence
        starts = [rank.lives[0].started_s for rank in self.ranks.values() if rank.lives]
        begin = run.started.timestamp() if run.started is not None else min(starts, default=self._last_s)
        self.begin_s = min([begin, *starts])
        """When the run began, in seconds since the epoch."""
        if run.state == "running":
            self._last_s = max(self._last_s, time.time())
        self.end_s = max(self._last_s, self.begin_s + 0.001)
        """The end of the run, or the last known moment."""
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


def _append(marks: list[Mark], mark: Mark) -> None:
    if len(marks) < _MOST_MARKS:
        marks.append(mark)


def _count(value: object) -> int:
    return min(value, _MOST_RANKS) if isinstance(value, int) else 0


def _text(value: object) -> str:
    return one_line(str(value))[:_LONGEST_TEXT]


def _delay(event: dict[str, Any]) -> str:
    delay_s = float(event["backoff_s"] or 0)
    return seconds(delay_s if math.isfinite(delay_s) else 0)
