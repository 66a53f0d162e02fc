"""Pools: one task a worker. They may start fewer workers where a task ends before the next is submitted."""

from __future__ import annotations

import importlib
import multiprocessing
from typing import TYPE_CHECKING, Any

from tests.benchmarks.job import Gang, Job, Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping


class Futures:
    """`concurrent.futures.ProcessPoolExecutor`."""

    imports = "from concurrent.futures import ProcessPoolExecutor"
    needs = ("concurrent.futures",)

    def gang(self, job: Job) -> Gang:
        """Return a pool of functions."""
        job.without_tee()
        return _Pool("concurrent.futures", job)


class Loky:
    """loky's executor, whose workers are always spawned."""

    imports = "from loky import ProcessPoolExecutor"
    needs = ("loky",)

    def gang(self, job: Job) -> Gang:
        """Return a pool of functions."""
        job.without_tee()
        if job.method != "spawn":
            raise Unsupported("spawns only")
        return _Pool("loky", job)


class _Pool:
    def __init__(self, module: str, job: Job) -> None:
        if isinstance(job.entrypoint, str):
            raise Unsupported("starts functions only")
        self._executor_type: Any = importlib.import_module(module).ProcessPoolExecutor
        self._context = multiprocessing.get_context(job.method) if module != "loky" else None
        self._job = job
        self._executor: Any = None
        self._futures: dict[int, Any] = {}

    def start(self) -> list[int]:
        job = self._job
        self._executor = self._executor_type(max_workers=job.nprocs, **self._more())
        self._futures = {rank: self._executor.submit(job.entrypoint, *args) for rank, args in job.args.items()}
        return []

    def _more(self) -> dict[str, Any]:
        return {} if self._context is None else {"mp_context": self._context}

    def wait(self, timeout_s: float | None = None) -> Mapping[int, Any] | None:
        values = {rank: future.result(timeout_s) for rank, future in self._futures.items()}
        self._executor.shutdown(wait=True)
        return values

    def close(self, grace_s: float = 30.0) -> None:
        raise Unsupported("stops no worker that is at work")

    def discard(self) -> None:
        """Nothing is left."""
