"""PyTorch's own: elastic's `start_processes` as it is and as well as it can be tuned, and torch.multiprocessing."""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

from tests.benchmarks.job import NAME, Gang, Job, Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping

_ELASTIC = "torch.distributed.elastic.multiprocessing"


class Elastic:
    """`start_processes` and its defaults: `wait` looks once a second."""

    imports = f"from {_ELASTIC} import DefaultLogsSpecs, start_processes"
    needs = ("torch",)
    period_s = 1.0

    def gang(self, job: Job) -> Gang:
        """Return a gang that is called."""
        return _Called(job, self.period_s)


class Tuned(Elastic):
    """Looks each 10 ms, and forks from a server that has imported torch already."""

    period_s = 0.01

    def gang(self, job: Job) -> Gang:
        """Return a gang that is called."""
        if job.method == "forkserver":
            import multiprocessing

            multiprocessing.set_forkserver_preload([f"{_ELASTIC}.api", "tests.benchmarks.work"])
        return super().gang(job)


class Spawn:
    """`torch.multiprocessing.start_processes`, of which `spawn` is a case: waits for sentinels."""

    imports = "import torch.multiprocessing"
    needs = ("torch",)

    def gang(self, job: Job) -> Gang:
        """Return a gang of functions."""
        job.without_tee()
        if job.values:
            raise Unsupported("has no return values")
        return _Joined(job)


class _Called:
    def __init__(self, job: Job, period_s: float) -> None:
        self._job = job
        self._period_s = period_s
        self._context: Any = None

    def start(self) -> list[int]:
        elastic: Any = importlib.import_module(_ELASTIC)
        job = self._job
        tee = elastic.Std.ALL if job.tee else elastic.Std.NONE
        self._context = elastic.start_processes(
            name=NAME,
            entrypoint=job.entrypoint,
            args=dict(job.args),
            envs={rank: {} for rank in job.args},
            logs_specs=elastic.DefaultLogsSpecs(tee=tee),
            start_method=job.method,
        )
        return list(self._context.pids().values())

    def wait(self, timeout_s: float | None = None) -> Mapping[int, Any] | None:
        result = self._context.wait(-1 if timeout_s is None else timeout_s, self._period_s)
        if result is None:
            return None
        values: Mapping[int, Any] = result.return_values if self._job.values else dict.fromkeys(range(self._job.nprocs))
        return values

    def close(self, grace_s: float = 30.0) -> None:
        self._context.close(timeout=int(grace_s))

    def discard(self) -> None:
        self._context.close()


class _Joined:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._context: Any = None

    def start(self) -> list[int]:
        torch_mp: Any = importlib.import_module("torch.multiprocessing")
        job = self._job
        self._context = torch_mp.start_processes(
            _call, (job.entrypoint, dict(job.args)), nprocs=job.nprocs, join=False, start_method=job.method
        )
        return list(self._context.pids())

    def wait(self, timeout_s: float | None = None) -> Mapping[int, Any] | None:
        failed: Any = importlib.import_module("torch.multiprocessing.spawn").ProcessException
        with contextlib.suppress(failed):
            while not self._context.join(timeout_s):
                if timeout_s is not None:
                    return None
        return dict.fromkeys(range(self._job.nprocs))

    def close(self, grace_s: float = 30.0) -> None:
        for process in self._context.processes:
            process.terminate()
        for process in self._context.processes:
            process.join()

    def discard(self) -> None:
        for process in self._context.processes:
            process.close()


def _call(rank: int, function: Any, args: Mapping[int, tuple[Any, ...]]) -> Any:
    return function(*args[rank])
