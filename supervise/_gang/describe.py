"""Turns what happens to a gang into events. The only place that knows their names."""

from __future__ import annotations

import logging
import os
import time
from signal import Signals
from typing import TYPE_CHECKING, Any

from supervise._gang.results import failed_line
from supervise._printable import one_line
from supervise.events import EventLog, say_at_last

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervise import messages as say
    from supervise._core.steps import GangStopping, RankExited
    from supervise._core.verdict import Verdict
    from supervise._gang.attempt import Attempt
    from supervise.events import Sink
    from supervise.result import ProcessFailure, RunProcsResult


class Reporter:
    """The events of one gang. Used on its loop."""

    def __init__(self, plan: Attempt, sink: Sink | None) -> None:
        """Take the fields that every event has from the plan."""
        self.failures_raise = False
        """Whether the caller gets a failure as an exception, so that it is no error here."""
        first = plan.envs.get(0, {})
        self._plan = plan
        self._ranks = {rank: _int(env.get("RANK"), rank) for rank, env in plan.envs.items()}
        self._begun_ns = self._attempt_ns = time.monotonic_ns()
        self._log = EventLog(
            {
                "gang": plan.spec.name,
                "run_id": first.get("TORCHELASTIC_RUN_ID"),
                "role": first.get("ROLE_NAME"),
                "attempt": _attempt_of(plan),
            },
            sink=sink,
        )

    def _rank(self, event: str, level: str, local_rank: int, **fields: Any) -> None:
        self._log.emit(event, level, rank=self._ranks.get(local_rank, local_rank), local_rank=local_rank, **fields)

    def listens(self, level: str = "warning") -> bool:
        """Whether an event of this level would reach anybody."""
        return self._log.listens(level)

    def starting(self) -> None:
        """The start was asked for."""
        self._begun_ns = time.monotonic_ns()
        self._say_starting()

    def begin_anew(self, plan: Attempt) -> None:
        """Another attempt begins."""
        self._plan = plan
        self._log.renew(attempt=_attempt_of(plan))
        self._say_starting()

    def _say_starting(self) -> None:
        self._attempt_ns = time.monotonic_ns()
        errors = [path for path in self._plan.dest.error_files.values() if path != os.devnull]
        self._log.emit(
            "supervise.gang.starting",
            world_size=self._plan.nprocs,
            start_method=self._plan.spec.start_method,
            log_dir=os.path.dirname(os.path.dirname(errors[0])) if errors else None,
        )

    def gang_started(self) -> None:
        """Every rank runs."""
        self._log.emit("supervise.gang.started", duration_s=self._since(self._attempt_ns))

    def started(self, message: say.WorkerStarted) -> None:
        """A rank's process runs."""
        rank = message.local_rank
        if not self._log.listens():
            return
        spec = self._plan.spec
        args = [str(arg) for arg in spec.args[rank]] if spec.kind == "binary" else None
        self._rank(
            "supervise.process.started",
            "info",
            rank,
            pid=message.pid,
            executable_name=spec.what,
            command_args=args,
            start_duration_s=self._since(self._attempt_ns),
        )

    def start_failed(self, message: say.WorkerFailedToStart) -> None:
        """A rank could not be started."""
        self._rank(
            "supervise.process.start_failed",
            "info" if self.failures_raise else "error",
            message.local_rank,
            exception_type=type(message.error).__name__,
            exception_message=str(message.error),
            errno=getattr(message.error, "errno", None),
        )

    def signaled(self, local_rank: int, pid: int | None, sig: Signals, reason: str, escalation: int) -> None:
        """A rank's group was sent a signal."""
        self._rank(
            "supervise.process.signaled",
            "info",
            local_rank,
            pid=pid,
            signal=sig.name,
            reason=reason,
            escalation=escalation,
            target="group",
        )

    def exited(self, fact: RankExited) -> None:
        """A rank's process is reaped."""
        message, spontaneous = fact.end, fact.by_itself
        code = message.exitcode
        fine = code == 0 and message.complaint is None
        level = "info" if fine or not spontaneous or self.failures_raise else "error"
        if not self._log.listens(level):
            return
        self._rank(
            "supervise.process.exited",
            level,
            message.local_rank,
            pid=message.pid,
            exit_code=code if code is not None and code >= 0 else None,
            exit_signal=signal_name(-code) if code is not None and code < 0 else None,
            core_dumped=message.core_dumped,
            uptime_s=self._since(fact.started_ns or message.ended_ns, message.ended_ns),
            spontaneous=spontaneous,
            complaint=message.complaint,
            oom_kill=message.oom_kill,
            max_rss_bytes=message.max_rss_bytes,
            cpu_time_s=message.cpu_time_s,
        )

    def unkillable(self, message: say.WorkerUnkillable) -> None:
        """A rank's process outlived SIGKILL."""
        self._rank("supervise.process.unkillable", "error", message.local_rank, pid=message.pid, state=message.state)

    def stopped(self, message: say.WorkerStopped) -> None:
        """A rank's process was stopped, and waits to be continued."""
        self._rank("supervise.process.stopped", "warning", message.local_rank, pid=message.pid, signal=message.sig.name)

    def leaked(self, message: say.Swept, pids: Mapping[int, int]) -> None:
        """What had left the groups of the ranks was found."""
        for rank, descendants in message.leaked.items():
            self._log.emit(
                "supervise.process.leaked",
                "warning",
                rank=None if rank is None else self._ranks.get(rank, rank),
                local_rank=rank,
                pid=None if rank is None else pids.get(rank),
                descendants=list(descendants),
                ended=message.ended,
            )

    def restarting(
        self, result: RunProcsResult, verdict: Verdict, attempt: int, max_restarts: int, delay_s: float
    ) -> None:
        """An attempt has failed, with this result, and another will be started."""
        self._errors(result, verdict)
        root = verdict.blamed[0]
        self._log.emit(
            "supervise.gang.restarting",
            "warning",
            attempt=attempt,
            max_restarts=max_restarts,
            backoff_s=delay_s,
            root_cause_rank=root,
            error_type=_error_type(result.failures[root]),
            failed_ranks=list(verdict.blamed),
        )

    def stopping(self, fact: GangStopping) -> None:
        """The gang is being stopped."""
        self._log.emit("supervise.gang.stopping", reason=fact.reason)

    def log_failed(self, iostream: str, path: str, error: OSError) -> None:
        """A log, or where it is shown, fails; the gang goes on."""
        self._log.emit("supervise.log.failed", "warning", log_iostream=iostream, path=path, error=str(error))

    def disk_full(self, iostream: str, error: OSError) -> None:
        """Report a disk that is full when the ranks have ended; on stderr if the events have no listener."""
        text = f"{error.strerror}; what the ranks wrote or recorded last may be missing"
        if not self._log.listens("warning"):
            say_at_last(one_line(f"supervise: {error.filename}: {text}"), logging.WARNING)
        self.log_failed(iostream, error.filename, OSError(error.errno, text, error.filename))

    def tail_ended(self, message: say.TailEnded) -> None:
        """A Tail has ended; worth a word only if it did not show everything."""
        if message.remaining_bytes or message.error:
            self._log.emit(
                "supervise.log.failed",
                "warning",
                log_iostream=message.name,
                path=None,
                error=message.error or "closed before everything was shown; the rest is in the files",
                remaining_bytes=message.remaining_bytes,
            )

    def finished(self, result: RunProcsResult, verdict: Verdict) -> None:
        """The gang has ended, with this result."""
        self._errors(result, verdict)
        if result.outcome == "failed":
            root = result.failures[verdict.blamed[0]]
            if not self.failures_raise:
                self._log.show_at_last(failed_line(self._plan.spec.name, result, root))
            self._log.emit(
                "supervise.gang.failed",
                "info" if self.failures_raise else "error",
                root_cause_rank=verdict.blamed[0],
                error_type=_error_type(root),
                failed_ranks=list(verdict.blamed),
            )
        self._log.emit("supervise.gang.finished", outcome=result.outcome, duration_s=self._since(self._begun_ns))

    def _errors(self, result: RunProcsResult, verdict: Verdict) -> None:
        """Say what the causes have recorded."""
        for rank in verdict.blamed if verdict.kind == "cause" else ():
            failure = result.failures[rank]
            if isinstance(failure.message, dict):
                text = str(failure.message.get("message", ""))
                kind, _, what = text.partition(": ")
                trace = failure.message.get("extraInfo", {}).get("py_callstack")
                self._rank(
                    "supervise.process.error",
                    "error",
                    rank,
                    exception_type=kind,
                    exception_message=what,
                    exception_stacktrace=trace,
                    error_file=failure.error_file,
                )

    def aborted(self, error: BaseException) -> None:
        """The gang has ended without a result."""
        self._log.emit(
            "supervise.gang.finished",
            "error",
            outcome="failed",
            duration_s=self._since(self._begun_ns),
            exception_type=type(error).__name__,
            exception_message=str(error),
        )

    @staticmethod
    def _since(then_ns: int, now_ns: int | None = None) -> float:
        return ((now_ns or time.monotonic_ns()) - then_ns) / 1e9


def _error_type(failure: ProcessFailure) -> str:
    """Say in a word what the root cause was: an exception's type, a signal's name, or an exit code."""
    if isinstance(failure.message, dict):
        return str(failure.message.get("message", "")).partition(":")[0]
    return signal_name(-failure.exitcode) if failure.exitcode < 0 else f"exit code {failure.exitcode}"


def signal_name(number: int) -> str:
    """Return the name of a signal, or ``signal 99`` for one without."""
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def _attempt_of(plan: Attempt) -> int:
    return _int(plan.envs.get(0, {}).get("TORCHELASTIC_RESTART_COUNT"), 0)


def _int(text: str | None, default: int) -> int:
    try:
        return default if text is None else int(text)
    except ValueError:
        return default
