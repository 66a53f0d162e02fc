"""The events that describe the facts of a gang. Only this module has the names of these events."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

from supervise import messages as say
from supervise._core import steps
from supervise._files import last_lines, size_of
from supervise._platform import why_refused
from supervise._printable import LOST_CODE, OUT_OF_MEMORY, below_itself, ending, one_line, signal_name
from supervise._record import NamedTuple
from supervise.errors import SpawnError, SuperviseError, failure_text, rank_cause
from supervise.events import Event, EventLog, say_at_last
from supervise.recording import text_of
from supervise.result import (
    FAULTS,
    LINGERED,
    Causes,
    ProcessFailure,
    RankEnd,
    RankRestart,
    Role,
    RunProcsResult,
    lost_with,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from signal import Signals

    from supervise._core.model import Gang
    from supervise._gang.attempt import Attempt
    from supervise._gang.notify_sockets import RankNotes


# The fact that a rank hangs


class Hung(NamedTuple):
    """A rank hangs."""

    message: say.WorkerHung
    waiting: tuple[int, ...]
    """Ranks that are silent because they wait for the rank that hangs."""


if TYPE_CHECKING:
    Told = say.WorkerStopped | say.WorkerRestarting | say.GangStarted | say.GangRestarting | say.GangFinished
    Fact: TypeAlias = steps.Fact | Told | Hung


def _causes(result: RunProcsResult) -> dict[str, Any]:
    """Return the fields that name the causes. The root cause is the first of a result's failures."""
    root = next(iter(result.failures))
    return {
        "root_cause_rank": root,
        "error_type": _error_type(result.failures[root]),
        "failed_ranks": list(result.failures),
    }


def restarting(message: say.GangRestarting) -> Event:
    """Return the event for a restart of a whole gang."""
    fields = {
        "attempt": message.attempt,
        "restarts": message.restarts,
        "max_restarts": message.max_restarts,
        "backoff_s": message.delay_s,
        "left_out": sorted(message.left_out),
        **_causes(message.result),
    }
    return Event("supervise.gang.restarting", "warning", fields)


def finished(message: say.GangFinished, duration_s: float, *, raised: bool = False) -> list[Event]:
    """Return the events for the end of a gang, without those for the exceptions of ranks.

    Args:
        message: The end of the gang.
        duration_s: Seconds since its start.
        raised: Whether the caller gets a failure as an exception.
    """
    result, error = message.result, message.error
    if result is None:
        why = {"exception_type": type(error).__name__, "exception_message": text_of(error)}
        fields = {"outcome": "failed", "duration_s": duration_s, **why}
        return [Event("supervise.gang.finished", "error", fields)]
    events = []
    if result.outcome == "failed":
        events.append(Event("supervise.gang.failed", "info" if raised else "error", _causes(result)))
    fields = {"outcome": result.outcome, "duration_s": duration_s}
    return [*events, Event("supervise.gang.finished", "info", fields)]


def _exit_fields(code: int | None) -> dict[str, Any]:
    sig = signal_name(-code) if code is not None and code < 0 else None
    return {"exit_code": code if sig is None else None, "exit_signal": sig}


def _seconds(then_ns: int, now_ns: int) -> float:
    return (now_ns - then_ns) / 1e9


def _error_type(failure: ProcessFailure) -> str:
    """Return the type of an exception, ``hung``, the name of a signal, or an exit code."""
    if isinstance(failure.message, dict):
        return str(failure.message.get("message", "")).partition(":")[0]
    if (lost := lost_with(failure)) is not None:
        return lost
    if (message := str(failure.message)).startswith(FAULTS):
        return message.partition(":")[0]
    if not failure.pid:
        return "not started"
    return ending(failure.exitcode)


def whole_number(text: str | None, default: int) -> int:
    """Parse the value of an environment variable as an integer; return `default` if the value is not one."""
    try:
        return default if text is None else int(text)
    except ValueError:
        return default


# The result of a gang, built from the verdict of the core


_KNOWN_BY_CODE = ("To enable traceback see:", "Signal ")
"""Beginnings of texts that give no more information than the exit code."""
_HUNG = "hung: "
"""Beginning of the reason of a hang."""
_CAUSE_CHARS = 300


def rank_end(end: say.WorkerExited, role: Role, started_ns: int, attempt: Attempt) -> RankEnd:
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
        # Without a read of the file, if it was empty at the end of the rank
        stderr_tail=last_lines(stderr) if end.log_bytes.get(stderr) else "",
        step=end.step,
        status=end.status,
    )


_HELD = "its function had returned, and its process waited until those of all ranks have (hold_returned)"


def build_result(gang: Gang, verdict: steps.Verdict, attempt: Attempt, values: Mapping[int, Any]) -> RunProcsResult:
    """Build the result that every `Wait` gets.

    Args:
        gang: The state of the gang.
        verdict: The verdict on the gang.
        attempt: The last attempt.
        values: Local rank to return value, of all ranks; if ranks were cut short, those that have arrived.
    """
    result = RunProcsResult(
        stdouts=dict(attempt.dest.stdouts), stderrs=dict(attempt.dest.stderrs), outcome=verdict.outcome
    )
    stopped = verdict.outcome != "failed"
    if not stopped:
        result.failures = Causes()
    if not verdict.blamed:
        result.return_values = {rank: values.get(rank) for rank in range(attempt.nprocs)}
    elif stopped:
        result.return_values = dict(values)
    to_wall_ns = time.time_ns() - time.monotonic_ns()
    for rank in verdict.blamed:
        result.failures[rank] = _failure(gang, rank, attempt, to_wall_ns, stopped=stopped)
    for rank, role in sorted(verdict.roles.items()):
        end = gang.ranks[rank].end
        if end is None:  # it has survived SIGKILL
            stderr = attempt.dest.stderrs.get(rank, "")
            end = say.WorkerExited(
                local_rank=rank,
                pid=gang.unkillable[rank].pid,
                exitcode=None,
                ended_ns=time.monotonic_ns(),
                log_bytes={stderr: size_of(stderr) or 0},
            )
        result.ends[rank] = rank_end(end, role, gang.ranks[rank].started_ns, attempt)
    return result


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
    if fault is None and not stopped and end.exitcode == 0 and 0 not in gang.success:
        message = "exited with code 0, which is not one of the success_exit_codes"
    if end.oom_kill:
        message = f"{OUT_OF_MEMORY}: killed by the kernel (SIGKILL, PID {end.pid}) as its memory cgroup was full"
    if rank == gang.culprit and not gang.failed(end):
        message = f"exited with code {end.exitcode}; its restart kind is permanent, and no restart is left"
    if stopped and end.exitcode == 0:
        how = "its restart was canceled" if gang.ranks[rank].by_itself else f"stopped by {gang.stop.death_sig.name}"
        message = f"{how} before the gang's end; exited with code 0"
    elif stopped and end.has_value:
        held = attempt.spec.hold_returned and not end.lingered
        message = f"{LINGERED}{end.lingered or 'it was stopped within 5 s'}" if not held else _HELD
    return ProcessFailure.of(
        rank,
        end.pid,
        LOST_CODE if end.exitcode is None else end.exitcode,
        attempt.dest.error_files.get(rank, "") if end.pid and (recorded or not (stopped or fault)) else "",
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
    if not root.pid or lost_with(root) is not None:  # the rank has no exit status
        recorded = root.message
    if recorded is None:
        how = ending(root.exitcode)
        recorded = how if str(root.message).startswith(_KNOWN_BY_CODE) else f"{how}: {root.message}"
    # An empty log comes last
    streams = sorted((result.stderrs.get(rank, ""), result.stdouts.get(rank, "")), key=lambda path: not size_of(path))
    logs = [path for path in (*streams, root.error_file) if path and os.path.isabs(path)]
    where = f"; see {logs[0]}" if logs else ""
    cause = one_line(str(recorded))
    cause = cause if len(cause) <= _CAUSE_CHARS else f"{cause[:_CAUSE_CHARS]} ..."
    who = f"{one_line(f'{name} failed: {title}')} ({f'pid {root.pid}' if root.pid else 'no process'})"
    return f"supervise: {who}: {cause}{one_line(where)}"


def start_error(
    gang: Gang,
    failure: steps.WorkerFailedToStart | steps.StartFailed,
    notes: Callable[[int], RankNotes | None],
    unmet: Mapping[int, list[str]],
    attempt: Attempt,
) -> Exception:
    """Return the exception for the sender of the `Start`. An `OSError` keeps its class, errno and file name.

    Args:
        gang: The gang.
        failure: Why the start has failed.
        notes: Function that returns the reports of a rank.
        unmet: Rank that has ended to the probes that had kept it from being ready, with their last answers.
        attempt: The attempt.
    """
    if isinstance(failure, steps.StartFailed):
        return _not_ready_error(gang, failure, notes(failure.local_rank), unmet, attempt)
    spec, error, rank = attempt.spec, failure.error, failure.local_rank
    if isinstance(error, OSError) and error.errno is not None:
        why = f"{spec.title(rank)} could not be started: {why_refused(error.errno, error.strerror or '')}"
        raised: Exception = OSError(error.errno, why, error.filename)
    else:
        raised = SpawnError(f"{type(error).__name__}: {text_of(error)}", local_rank=rank, role=spec.role_title(rank))
    raised.__cause__ = error
    return raised


def _not_ready_error(
    gang: Gang,
    failure: steps.StartFailed,
    notes: RankNotes | None,
    unmet: Mapping[int, list[str]],
    attempt: Attempt,
) -> SpawnError:
    rank, end, code, what = failure.local_rank, gang.ranks[failure.local_rank].end, None, "did not start"
    why = failure.why
    if end is not None and gang.ranks[rank].fault is None:
        what, why, code = why, _why_failed(gang, rank, unmet), end.exitcode
    if why.startswith(_HUNG):
        why, what = why.removeprefix(_HUNG), "hung before all ranks were ready"
    if notes is not None and notes.status:
        why = f"{why}; its last status: {notes.status}"
    error = SpawnError(why, local_rank=rank, exitcode=code, what=what, role=attempt.spec.role_title(rank))
    _add_output(error, gang, rank, attempt)
    return error


def ask_error(gang: Gang, failed: steps.FailAsks, unmet: Mapping[int, list[str]], attempt: Attempt) -> SuperviseError:
    """Return the exception for the senders of requests that have failed, with the failure of a rank if there is one.

    The arguments are those of `start_error`.
    """
    text, rank = f"{attempt.spec.name}: {failed.why}", failed.cause
    if rank is None:
        return SuperviseError(text)
    who = "" if failed.why.startswith(f"rank {rank} ") else f"{attempt.spec.title(rank)}: "
    error = SuperviseError(f"{text}: {who}{_why_failed(gang, rank, unmet)}")
    _add_output(error, gang, rank, attempt)
    return error


def _why_failed(gang: Gang, rank: int, unmet: Mapping[int, list[str]]) -> str:
    """Return the fault of a rank, or how its present life has ended."""
    fault, end = gang.ranks[rank].fault, gang.ranks[rank].end
    if fault is not None:
        return fault.why
    if end is None or not end.pid:
        return (end and end.complaint) or ""
    return "; ".join([_code(end), *unmet.get(rank, ())])


def _add_output(error: SuperviseError, gang: Gang, rank: int, attempt: Attempt) -> None:
    """Add what a rank that has failed has left: its traceback as the cause, the end of its log and the folder as notes.

    A life that could not be launched has left nothing.
    """
    end = gang.ranks[rank].end
    if end is not None and gang.ranks[rank].fault is None:
        recorded = _failure(gang, rank, attempt, 0, stopped=False).message
        error.__cause__ = rank_cause(failure_text(recorded).rstrip() if isinstance(recorded, dict) else "")
    for log in (attempt.dest.stderrs.get(rank, ""), attempt.dest.stdouts.get(rank, "")):
        if (end is None or end.log_bytes.get(log)) and (text := last_lines(log).strip()):
            error.add_note(f"the end of its {os.path.basename(log).partition('.')[0]}:\n  {below_itself(text)}")
            error.add_note(f"logs: {os.path.dirname(log)}")
            break


def _code(end: say.WorkerExited) -> str:
    return "a lost exit status" if end.exitcode is None else ending(end.exitcode, oom_kill=end.oom_kill)


# The history of replaced lives


_MOST_KEPT = 1000
"""Limit on the number of lives in the history."""


class RestartHistory:
    """The lives that restarts have replaced, or are about to replace. Used on the gang's loop."""

    def __init__(self) -> None:
        """Begin without restarts."""
        self.announced: dict[int, tuple[int, RankEnd, bool]] = {}
        """Rank to the life that will be replaced: its number, its end, and whether its end causes a counted restart."""
        self.kept: deque[RankRestart] = deque(maxlen=_MOST_KEPT)
        self.total = 0
        """Number of replaced lives."""

    def announce(self, rank: int, attempt: int, end: RankEnd, *, counted: bool) -> bool:
        """Note that the life with this number and this end will be replaced; return False if that was known."""
        known, self.announced[rank] = self.announced.get(rank), (attempt, end, counted)
        return known != self.announced[rank]

    def replaced(self, ranks: Iterable[int]) -> None:
        """Add the announced lives of these ranks, because their next lives begin."""
        at_ns = time.monotonic_ns()
        for rank in ranks:
            if rank in self.announced:
                attempt, end, counted = self.announced.pop(rank)
                self.kept.append(RankRestart(rank, attempt, end, at_ns, counted))
                self.total += 1


def not_unpickled(error: BaseException) -> str:
    """Return the complaint about a return value whose load has raised `error`."""
    return f"its return value could not be unpickled here: {type(error).__name__}: {text_of(error)}".removesuffix(": ")


# The emission of a gang's events


class EventEmitter:
    """Emitter of the events of one gang. Used on the gang's loop."""

    def __init__(self, attempt: Attempt) -> None:
        """Take the common fields of all events from `attempt`, which is the first attempt."""
        first, spec = attempt.envs.get(0, {}), attempt.spec
        self._attempt = attempt
        self._begun_ns = self._attempt_ns = time.monotonic_ns()
        role = None if spec.role_of else first.get("ROLE_NAME")  # each rank has its own
        common = {"gang": spec.name, "run_id": first.get("TORCHELASTIC_RUN_ID"), "role": role}
        self._log = EventLog({**common, "attempt": _number_of(attempt)}, sink=spec.event_sink)

    def listens(self, level: str = "warning") -> bool:
        """Return whether an event of this level would reach a listener."""
        return self._log.listens(level)

    def global_ranks(self, local_ranks: Iterable[int]) -> dict[int, int]:
        """Return local rank to the rank that events name.

        If two ranks would have the same name, events name the local rank.
        """
        found = {local: self._global_rank(local) for local in local_ranks}
        return found if len(set(found.values())) == len(found) else {local: local for local in found}

    def begin(self, attempt: Attempt) -> None:
        """Describe this attempt from now on. It is the first one, or that of a restart."""
        self._attempt_ns = time.monotonic_ns()
        if attempt is self._attempt:
            self._begun_ns = self._attempt_ns
        self._attempt = attempt
        self._log.renew(attempt=_number_of(attempt))
        methods = {part.start_method for part in attempt.spec.parts}
        errors = [path for path in attempt.dest.error_files.values() if path != os.devnull]
        fields = {
            "world_size": attempt.nprocs,
            "start_method": methods.pop() if len(methods) == 1 else None,
            "log_dir": os.path.dirname(os.path.dirname(errors[0])) if errors else None,
        }
        self._emit(Event("supervise.gang.starting", "info", fields))

    def emit(self, fact: Fact) -> None:
        """Emit the events for `fact`. Without a listener, do not describe `fact`."""
        if self._log.listens("error"):
            for event in self._describe(fact, time.monotonic_ns()):
                self._emit(event)

    def _emit(self, event: Event) -> None:
        self._log.emit(event.name, event.level, **event.fields)

    def signaled(
        self, local_rank: int, pid: int | None, sig: Signals, reason: str, *, escalation: int, target: str
    ) -> None:
        """Report a signal to a rank: to its process ``group``, or to its own ``process``."""
        fields = {"pid": pid, "signal": sig.name, "reason": reason, "escalation": escalation, "target": target}
        self._emit(self._rank("supervise.process.signaled", "info", local_rank, **fields))

    def log_failed(self, iostream: str, path: str, error: str) -> None:
        """Report that a log or its destination has failed. The gang continues."""
        self._emit(Event("supervise.log.failed", "warning", {"log_iostream": iostream, "path": path, "error": error}))

    def log_trimmed(self, iostream: str, path: str, max_bytes: int) -> None:
        """Report that the oldest part of a log was removed from the disk for the first time."""
        fields = {"log_iostream": iostream, "path": path, "log_max_bytes": max_bytes}
        self._emit(Event("supervise.log.trimmed", "info", fields))

    def stacks_taken(self, path: str, places: Sequence[str]) -> None:
        """Report that the stacks of all ranks were collected because a rank hangs.

        Args:
            path: The file with all stacks; "" if there is none.
            places: One line of `group_stacks` for each different stack, with the ranks that have it.
        """
        self._emit(Event("supervise.gang.stacks", "warning", {"path": path, "places": list(places)}))

    def unheard(self, timeout_s: float) -> None:
        """Report that no rank of a gang with a deadline for heartbeats has sent one."""
        self._emit(Event("supervise.gang.unheard", "warning", {"timeout_s": timeout_s}))

    def finish(self, fact: say.GangFinished) -> None:
        """Emit the last events.

        Without a listener, show a failure in one line, unless the caller gets an exception.
        """
        self.emit(fact)
        spec, result = self._attempt.spec, fact.result
        if result is not None and result.outcome == "failed" and spec.plain is None and spec.shows_failure:
            root = next(iter(result.failures))
            title, rank = spec.title(root), self.global_ranks(self._attempt.envs)[root]
            self._log.show_at_last(
                failed_line(spec.name, title if rank == root else f"rank {rank}, local {title}", result)
            )

    def disk_full(self, iostream: str, error: OSError) -> None:
        """Report a disk that is full when the ranks have ended. Without a listener, report it on stderr."""
        text = f"{error.strerror}; what the ranks wrote or recorded last may be missing"
        if not self._log.listens("warning"):
            say_at_last(one_line(f"supervise: {error.filename}: {text}"), logging.WARNING)
        self.log_failed(iostream, error.filename, str(OSError(error.errno, text, error.filename)))

    # Descriptions

    def _describe(self, fact: Fact, now_ns: int) -> list[Event]:  # noqa: C901, PLR0911, PLR0912 - one case a fact
        """Return the events for `fact`, in order. `fact` occurs at `now_ns`."""
        fields: dict[str, Any]
        match fact:
            case say.WorkerStarted():
                part, args = self._attempt.spec.of(fact.local_rank), self._attempt.spec.args[fact.local_rank]
                fields = {
                    "pid": fact.pid,
                    "executable_name": part.what,
                    "command_args": [str(arg) for arg in args] if part.kind == "binary" else None,
                    "start_duration_s": _seconds(fact.started_ns, now_ns),
                }
                return [self._rank("supervise.process.started", "info", fact.local_rank, **fields)]
            case steps.RankExited():
                end = fact.end
                fields = {
                    "pid": end.pid,
                    **_exit_fields(end.exitcode),
                    "core_dumped": end.core_dumped,
                    "uptime_s": _seconds(fact.started_ns or end.ended_ns, end.ended_ns),
                    "spontaneous": fact.by_itself,
                    "complaint": end.complaint,
                    "oom_kill": end.oom_kill,
                    "max_rss_bytes": end.max_rss_bytes,
                    "cpu_time_s": end.cpu_time_s,
                    "step": end.step,
                    "status": end.status,
                }
                return [
                    self._rank(
                        "supervise.process.exited",
                        self._failed_level if fact.failed and fact.by_itself else "info",
                        end.local_rank,
                        **fields,
                    )
                ]
            case steps.RankReady():
                return [self._rank("supervise.process.ready", "info", fact.local_rank)]
            case steps.RankFaulted():
                return [self._rank("supervise.process.faulted", self._failed_level, fact.local_rank, message=fact.why)]
            case Hung():
                told = fact.message
                fields = {
                    "tier": told.tier,
                    "age_s": round(told.age_s, 3),
                    "step": told.step,
                    "status": told.status,
                    "waiting": [self._global_rank(rank) for rank in fact.waiting],
                    "evidence": told.evidence,
                }
                return [self._rank("supervise.process.hung", "error", told.local_rank, **fields)]
            case steps.StartFailed():
                return [self._start_failed(fact.local_rank, "SpawnError", fact.why)]
            case say.WorkerRestarting():
                fields = {
                    "attempt": fact.attempt,
                    "restarts": fact.restarts,
                    "backoff_s": fact.delay_s,
                    "end_role": fact.end.role,
                    **_exit_fields(fact.end.exitcode),
                }
                return [
                    self._rank(
                        "supervise.process.restarting",
                        "info" if fact.end.role in ("terminated", "bystander", "finished") else "warning",
                        fact.local_rank,
                        **fields,
                    )
                ]
            case steps.LifeReplaced():
                return []
            case steps.WorkerFailedToStart():
                kind, number = type(fact.error).__name__, getattr(fact.error, "errno", None)
                event = self._start_failed(fact.local_rank, kind, text_of(fact.error), number)
                if fact.attempt is not None:
                    event.fields["attempt"] = fact.attempt
                return [event]
            case steps.WorkerUnkillable():
                fields = {"pid": fact.pid, "state": fact.state}
                return [self._rank("supervise.process.unkillable", "error", fact.local_rank, **fields)]
            case say.WorkerStopped():
                fields = {"pid": fact.pid, "signal": fact.sig.name}
                return [self._rank("supervise.process.stopped", "warning", fact.local_rank, **fields)]
            case steps.Leaked():
                return self._leaked(fact)
            case steps.TailEnded():
                fields = {
                    "log_iostream": fact.name,
                    "path": None,
                    "error": fact.error or "closed before everything was shown; the rest is in the files",
                    "remaining_bytes": fact.remaining_bytes,
                }
                failed = fact.error or fact.remaining_bytes
                return [Event("supervise.log.failed", "warning", fields)] if failed else []
            case say.GangStarted():
                return [Event("supervise.gang.started", "info", {"duration_s": _seconds(self._attempt_ns, now_ns)})]
            case steps.GangStopping():
                return [Event("supervise.gang.stopping", "info", {"reason": fact.reason})]
            case say.GangRestarting():
                return [*self._errors(fact.result), restarting(fact)]
            case say.GangFinished():
                errors = [] if fact.result is None else self._errors(fact.result)
                raised = self._attempt.spec.plain is not None
                return [*errors, *finished(fact, _seconds(self._begun_ns, now_ns), raised=raised)]

    # Ranks

    @property
    def _failed_level(self) -> str:
        """The level of a failure. It is ``info`` if the caller gets the failure as an exception."""
        return "error" if self._attempt.spec.plain is None else "info"

    def _rank(self, name: str, level: str, local_rank: int, **fields: Any) -> Event:
        own = self._attempt.envs.get(local_rank, {}).get("TORCHELASTIC_RESTART_COUNT")
        life = {} if own is None else {"attempt": whole_number(own, 0)}  # a single rank may have restarted
        if self._attempt.spec.role_of:
            fields["role"] = self._attempt.envs[local_rank].get("ROLE_NAME")
        return Event(name, level, {"rank": self._global_rank(local_rank), "local_rank": local_rank, **life, **fields})

    def _global_rank(self, local_rank: int) -> int:
        """Return `RANK` of a rank's environment; the local rank if `RANK` is not set."""
        return whole_number(self._attempt.envs.get(local_rank, {}).get("RANK"), local_rank)

    def _start_failed(self, local_rank: int, kind: str, message: str, number: int | None = None) -> Event:
        return self._rank(
            "supervise.process.start_failed",
            self._failed_level,
            local_rank,
            exception_type=kind,
            exception_message=message,
            errno=number,
        )

    def _leaked(self, fact: steps.Leaked) -> list[Event]:
        events = []
        for local_rank, descendants in fact.found.leaked.items():
            fields = {
                "rank": None if local_rank is None else self._global_rank(local_rank),
                "local_rank": local_rank,
                "pid": None if local_rank is None else fact.pids.get(local_rank),
                "descendants": list(descendants),
                "ended": fact.found.ended,
            }
            events.append(Event("supervise.process.leaked", "warning", fields))
        return events

    def _errors(self, result: RunProcsResult) -> list[Event]:
        """Return the events for the exceptions that the causes recorded."""
        events = []
        for local_rank, failure in result.failures.items() if result.outcome == "failed" else ():
            if isinstance(failure.message, dict):
                text = str(failure.message.get("message", ""))
                kind, _, what = text.partition(": ")
                event = self._rank(
                    "supervise.process.error",
                    "error",
                    local_rank,
                    exception_type=kind,
                    exception_message=what,
                    exception_stacktrace=failure.message.get("extraInfo", {}).get("py_callstack"),
                    error_file=failure.error_file,
                )
                events.append(event)
        return events


def _number_of(attempt: Attempt) -> int:
    return whole_number(attempt.envs.get(0, {}).get("TORCHELASTIC_RESTART_COUNT"), 0)
