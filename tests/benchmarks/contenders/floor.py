"""The bare kernel from Python: Popen, pidfd and epoll for programs; multiprocessing and sentinels for functions."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

from tests.benchmarks.contenders.floor_tee import Tee
from tests.benchmarks.work import command_line, send

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from tests.benchmarks.job import Gang, Job


class Floor:
    """What has to be done, and nothing else: no logs, no lifeline, no names, no care for what goes wrong."""

    imports = "pass"
    needs = ("inotify_simple",)

    def gang(self, job: Job) -> Gang:
        """Return a gang of programs or functions."""
        return Programs(job) if isinstance(job.entrypoint, str) else Functions(job)


class FloorInSessions(Floor):
    """The same with a session for each program, as PyTorch and we have it: it costs the kernel a little more."""

    def gang(self, job: Job) -> Gang:
        """Return a gang of programs."""
        job.program  # noqa: B018 - refuses functions
        return Programs(job, sessions=True)


class Programs:
    """Programs: one epoll set for all pidfds, and for inotify where they are tee'd."""

    def __init__(self, job: Job, *, sessions: bool = False) -> None:
        self._alone: dict[str, Any] = {"start_new_session": True} if sessions else {"process_group": 0}
        self._argvs = {rank: command_line(job, rank) for rank in job.args}
        self._tee = Tee(job.nprocs) if job.tee else None
        self._running: dict[int, tuple[int, subprocess.Popen[bytes]]] = {}
        self._codes: dict[int, int] = {}
        self._epoll = select.epoll()

    def start(self) -> list[int]:
        """Start them one after the other."""
        pids = []
        for rank, argv in self._argvs.items():
            out, err = self._tee.files(rank) if self._tee is not None else (None, None)
            process = subprocess.Popen(argv, stdout=out, stderr=err, **self._alone)
            for fd in (out, err):
                if fd is not None:
                    os.close(fd)
            fd = os.pidfd_open(process.pid)
            self._running[fd] = rank, process
            self._epoll.register(fd, select.EPOLLIN)
            pids.append(process.pid)
        if self._tee is not None:
            self._epoll.register(self._tee.fileno(), select.EPOLLIN)
        return pids

    def wait(self, timeout_s: float | None = None) -> Mapping[int, Any] | None:
        """Reap whatever is dead; the first failure terminates the rest."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while self._running:
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return None
            for fd, _ in self._epoll.poll(left_s):
                if fd in self._running:
                    self._reap(fd)
                elif self._tee is not None:
                    self._tee.show()
        if self._tee is not None:
            self._tee.finish()
        return self._codes

    def _reap(self, fd: int) -> None:
        rank, process = self._running.pop(fd)
        self._epoll.unregister(fd)
        os.close(fd)
        failed_before = any(self._codes.values())
        self._codes[rank] = process.wait()
        if self._codes[rank] and not failed_before:
            self._signal(signal.SIGTERM)

    def _signal(self, sig: signal.Signals) -> None:
        for _, process in self._running.values():
            os.killpg(process.pid, sig)

    def close(self, grace_s: float = 30.0) -> None:
        """Terminate, wait, kill, wait."""
        self._signal(signal.SIGTERM)
        if self.wait(grace_s) is None:
            self._signal(signal.SIGKILL)
            self.wait()

    def discard(self) -> None:
        """Close the epoll set."""
        self._epoll.close()
        if self._tee is not None:
            self._tee.close()


class Functions:
    """Functions: plain multiprocessing, and a pipe for the value where one is wanted."""

    def __init__(self, job: Job) -> None:
        import multiprocessing
        from multiprocessing import connection

        job.without_tee()
        self._wait_for = connection.wait
        context: Any = multiprocessing.get_context(job.method)
        self._processes: dict[int, BaseProcess] = {}
        self._pipes: dict[int, tuple[Connection, Connection]] = {}
        self._values: dict[int, Any] = {}
        for rank, args in job.args.items():
            target, given = job.function, args
            if job.values:
                self._pipes[rank] = context.Pipe(duplex=False)
                target, given = send, (job.function, args, self._pipes[rank][1])
            self._processes[rank] = context.Process(target=target, args=given)

    def start(self) -> list[int]:
        """Start them one after the other."""
        for process in self._processes.values():
            process.start()
        for _, writer in self._pipes.values():
            writer.close()
        return [process.pid or 0 for process in self._processes.values()]

    def wait(self, timeout_s: float | None = None) -> Mapping[int, Any] | None:
        """Receive the values, reap the processes; the first failure terminates the rest."""
        for rank, (reader, _) in self._pipes.items():
            self._values[rank] = reader.recv()
        running = {process.sentinel: rank for rank, process in self._processes.items()}
        failed = False
        while running:
            for sentinel in self._wait_for(list(running)):
                assert isinstance(sentinel, int)
                rank = running.pop(sentinel)
                process = self._processes[rank]
                process.join()
                self._values.setdefault(rank, None)
                if process.exitcode and not failed:
                    failed = True
                    for other in running.values():
                        self._processes[other].terminate()
        return self._values

    def close(self, grace_s: float = 30.0) -> None:
        """Terminate and reap."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.join()

    def discard(self) -> None:
        """Give the sentinels back."""
        for process in self._processes.values():
            process.close()
        for reader, _ in self._pipes.values():
            reader.close()
