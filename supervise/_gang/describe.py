"""The events that describe the facts of a gang. Only this module has the names of these events."""

from __future__ import annotations

import os
from signal import Signals
from typing import TYPE_CHECKING, Any, NamedTuple

from supervise import messages as say
from supervise._core import facts, steps
from supervise._gang.hung import Hung
from supervise.events import Event
from supervise.messages import Bare
from supervise.recording import text_of

if TYPE_CHECKING:
    from typing import TypeAlias

    from supervise._gang.attempt import Attempt
    from supervise.result import ProcessFailure, RunProcsResult


class AttemptStarting(Bare):
    """The launch of an attempt begins."""


class Signaled(NamedTuple):
    """A signal was sent to the process group of a rank."""

    local_rank: int
    pid: int | None
    sig: Signals
    reason: str
    escalation: int


class LogFailed(NamedTuple):
    """A log or its destination has failed. The gang continues."""

    iostream: str
    path: str
    error: str


class LogTrimmed(NamedTuple):
    """The oldest part of a log was removed from the disk for the first time."""

    iostream: str
    path: str
    max_bytes: int


class StacksTaken(NamedTuple):
    """The stacks of all ranks were collected because a rank hangs."""

    path: str
    """The file with all stacks; "" if there is none."""
    places: tuple[str, ...]
    """One line of `group_stacks` for each different stack, with the ranks that have it."""


if TYPE_CHECKING:
    Told = say.WorkerStopped | say.WorkerRestarting | say.GangStarted | say.GangRestarting | say.GangFinished
    Fact: TypeAlias = facts.Fact | Told | AttemptStarting | Signaled | LogFailed | LogTrimmed | Hung | StacksTaken


class Describer:
    """Describes the facts of one attempt as events. Immutable."""

    def __init__(self, attempt: Attempt, begun_ns: int, attempt_ns: int) -> None:
        """Describe facts of `attempt`. The attempt started at `attempt_ns`, and its gang at `begun_ns`."""
        self.attempt = attempt
        self.begun_ns = begun_ns
        self._attempt_ns = attempt_ns

    def describe(self, fact: Fact, now_ns: int) -> list[Event]:  # noqa: C901, PLR0911, PLR0912 - one case a fact
        """Return the events for `fact`, in order. `fact` occurs at `now_ns`."""
        match fact:
            case say.WorkerStarted():
                return [self._started(fact, now_ns)]
            case facts.RankExited():
                return [self._exited(fact)]
            case steps.RankReady():
                return [self._rank("supervise.process.ready", "info", fact.local_rank)]
            case steps.RankFaulted():
                return [self._rank("supervise.process.faulted", self._failed_level, fact.local_rank, message=fact.why)]
            case Hung():
                return [self._hung(fact)]
            case StacksTaken():
                return [Event("supervise.gang.stacks", "warning", {"path": fact.path, "places": list(fact.places)})]
            case facts.StartFailed():
                return [self._not_ready(fact)]
            case say.WorkerRestarting():
                return [self._rank_restarting(fact)]
            case facts.LifeReplaced():
                return []
            case steps.WorkerFailedToStart():
                return [self._start_failed(fact)]
            case steps.WorkerUnkillable():
                fields = {"pid": fact.pid, "state": fact.state}
                return [self._rank("supervise.process.unkillable", "error", fact.local_rank, **fields)]
            case say.WorkerStopped():
                fields = {"pid": fact.pid, "signal": fact.sig.name}
                return [self._rank("supervise.process.stopped", "warning", fact.local_rank, **fields)]
            case Signaled():
                return [self._signaled(fact)]
            case facts.Leaked():
                return self._leaked(fact)
            case LogFailed():
                fields = {"log_iostream": fact.iostream, "path": fact.path, "error": fact.error}
                return [Event("supervise.log.failed", "warning", fields)]
            case LogTrimmed():
                fields = {"log_iostream": fact.iostream, "path": fact.path, "log_max_bytes": fact.max_bytes}
                return [Event("supervise.log.trimmed", "info", fields)]
            case steps.TailEnded():
                return _tail_ended(fact)
            case AttemptStarting():
                return [self._starting()]
            case say.GangStarted():
                return [Event("supervise.gang.started", "info", {"duration_s": _seconds(self._attempt_ns, now_ns)})]
            case facts.GangStopping():
                return [Event("supervise.gang.stopping", "info", {"reason": fact.reason})]
            case say.GangRestarting():
                return self._restarting(fact)
            case say.GangFinished():
                return self._finished(fact, now_ns)

    # Ranks

    @property
    def _failed_level(self) -> str:
        """The level of a failure. It is ``info`` if the caller gets the failure as an exception."""
        return "error" if self.attempt.spec.plain is None else "info"

    def _rank(self, name: str, level: str, local_rank: int, **fields: Any) -> Event:
        own = self.attempt.envs.get(local_rank, {}).get("TORCHELASTIC_RESTART_COUNT")
        life = {} if own is None else {"attempt": whole_number(own, 0)}  # a single rank may have restarted
        if self.attempt.spec.role_of:
            fields.setdefault("role", self.attempt.envs[local_rank].get("ROLE_NAME"))  # a restart has the end's role
        return Event(name, level, {"rank": self.global_rank(local_rank), "local_rank": local_rank, **life, **fields})

    def global_rank(self, local_rank: int) -> int:
        """Return `RANK` of a rank's environment; the local rank if `RANK` is not set."""
        return whole_number(self.attempt.envs.get(local_rank, {}).get("RANK"), local_rank)

    def _started(self, fact: say.WorkerStarted, now_ns: int) -> Event:
        part, args = self.attempt.spec.of(fact.local_rank), self.attempt.spec.args[fact.local_rank]
        return self._rank(
            "supervise.process.started",
            "info",
            fact.local_rank,
            pid=fact.pid,
            executable_name=part.what,
            command_args=[str(arg) for arg in args] if part.kind == "binary" else None,
            start_duration_s=_seconds(fact.started_ns, now_ns),
        )

    def _start_failed(self, fact: steps.WorkerFailedToStart) -> Event:
        return self._rank(
            "supervise.process.start_failed",
            self._failed_level,
            fact.local_rank,
            exception_type=type(fact.error).__name__,
            exception_message=text_of(fact.error),
            errno=getattr(fact.error, "errno", None),
        )

    def _hung(self, fact: Hung) -> Event:
        told = fact.message
        return self._rank(
            "supervise.process.hung",
            "error",
            told.local_rank,
            tier=told.tier,
            age_s=round(told.age_s, 3),
            step=told.step,
            status=told.status,
            waiting=[self.global_rank(rank) for rank in fact.waiting],
        )

    def _not_ready(self, fact: facts.StartFailed) -> Event:
        return self._rank(
            "supervise.process.start_failed",
            self._failed_level,
            fact.local_rank,
            exception_type="SpawnError",
            exception_message=fact.why,
            errno=None,
        )

    def _signaled(self, fact: Signaled) -> Event:
        return self._rank(
            "supervise.process.signaled",
            "info",
            fact.local_rank,
            pid=fact.pid,
            signal=fact.sig.name,
            reason=fact.reason,
            escalation=fact.escalation,
            target="group",
        )

    def _exited(self, fact: facts.RankExited) -> Event:
        end, code = fact.end, fact.end.exitcode
        fine = code in self.attempt.spec.success_exit_codes and end.complaint is None
        return self._rank(
            "supervise.process.exited",
            "info" if fine or not fact.by_itself else self._failed_level,
            end.local_rank,
            pid=end.pid,
            exit_code=code if code is not None and code >= 0 else None,
            exit_signal=signal_name(-code) if code is not None and code < 0 else None,
            core_dumped=end.core_dumped,
            uptime_s=_seconds(fact.started_ns or end.ended_ns, end.ended_ns),
            spontaneous=fact.by_itself,
            complaint=end.complaint,
            oom_kill=end.oom_kill,
            max_rss_bytes=end.max_rss_bytes,
            cpu_time_s=end.cpu_time_s,
        )

    def _rank_restarting(self, fact: say.WorkerRestarting) -> Event:
        code = fact.end.exitcode
        return self._rank(
            "supervise.process.restarting",
            "info" if fact.end.role in ("terminated", "bystander", "finished") else "warning",
            fact.local_rank,
            attempt=fact.attempt,
            backoff_s=fact.delay_s,
            role=fact.end.role,
            exit_code=code if code is not None and code >= 0 else None,
            exit_signal=signal_name(-code) if code is not None and code < 0 else None,
        )

    def _leaked(self, fact: facts.Leaked) -> list[Event]:
        events = []
        for local_rank, descendants in fact.found.leaked.items():
            fields = {
                "rank": None if local_rank is None else self.global_rank(local_rank),
                "local_rank": local_rank,
                "pid": None if local_rank is None else fact.pids.get(local_rank),
                "descendants": list(descendants),
                "ended": fact.found.ended,
            }
            events.append(Event("supervise.process.leaked", "warning", fields))
        return events

    # The gang

    def _starting(self) -> Event:
        attempt, methods = self.attempt, {part.start_method for part in self.attempt.spec.parts}
        errors = [path for path in attempt.dest.error_files.values() if path != os.devnull]
        fields = {
            "world_size": attempt.nprocs,
            "start_method": methods.pop() if len(methods) == 1 else None,
            "log_dir": os.path.dirname(os.path.dirname(errors[0])) if errors else None,
        }
        return Event("supervise.gang.starting", "info", fields)

    def _restarting(self, fact: say.GangRestarting) -> list[Event]:
        fields = {
            "attempt": fact.attempt,
            "max_restarts": fact.max_restarts,
            "backoff_s": fact.delay_s,
            "left_out": sorted(fact.left_out),
            **causes(fact.result),
        }
        return [*self._errors(fact.result), Event("supervise.gang.restarting", "warning", fields)]

    def _finished(self, fact: say.GangFinished, now_ns: int) -> list[Event]:
        duration_s, result, error = _seconds(self.begun_ns, now_ns), fact.result, fact.error
        if result is None:
            why = {"exception_type": type(error).__name__, "exception_message": text_of(error)}
            fields = {"outcome": "failed", "duration_s": duration_s, **why}
            return [Event("supervise.gang.finished", "error", fields)]
        events = self._errors(result)
        if result.outcome == "failed":
            events.append(Event("supervise.gang.failed", self._failed_level, causes(result)))
        fields = {"outcome": result.outcome, "duration_s": duration_s}
        return [*events, Event("supervise.gang.finished", "info", fields)]

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


def causes(result: RunProcsResult) -> dict[str, Any]:
    """Return the fields that name the causes. The root cause is the first of a result's failures."""
    root = next(iter(result.failures))
    return {
        "root_cause_rank": root,
        "error_type": _error_type(result.failures[root]),
        "failed_ranks": list(result.failures),
    }


def _tail_ended(fact: steps.TailEnded) -> list[Event]:
    if not (fact.remaining_bytes or fact.error):
        return []
    fields = {
        "log_iostream": fact.name,
        "path": None,
        "error": fact.error or "closed before everything was shown; the rest is in the files",
        "remaining_bytes": fact.remaining_bytes,
    }
    return [Event("supervise.log.failed", "warning", fields)]


def _seconds(then_ns: int, now_ns: int) -> float:
    return (now_ns - then_ns) / 1e9


def _error_type(failure: ProcessFailure) -> str:
    """Return the type of an exception, the name of a signal, or an exit code."""
    if isinstance(failure.message, dict):
        return str(failure.message.get("message", "")).partition(":")[0]
    if not failure.pid:
        return "not started"
    return signal_name(-failure.exitcode) if failure.exitcode < 0 else f"exit code {failure.exitcode}"


def signal_name(number: int) -> str:
    """Return the name of a signal; ``signal 99`` if the signal has no name."""
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def whole_number(text: str | None, default: int) -> int:
    """Parse the value of an environment variable as an integer; return `default` if the value is not one."""
    try:
        return default if text is None else int(text)
    except ValueError:
        return default
