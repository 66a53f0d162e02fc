"""Run directories as `supervise run` writes them, of any size, without a run."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from supervise._views.recorded_run import RecordedRun

BEGIN_S = 1_795_500_000.0
LENGTH_S = 3600.0


def iso(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat()


def write_run(
    path: Path, ranks: int, events: Iterable[dict[str, Any]], info: Mapping[str, Any] | None = None, **result: Any
) -> None:
    """Write ``run.json``, with `info` beside the usual, ``events.jsonl``, and with `result` ``result.json``."""
    path.mkdir(parents=True)
    whole = {
        "schema_version": 1,
        "started": iso(BEGIN_S),
        "program": ["train.py"],
        "world_size": ranks,
        "host_name": "node7",
        "roles": [{"name": "trainer", "count": ranks, "program": ["train.py"]}],
        "locked": False,
        **(info or {}),
    }
    (path / "run.json").write_text(json.dumps(whole))
    (path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    if result:
        (path / "result.json").write_text(json.dumps({"schema_version": 1, **result}))


def read_run(path: Path) -> RecordedRun:
    """Return a run directory as all views read it."""
    return RecordedRun(str(path))


def event(name: str, after_s: float, rank: int | None = None, **fields: Any) -> dict[str, Any]:
    whole: dict[str, Any] = {"event": f"supervise.{name}", "level": "info", "timestamp": iso(BEGIN_S + after_s)}
    if rank is not None:
        whole |= {"local_rank": rank, "rank": rank, "attempt": 0}
    return whole | fields


def exited(after_s: float, rank: int, **fields: Any) -> dict[str, Any]:
    known = {"exit_code": 0, "exit_signal": None, "spontaneous": True, "complaint": None, "oom_kill": False}
    return event("process.exited", after_s, rank, **{**known, **fields})


def large_run(path: Path, ranks: int) -> None:
    """Write an hour of many ranks with samples; rank 1 is killed, rank 5 hangs for a time, the others are stopped."""
    events = [event("process.started", 0.001 * rank, rank, pid=1000 + rank) for rank in range(ranks)]
    events += [event("process.ready", 5, rank) for rank in range(ranks)]
    events.append(event("process.hung", 2000, 5, tier="heartbeat", age_s=30.0, step=1000, status=None, waiting=[]))
    events.append(exited(LENGTH_S, 1, exit_code=None, exit_signal="SIGKILL", oom_kill=True, level="error"))
    others = [rank for rank in range(ranks) if rank != 1]
    stop = {"exit_code": None, "exit_signal": "SIGTERM", "spontaneous": False}
    events += [exited(LENGTH_S + 1 + rank / ranks, rank, **stop) for rank in others]
    write_run(path, ranks, events, outcome="failed", root_cause=1, exit_code=137, report=["rank 1 failed"])
    with (path / "samples.jsonl").open("w") as file:
        for after_s in range(10, int(LENGTH_S), 60):
            row = {"cpu_s": after_s * 0.9, "rss_bytes": 2 << 30, "processes": 3, "output_bytes": after_s * 100}
            rows = {str(rank): {"pid": 1000 + rank, **row, "step": after_s // 2} for rank in range(ranks)}
            file.write(json.dumps({"time": BEGIN_S + after_s, "interval_s": 60, "ranks": rows}) + "\n")
    for rank in range(ranks):
        (path / "attempt_0" / str(rank)).mkdir(parents=True)
        (path / "attempt_0" / str(rank) / "stdout.log").write_text("a line\n" * 50)
