"""Runs a program that supervises in a process of its own, so that it can be killed, or exit, or lose a limit."""

import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from supervise import DefaultLogsSpecs, Start, Supervisor
from tests.patience import PATIENCE_S
from tests.processes import work

NO_FILES = DefaultLogsSpecs(os.devnull)
ROOT = str(Path(__file__).parents[2])

_PREAMBLE = """
import os, signal, sys, threading
from supervise import Close, Pids, Poll, Start, Status, Supervisor, Wait
from tests.processes.hosts import make_gang, start_gang
kind, ear = sys.argv[1:3]
os.environ["EAR"] = ear
"""


def make_gang(kind: str, sources: Sequence[str], **more: Any) -> Any:
    """Return the Supervisor of a gang whose ranks will run these sources (see `work`); it is not started."""
    entrypoint: Any = work.run_source
    args: dict[int, tuple[Any, ...]] = {rank: (source,) for rank, source in enumerate(sources)}
    if kind == "binary":
        entrypoint = sys.executable
        args = {rank: ("-S", "-c", work.PREAMBLE + source) for rank, source in enumerate(sources)}
    else:
        more["start_method"] = kind
    return Supervisor.start(**{"name": "host", "logs_specs": NO_FILES} | more, entrypoint=entrypoint, args=args)


def start_gang(kind: str, sources: Sequence[str], **more: Any) -> Any:
    """Return the Supervisor of a gang that runs."""
    supervisor = make_gang(kind, sources, **more)
    supervisor.ask(Start(), timeout=PATIENCE_S)
    return supervisor


class Host:
    """A program that is run. It has `make_gang`, `start_gang`, the public names, and its arguments `kind` and `ear`."""

    def __init__(self, program: str, kind: str = "binary", ear: str = "", **popen: Any) -> None:
        """Start it; what it prints can be heard, and it is told what is written to its stdin."""
        source = _PREAMBLE + textwrap.dedent(program)
        env = {**os.environ, "PYTHONPATH": ROOT, "PYTHONWARNINGS": "ignore"}
        streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE} | popen
        self.process = subprocess.Popen([sys.executable, "-c", source, kind, ear], env=env, **streams)
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()

    def hear(self) -> str:
        """Return the next line that it prints; "" when it has ended."""
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        while b"\n" not in self._rest:
            assert select.select([fd], [], [], PATIENCE_S)[0], f"nothing was printed; so far: {self._rest!r}"
            data = os.read(fd, 65536)
            if not data:
                return ""
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def suspend(self) -> None:
        """Stop all its threads, which the kernel reports when the last one has stopped."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def kill(self) -> None:
        """Kill it as the kernel's memory killer would, and wait until it is dead."""
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def exit_code(self) -> int:
        """Wait for its end."""
        return self.process.wait(PATIENCE_S)


class Watched:
    """Processes whose deaths are told by the kernel, whoever their parent is."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = {os.pidfd_open(pid): pid for pid in pids}

    def survivors(self, within_s: float = PATIENCE_S, at_most: int = 0) -> set[int]:
        """Return who lives on after so many seconds; at once when no more than `at_most` are left."""
        left, deadline_s = dict(self._pids), time.monotonic() + within_s
        while len(left) > at_most:
            dead = select.select(list(left), [], [], max(0.0, deadline_s - time.monotonic()))[0]
            for fd in dead:
                del left[fd]
            if not dead:
                break
        return set(left.values())

    def close(self) -> None:
        for fd in self._pids:
            os.close(fd)


@contextmanager
def watched(pids: Sequence[int]) -> Iterator[Watched]:
    """Watch these processes; kill who is left at the end, so that a test that fails leaves nothing."""
    watch = Watched(pids)
    try:
        yield watch
    finally:
        for fd, pid in watch._pids.items():
            if pid in watch.survivors(0):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        watch.survivors()
        watch.close()


def pids_of(lines: Sequence[str]) -> list[int]:
    """Return all pids that workers have said with ``ready``."""
    return [int(word) for line in lines for word in line.split()[1:]]
