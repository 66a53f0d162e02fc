"""The history of a run in the Trace Event Format, JSON object form, which Perfetto and ``chrome://tracing`` read.

Each rank is a process of the trace, because counters belong to a process. The lives of the rank are slices of one
thread. Times are microseconds since the beginning of the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervise._views.report.history import History, RankHistory, how, marks_of, rates, stacks_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervise._views.incidents import Incident
    from supervise._views.recorded_run import RecordedRun
    from supervise._views.run_state import Life


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
        "incidents": [_mark(mark) for mark in history.incidents],
        "stacks": [{"path": path, "places": places} for path, places in stacks_of(history)],
        "ranks": {
            rank.rank: {
                "role": rank.title,
                "lives": rank.count,
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
        "marks": [_mark(mark) for mark in marks_of(life)],
    }


def _mark(mark: Incident) -> dict[str, Any]:
    return {"at": mark.at_s, "kind": mark.kind, "text": mark.text}


_GANG = 0
"""The number of the whole gang's process in the trace. Rank N has the number N + 1."""
_THREAD = 1


def trace(history: History, *, name: str) -> dict[str, Any]:
    """Return the trace as an object for JSON.

    Args:
        history: The history of the run.
        name: Name of the run.
    """
    events: list[dict[str, Any]] = []
    events += _named(_GANG, f"gang {name}", "gang")
    for mark in history.marks:
        events.append(_event("i", _GANG, mark.text, _us(history, mark.at_s), cat="gang", s="g"))
    for mark in history.incidents:
        events.append(_event("i", _GANG, mark.text, _us(history, mark.at_s), cat=mark.kind, s="p"))
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
