"""Other keepers of programs: psutil's waiting, and honcho's manager."""

from __future__ import annotations

import importlib
import io
import shlex
from typing import TYPE_CHECKING, Any

from tests.benchmarks.job import NAME, Gang, Job, Unsupported
from tests.benchmarks.work import command_line

if TYPE_CHECKING:
    from collections.abc import Mapping


class Psutil:
    """`psutil.Popen` and `psutil.wait_procs`."""

    imports = "import psutil"
    needs = ("psutil",)

    def gang(self, job: Job) -> Gang:
        """Return a gang of programs."""
        job.without_tee()
        job.program  # noqa: B018 - refuses functions
        return _Waited(job)


class Honcho:
    """`honcho.manager.Manager`: a shell and a process of its own for every program."""

    imports = "from honcho.manager import Manager"
    needs = ("honcho",)

    def gang(self, job: Job) -> Gang:
        """Return a gang of programs."""
        job.without_tee()
        job.program  # noqa: B018 - refuses functions
        return _Looped(job)


class _Waited:
    def __init__(self, job: Job) -> None:
        import psutil

        self._psutil = psutil
        self._job = job
        self._running: list[Any] = []
        self._failed = False

    def start(self) -> list[int]:
        self._running = [self._psutil.Popen(command_line(self._job, rank)) for rank in self._job.args]
        return [process.pid for process in self._running]

    def wait(self, timeout_s: float | None = None) -> Mapping[int, Any] | None:
        _, self._running = self._psutil.wait_procs(self._running, timeout_s, callback=self._gone)
        return None if self._running else dict.fromkeys(range(self._job.nprocs))

    def _gone(self, process: Any) -> None:
        if process.returncode and not self._failed:
            self._failed = True
            for other in self._running:
                if other is not process and other.is_running():
                    other.terminate()

    def close(self, grace_s: float = 30.0) -> None:
        self._failed = True
        for process in self._running:
            process.terminate()
        if self.wait(grace_s) is None:
            for process in self._running:
                process.kill()
            self.wait()

    def discard(self) -> None:
        """Nothing is left."""


class _Looped:
    def __init__(self, job: Job) -> None:
        manager: Any = importlib.import_module("honcho.manager").Manager
        printer: Any = importlib.import_module("honcho.printer").Printer
        self._job = job
        self._manager = manager(printer(output=io.StringIO()))
        for rank in job.args:
            self._manager.add_process(f"{NAME}{rank}", shlex.join(command_line(job, rank)))

    def start(self) -> list[int]:
        """Nothing yet: its loop starts them."""
        return []

    def wait(self, timeout_s: float | None = None) -> Mapping[int, Any] | None:
        if timeout_s is not None:
            raise Unsupported("waits without a timeout only")
        self._manager.loop()
        return dict.fromkeys(range(self._job.nprocs))

    def close(self, grace_s: float = 30.0) -> None:
        raise Unsupported("is closed by a signal to its loop only")

    def discard(self) -> None:
        """Nothing is left."""
