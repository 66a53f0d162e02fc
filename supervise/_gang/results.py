"""The result of a gang, built from the verdict of the core."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from supervise._core.facts import StartFailed
from supervise._logs.files import last_lines
from supervise._printable import one_line
from supervise.errors import SpawnError
from supervise.recording import text_of
from supervise.result import ProcessFailure, RankEnd, RunProcsResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervise._core.model import Gang
    from supervise._core.steps import Verdict, WorkerFailedToStart
    from supervise._gang.attempt import Attempt
    from supervise._gang.notify_sockets import RankNotes
    from supervise._gang.spec import GangSpec
    from supervise.messages import WorkerExited
    from supervise.result import Role

OUT_OF_MEMORY = "out of memory suspected"
"""Beginning of the message of a failure, if the cgroup of the rank counted an OOM kill."""
_KNOWN_BY_CODE = ("To enable traceback see:", "Signal ")
"""Beginnings of texts that give no more information than the exit code."""
_HUNG = "hung: "
"""Beginning of the reason of a hang."""
_CAUSE_CHARS = 300
LOST_CODE = 255
"""`ProcessFailure.exitcode`, which is always a number, for an exit status that is lost."""


def rank_end(end: WorkerExited, role: Role, started_ns: int, attempt: Attempt) -> RankEnd:
    """Return the public record of the end of a rank."""
    stderr = attempt.dest.stderrs.get(end.local_rank, "")
    return RankEnd(
        local_rank=end.local_rank,
        pid=end.pid or None,
        exitcode=end.exitcode,
        role=role,
        started_ns=started_ns,
        ended_ns=end.ended_ns,
        core_dumped=end.core_dumped,
        max_rss_bytes=end.max_rss_bytes,
        cpu_time_s=end.cpu_time_s,
        oom_kill=end.oom_kill,
        stdout_log=attempt.dest.stdouts.get(end.local_rank, ""),
        stderr_log=stderr,
        stderr_tail=_last_words(end, stderr),
    )


def build_result(gang: Gang, verdict: Verdict, attempt: Attempt, values: Mapping[int, Any]) -> RunProcsResult:
    """Build the result that every `Wait` gets.

    Args:
        gang: The state of the gang.
        verdict: The verdict on the gang.
        attempt: The last attempt.
        values: Local rank to return value, if all ranks exited with code 0.
    """
    result = RunProcsResult(
        stdouts=dict(attempt.dest.stdouts), stderrs=dict(attempt.dest.stderrs), outcome=verdict.outcome
    )
    if not verdict.blamed:
        result.return_values = {rank: values.get(rank) for rank in range(attempt.nprocs)}
    to_wall_ns = time.time_ns() - time.monotonic_ns()
    stopped = verdict.kind == "stopped"
    for rank in verdict.blamed:
        result.failures[rank] = _failure(gang, rank, attempt, to_wall_ns, stopped=stopped)
    for rank, role in sorted(verdict.roles.items()):
        end, started_ns = gang.ranks[rank].end, gang.ranks[rank].started_ns
        if end is not None:
            result.ends[rank] = rank_end(end, role, started_ns, attempt)
            continue
        stderr = attempt.dest.stderrs.get(rank, "")
        result.ends[rank] = RankEnd(
            local_rank=rank,
            pid=gang.unkillable[rank].pid,
            exitcode=None,
            role=role,
            started_ns=started_ns,
            ended_ns=time.monotonic_ns(),
            stdout_log=attempt.dest.stdouts.get(rank, ""),
            stderr_log=stderr,
            stderr_tail=last_lines(stderr),
        )
    return result


def _last_words(end: WorkerExited, path: str) -> str:
    """Return the last lines of a rank's stderr. If the file was empty at the end of the rank, do not read it."""
    return last_lines(path) if end.log_bytes.get(path) else ""


def _failure(gang: Gang, rank: int, attempt: Attempt, to_wall_ns: int, *, stopped: bool) -> ProcessFailure:
    end = gang.ranks[rank].end
    if end is None:
        stuck = gang.unkillable.get(rank)
        if stuck is not None:
            message = f"PID {stuck.pid} outlived SIGKILL; its state in the kernel is {stuck.state}"
            return ProcessFailure.of(rank, stuck.pid, LOST_CODE, "", message=message)
        message = f"rank {rank} was not started: the gang was closed first"
        return ProcessFailure.of(rank, 0, -gang.stop.death_sig, "", message=message)
    fault = gang.ranks[rank].fault
    recorded = end.error_ns is not None
    if fault is not None and end.error_ns is not None and end.error_ns > fault.at_ns:
        recorded = False  # an exception that the stop of the faulty rank has caused
    message = fault.why if fault is not None else end.complaint or ""
    if fault is None and not stopped and not gang.ranks[rank].ready and end.exitcode in gang.success:
        message = f"ended with {_code(end)} before it was ready"
    if end.oom_kill:
        message = f"{OUT_OF_MEMORY}: killed by the kernel (SIGKILL, PID {end.pid}) as its memory cgroup was full"
    if rank == gang.culprit and not gang.failed(end):
        message = f"exited with code {end.exitcode}; its restart kind is permanent, and no restart is left"
    if stopped and end.exitcode == 0:
        message = f"stopped by {gang.stop.death_sig.name} before the gang's end; exited with code 0"
    return ProcessFailure.of(
        rank,
        end.pid,
        LOST_CODE if end.exitcode is None else end.exitcode,
        "" if (stopped or fault is not None) and not recorded else attempt.dest.error_files.get(rank, ""),
        message=message,
        timestamp_ns=end.ended_ns + to_wall_ns,
    )


def failed_line(name: str, title: str, result: RunProcsResult) -> str:
    """Return one line about a failed gang: the rank, the cause and the path of a log.

    Args:
        name: Name of the gang.
        title: The title of the first rank in `result.failures`.
        result: The result.
    """
    rank, root = next(iter(result.failures.items()))
    recorded = root.message.get("message") if isinstance(root.message, dict) else None
    if not root.pid:  # the rank could not be launched
        recorded = root.message
    if recorded is None:
        how = f"exit code {root.exitcode}" if root.exitcode >= 0 else root.signal_name()
        recorded = how if str(root.message).startswith(_KNOWN_BY_CODE) else f"{how}: {root.message}"
    logs = [path for path in (result.stderrs.get(rank), root.error_file) if path and os.path.isabs(path)]
    where = f"; see {logs[0]}" if logs else ""
    cause = one_line(str(recorded))
    cause = cause if len(cause) <= _CAUSE_CHARS else f"{cause[:_CAUSE_CHARS]} ..."
    who = one_line(f"{name} failed: {title}")
    process = f"pid {root.pid}" if root.pid else "no process"
    return f"supervise: {who} ({process}): {cause}{one_line(where)}"


def start_error(
    gang: Gang,
    failure: WorkerFailedToStart | StartFailed,
    notes: Callable[[int], RankNotes | None],
    spec: GangSpec,
) -> Exception:
    """Return the exception for the sender of the `Start`. An `OSError` keeps its class, errno and file name."""
    if isinstance(failure, StartFailed):
        return _not_ready_error(gang, failure, notes(failure.local_rank), spec)
    error, rank = failure.error, failure.local_rank
    if isinstance(error, OSError) and error.errno is not None:
        raised: Exception = OSError(
            error.errno, f"{spec.title(rank)} could not be started: {error.strerror}", error.filename
        )
    else:
        raised = SpawnError(f"{spec.role_of_error(rank)}{type(error).__name__}: {text_of(error)}", local_rank=rank)
    raised.__cause__ = error
    return raised


def _not_ready_error(gang: Gang, failure: StartFailed, notes: RankNotes | None, spec: GangSpec) -> SpawnError:
    end = gang.ranks[failure.local_rank].end
    why, code, what = failure.why, None, "did not start"
    if end is not None and gang.ranks[failure.local_rank].fault is None:
        why, code = f"{why}, with {_code(end)}", end.exitcode
    if why.startswith(_HUNG):
        why, what = why.removeprefix(_HUNG), "hung before all ranks were ready"
    if notes is not None and notes.status:
        why = f"{why}; its last status: {notes.status}"
    why = f"{spec.role_of_error(failure.local_rank)}{why}"
    return SpawnError(why, local_rank=failure.local_rank, exitcode=code, what=what)


def _code(end: WorkerExited) -> str:
    if end.exitcode is None:
        return "a lost exit status"
    from supervise._gang.describe import signal_name  # for events, which a gang without a listener does not import

    how = f"exit code {end.exitcode}" if end.exitcode >= 0 else signal_name(-end.exitcode)
    return f"{how}, out of memory suspected" if end.oom_kill else how
