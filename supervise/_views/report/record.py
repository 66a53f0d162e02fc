"""The history of a run as an object for JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from supervise._views.recorded_run import RecordedRun
    from supervise._views.report.history import History, Life, Mark

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
        "stacks": [{"path": path, "places": places} for path, places in history.stacks],
        "ranks": {
            rank.rank: {
                "role": rank.title,
                "lives": rank.count,
                "newest_lives": [_life(life) for life in rank.lives],
                "samples": [point._asdict() for point in rank.points],
            }
            for rank in history.ranks.values()
        },
    }


def _life(life: Life) -> dict[str, Any]:
    return {
        "attempt": life.attempt,
        "pid": life.pid,
        "started": life.started_s,
        "ready": life.ready_s,
        "ended": life.ended_s,
        "ending": life.ending,
        "how": life.how or None,
        "max_rss_bytes": life.max_rss_bytes,
        "cpu_s": life.cpu_s,
        "marks": [_mark(mark) for mark in life.marks],
    }


def _mark(mark: Mark) -> dict[str, Any]:
    return {"at": mark.at_s, "kind": mark.kind, "text": mark.text}
