"""`supervise`, asked as an actor, and through the calls that PyTorch has too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.benchmarks.job import NAME, Gang, Job

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pykka

    from supervise import LogsSpecs, RunProcsResult, Supervisor


class Embedded:
    """A Supervisor actor: Start, Wait, Close, stop."""

    imports = "from supervise import Close, DefaultLogsSpecs, Start, Supervisor, Wait"
    needs = ("pykka",)

    def gang(self, job: Job) -> Gang:
        """Return a gang that is asked for everything."""
        return _Asked(job)


class Facade:
    """`start_processes`, wait, close."""

    imports = "from supervise import DefaultLogsSpecs, start_processes"
    needs = ("pykka",)

    def gang(self, job: Job) -> Gang:
        """Return a gang that is called."""
        return _Called(job)


class _Asked:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._ref: pykka.ActorRef[Supervisor] | None = None

    def start(self) -> list[int]:
        from supervise import Start, Supervisor

        job = self._job
        self._ref = Supervisor.start(
            name=NAME,
            entrypoint=job.entrypoint,
            args=job.args,
            start_method=job.method,
            logs_specs=_logs(job),
            **job.feature,
        )
        pids: Any = self._ref.ask(Start())
        return list(pids.values())

    def wait(self, timeout_s: float | None = None) -> Mapping[int, Any] | None:
        from supervise import Wait

        return _values(self._job, self._asked(Wait(timeout=timeout_s)))

    def close(self, grace_s: float = 30.0) -> None:
        from supervise import Close

        self._asked(Close(timeout=grace_s))

    def discard(self) -> None:
        if self._ref is not None:
            self._ref.stop()

    def _asked(self, message: object) -> Any:
        assert self._ref is not None
        return self._ref.ask(message)


class _Called:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._context: Any = None

    def start(self) -> list[int]:
        from supervise import start_processes

        job = self._job
        self._context = start_processes(
            name=NAME, entrypoint=job.entrypoint, args=job.args, start_method=job.method, logs_specs=_logs(job)
        )
        return list(self._context.pids().values())

    def wait(self, timeout_s: float | None = None) -> Mapping[int, Any] | None:
        return _values(self._job, self._context.wait(-1 if timeout_s is None else timeout_s))

    def close(self, grace_s: float = 30.0) -> None:
        self._context.close(timeout=grace_s)

    def discard(self) -> None:
        self._context.close()


def _logs(job: Job) -> LogsSpecs:
    """Return what a user writes; with files where the output is tee'd."""
    from supervise import DefaultLogsSpecs, Std

    return DefaultLogsSpecs(tee=Std.ALL) if job.tee else DefaultLogsSpecs()


def _values(job: Job, result: RunProcsResult | None) -> Mapping[int, Any] | None:
    if result is None:
        return None
    return result.return_values if job.values else dict.fromkeys(range(job.nprocs))
