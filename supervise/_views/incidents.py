"""What went wrong in a run: its incidents, and why a rank has failed."""

from __future__ import annotations

import os
from signal import Signals
from typing import TYPE_CHECKING, Any, TypeAlias

from supervise._files import last_lines
from supervise._printable import OUT_OF_MEMORY, one_line, printable
from supervise._record import NamedTuple
from supervise._story import failure_report
from supervise._story.wording import at_step, exit_of, failed_or_ended, hang_of, left_outside, seconds
from supervise._views.samples import log_paths
from supervise.result import ProcessFailure, RankEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from supervise._views.recorded_run import RecordedRun
    from supervise._views.run_state import Failure, Occurrence


# The reason why a rank has failed, before its run has a result, in the words of the failure report


_MOST_LINES = 60


def why_failed(run: RecordedRun, rank: int, failure: Failure) -> list[str]:
    """Return printable lines that say which rank failed and how, with its traceback or the end of its stderr.

    Args:
        run: The run.
        rank: The rank.
        failure: Its failure.
    """
    life, exited = failure.life, failure.life.end
    code = None if exited is None else _exitcode(exited.fields)
    if exited is None or code is None or not life.pid:  # it runs, or the event is not as supervise writes it
        return [f"{run.spans([rank])} failed: {one_line(failure.why or 'its end is not known')}"]
    fields = exited.fields
    paths = log_paths(run.path, rank, life.attempt)
    out, err = (path if os.path.lexists(path) else "" for path in paths)
    end = RankEnd(
        local_rank=rank,
        pid=life.pid,
        exitcode=code,
        role="root_cause",
        started_ns=1,
        ended_ns=1 + int(fields.get("uptime_s", 0) * 1e9),
        core_dumped=fields.get("core_dumped", False),
        oom_kill=fields.get("oom_kill", False),
        stderr_tail=last_lines(err),
        stdout_log=out,
        stderr_log=err,
        step=fields.get("step"),
        status=fields.get("status"),
        host=one_line(str(run.info.get("host_name") or "")),
    )
    why = failure.why or fields.get("complaint", "")
    error_file = os.path.join(os.path.dirname(paths[0]), "error.json")
    found = ProcessFailure.of(rank, life.pid, code, error_file, message=why)
    return [printable(line) for line in failure_report.of_rank(found, end, _story(run))[:_MOST_LINES]]


def _exitcode(fields: dict[str, Any]) -> int | None:
    """Return the exit code in the event of an exit, ``-N`` for signal N; None if it is not known."""
    name = fields.get("exit_signal", "")
    if name in Signals.__members__:
        return -Signals[name]
    number = name.removeprefix("signal ")  # a realtime signal has no name
    return -int(number) if number.isdecimal() and len(number) < 4 else fields["exit_code"]


def _story(run: RecordedRun) -> failure_report.Story:
    several = run.info["nnodes"] if run.is_of_one_host_of_several else 1
    nproc = run.info["world_size"]
    host = run.info.get("node_rank", 0) if several > 1 else 0
    return failure_report.Story(nproc=nproc, hosts=several, host=host, titles=tuple(run.titles))


# The words for what went wrong in a run, and for its restarts. `supervise top` and `supervise report` share them


LONGEST_TEXT = 300
Name: TypeAlias = "Callable[[Iterable[int]], str]"
KINDS = {
    "events.lost": "lost",
    "gang.restarting": "restart",
    "gang.stopping": "stopping",
    "host.lost": "lost",
    "process.exited": "failed",
    "process.faulted": "failed",
    "process.hung": "hung",
    "process.leaked": "leaked",
    "process.restarting": "restart",
    "process.start_failed": "failed",
    "process.stopped": "suspended",
    "process.unkillable": "unkillable",
}


class Incident(NamedTuple):
    """Something that happened, in words."""

    at_s: float
    """Seconds since the epoch."""
    kind: str
    """A word, such as ``failed``, ``hung``, ``restart``, ``stopping``, ``suspended`` or ``lost``."""
    rank: int | None
    """Local rank; None: the whole gang."""
    text: str
    """One printable line."""


CANCELED = "did not take place"
"""What is said about an announced restart that has not begun at the end of the run."""


def incident(it: Occurrence, name: Name, *, present: bool, canceled: bool = False) -> Incident:
    """Return an event of `KINDS` in words.

    Args:
        it: The event.
        name: Function that returns ranks as text, such as `RecordedRun.spans`.
        present: Whether the words are about the present, as in ``hangs``; otherwise about the past, as in ``hung``.
        canceled: Whether it announces a restart that did not take place.
    """
    return Incident(it.at_s, KINDS[it.name], it.rank, _text(it, name, present=present, canceled=canceled))


def _text(  # noqa: C901, PLR0911 - one case per event
    it: Occurrence, name: Name, *, present: bool, canceled: bool
) -> str:
    rank, fields = "" if it.rank is None else name([it.rank]), it.fields
    match it.name:
        case "process.exited":
            after = f" after {seconds(fields['uptime_s'])}" if "uptime_s" in fields else ""
            return f"{rank} failed{at_step(fields.get('step'), fields.get('status'))}: {end_of(it)}{after}"
        case "process.restarting":
            stopped = "stopped, " if fields.get("end_role") in ("bystander", "terminated") else ""
            again = f"a restart of {rank} {CANCELED}" if canceled else f"{rank} restarts {_soon(it)}"
            return f"{again}: {stopped}{short(fields.get('fault', '')) or end_of(it)}"
        case "process.hung":
            return f"{rank} {'hangs' if present else 'hung'}: {hang_of(fields)}"
        case "process.faulted":
            return f"{rank}: {short(fields['message'])}"
        case "process.start_failed":
            return f"{rank} did not start: {short(fields['exception_message'])}"
        case "process.stopped":
            return f"{rank} was suspended by {short(fields['signal'])}"
        case "process.leaked":
            return f"{rank or 'a rank'} {left_outside(fields)}"
        case "process.unkillable":
            return f"{rank} survived SIGKILL (pid {fields.get('pid')})"
        case "gang.restarting":
            how = fields["error_type"]
            why = f"{name([fields['root_cause_rank']])} {failed_or_ended(how)} ({short(how)})"
            again = f"a restart of all ranks {CANCELED}" if canceled else f"all ranks restart {_soon(it)}"
            return f"{again}: {why}"
        case "gang.stopping":
            return f"supervise {'stops' if present else 'stopped'} the ranks ({reason_of(fields)})"
        case "events.lost":
            return f"{fields['count']} events could not be written"
        case _:
            return f"host {fields['host']}{'' if present else ' was lost'}: {short(fields['reason'])}"


def _soon(it: Occurrence) -> str:
    delay_s = it.fields.get("backoff_s", 0)
    return f"in {seconds(delay_s)}" if delay_s else "at once"


def end_of(it: Occurrence) -> str:
    """Return how a life ended: ``exit code 3``, ``SIGKILL, out of memory suspected``."""
    return f"{exit_with_complaint(it)}{f', {OUT_OF_MEMORY}' if it.fields.get('oom_kill') else ''}"


def exit_with_complaint(it: Occurrence) -> str:
    """Return the exit of a life: ``exit code 0 (no heartbeat)``, ``SIGSEGV, core dumped``."""
    how = short(exit_of(it.fields))
    if "exit_signal" in it.fields:
        return f"{how}, core dumped" if it.fields.get("core_dumped") else how
    return f"{how} ({short(it.fields['complaint'])})" if it.fields.get("complaint") else how


_REASONS = {
    "peer_failed": "a rank has failed",
    "close": "a stop was requested",
    "timeout": "the timeout has passed",
    "start_failed": "the start has failed",
    "fault": "it hung, or was not ready in time",
    "restart": "for a restart",
    "terminate": "as requested",
    "user": "as requested",
}


def reason_of(fields: Mapping[str, Any]) -> str:
    """Return in words why supervise sent a signal, or stops the ranks."""
    return _REASONS.get(fields["reason"], short(fields["reason"]))


def short(text: str) -> str:
    """Return the beginning of a text as one printable line."""
    return one_line(text)[:LONGEST_TEXT]
