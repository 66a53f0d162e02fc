"""The ranks that have failed during a run, from its events, and the reasons in the words of the failure report."""

from __future__ import annotations

import os
from signal import Signals
from typing import TYPE_CHECKING, Any

from supervise._logs.files import last_lines
from supervise._printable import one_line, printable
from supervise._views import failure_report
from supervise._views.samples import STREAMS
from supervise._views.story import Story
from supervise.result import ProcessFailure, RankEnd, RunProcsResult

if TYPE_CHECKING:
    from supervise._views.recorded_run import RecordedRun

_MOST_LINES = 60


class FailedRanks:
    """Ranks whose present life has failed. Used by one thread."""

    def __init__(self) -> None:
        """Begin without events."""
        self.events: dict[int, dict[str, Any]] = {}
        """Local rank to the event of its end; before its end, the event of its fault. The first failure comes first."""
        self.latest: dict[int, dict[str, Any]] = {}
        """The same for the last life that has failed, even if a restart has followed."""

    @property
    def first(self) -> int | None:
        """The rank that failed first; None if none has failed."""
        return next(iter(self.events), None)

    def take(self, name: str, event: dict[str, Any]) -> None:
        """Take an event.

        Args:
            name: Its name without ``supervise.``.
            event: Its fields. Those of an event of a rank have a valid ``local_rank``.
        """
        match name:
            case "process.started":
                self.events.pop(event["local_rank"], None)
            case "process.faulted" | "process.start_failed":
                self._note(event["local_rank"], event)
            case "process.exited":
                rank = event["local_rank"]
                before = self.events.get(rank)
                if before is not None:
                    self._note(rank, event | {"complaint": before.get("message")})
                elif event.get("level") == "error":
                    self._note(rank, event)
            case "gang.restarting":
                self.events.clear()
            case _:
                pass

    def _note(self, rank: int, event: dict[str, Any]) -> None:
        self.events[rank] = self.latest[rank] = event


def why_failed(run: RecordedRun, event: dict[str, Any]) -> list[str]:
    """Return printable lines that say which rank failed and how, with its traceback or the end of its stderr.

    Args:
        run: The run.
        event: The event of the end of a rank, or of its fault.
    """
    rank = event["local_rank"]
    try:
        result, story = _result(run, rank, event)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):  # the rank runs, or wrote the event itself
        why = event.get("message") or event.get("exception_message") or "its end is not known"
        return [f"rank {rank} failed: {one_line(str(why))}"]
    return [printable(line) for line in failure_report.of_rank(result, story, rank)[:_MOST_LINES]]


def _result(run: RecordedRun, rank: int, event: dict[str, Any]) -> tuple[RunProcsResult, Story]:
    """Return the result of a run in which only this rank has failed."""
    signal, pid = event["exit_signal"], int(event["pid"])
    code = -Signals[signal] if signal else int(event["exit_code"])
    folder = os.path.join(run.path, f"attempt_{int(event['attempt'])}", str(rank))
    out, err = (os.path.join(folder, name) for name in STREAMS)
    logs = {path: path if os.path.lexists(path) else "" for path in (out, err)}
    out, err = logs[out], logs[err]
    end = RankEnd(
        local_rank=rank,
        pid=pid,
        exitcode=code,
        role="root_cause",
        started_ns=1,
        ended_ns=1 + int(float(event["uptime_s"]) * 1e9),
        core_dumped=bool(event.get("core_dumped")),
        oom_kill=bool(event.get("oom_kill")),
        stderr_tail=last_lines(err),
        stdout_log=out,
        stderr_log=err,
        host=one_line(str(run.info.get("host_name") or "")),
    )
    error_file = os.path.join(folder, "error.json")
    failure = ProcessFailure.of(rank, pid, code, error_file, message=str(event.get("complaint") or ""))
    hosts = 1 if run.info.get("engine") == "ray" else max(1, int(run.info.get("nnodes") or 1))
    roles = run.info.get("roles") or []
    nproc = int(run.info["world_size"])
    titles = ["{}{}".format(*run.title(each)) for each in range(nproc)] if len(roles) > 1 else []
    host = int(run.info.get("node_rank") or 0) if hosts > 1 else 0
    story = Story(nproc=nproc, grace_s=0.0, hosts=hosts, host=host, titles=tuple(titles))
    result = RunProcsResult(
        outcome="failed", failures={rank: failure}, ends={rank: end}, stdouts={rank: out}, stderrs={rank: err}
    )
    return result, story
