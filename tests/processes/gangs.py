"""Starts gangs of real processes whose faults are written as Python source, for functions and binaries alike.

A worker talks to its test through named pipes: it says lines that the test hears, and waits for lines that the test
tells it. Nothing waits for a clock, and whatever a test does, its gang is stopped when it ends.
"""

import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

import pytest

from supervise import Close, DefaultLogsSpecs, Pids, RunProcsResult, Start, Std, Supervisor, Wait
from tests.patience import PATIENCE_S
from tests.processes import work

FUNCTIONS = ("spawn", "forkserver", "fork")
KINDS = ("binary", *FUNCTIONS)

each_kind = pytest.mark.parametrize("kind", KINDS)
each_function = pytest.mark.parametrize("kind", FUNCTIONS)


class Fifo:
    """A named pipe that the test holds open at both ends, so that no worker's open or close matters."""

    def __init__(self, path: Path, patience_s: float = PATIENCE_S) -> None:
        os.mkfifo(path)
        self.path = str(path)
        self._patience_s = patience_s
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._rest = b""

    def hear(self) -> str:
        """Return the next line that a worker says."""
        while b"\n" not in self._rest:
            assert select.select([self._fd], [], [], self._patience_s)[0], f"nothing was said; so far: {self._rest!r}"
            self._rest += os.read(self._fd, 65536)
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def tell(self, text: str = "go") -> None:
        """Let the worker that waits here go on."""
        os.write(self._fd, f"{text}\n".encode())

    def close(self) -> None:
        os.close(self._fd)


class Gang:
    """One gang under test."""

    def __init__(self, supervisor: Any, ear: Fifo, gates: dict[int, Fifo], events: SimpleQueue[dict[str, Any]]) -> None:
        self.supervisor = supervisor
        self._events = events
        self._ear = ear
        self._gates = gates

    def ask(self, message: object) -> Any:
        return self.supervisor.ask(message, timeout=PATIENCE_S)

    def start(self) -> Self:
        self.ask(Start())
        return self

    def wait(self) -> RunProcsResult:
        result = self.ask(Wait(timeout=PATIENCE_S))
        assert result is not None, "the gang did not end"
        return result

    def close(self, **how: Any) -> RunProcsResult:
        return self.ask(Close(**how))

    @property
    def pids(self) -> dict[int, int]:
        return self.ask(Pids())

    def hear(self, count: int = 1) -> list[str]:
        """Return the next lines that any of the ranks say."""
        return [self._ear.hear() for _ in range(count)]

    def await_event(self, name: str, **fields: Any) -> dict[str, Any]:
        """Return the next event that has this name and these fields."""
        while True:
            event = self._events.get(timeout=PATIENCE_S)
            if event["event"] == name and fields.items() <= event.items():
                return event

    def tell(self, rank: int, text: str = "go") -> None:
        """Let a rank go on."""
        self._gates[rank].tell(text)


@contextmanager
def launched(
    folder: Path, entrypoint: Callable[..., Any] | str | None, args: dict[int, tuple[Any, ...]], **more: Any
) -> Iterator[Gang]:
    """Yield a gang that is made and not started; afterwards, stop it.

    Args:
        folder: For logs and pipes.
        entrypoint: As for the Supervisor; None for a gang with roles.
        args: As for the Supervisor; for a gang with roles, only its keys matter.
        more: Further arguments of the Supervisor.
    """
    with ExitStack() as stack:
        pipes = folder / f"pipes{len(list(folder.iterdir()))}"
        pipes.mkdir()
        ear = Fifo(pipes / "ear")
        stack.callback(ear.close)
        gates = {rank: Fifo(pipes / f"gate{rank}") for rank in args}
        for gate in gates.values():
            stack.callback(gate.close)
        given = more.pop("envs", {})
        envs = {r: {"EAR": ear.path, "GATE": gates[r].path, "LOCAL_RANK": r, **given.get(r, {})} for r in args}
        events: SimpleQueue[dict[str, Any]] = SimpleQueue()
        logs = DefaultLogsSpecs(str(folder / "logs"), redirects=Std.ALL)
        settings = {"name": "fault", "logs_specs": logs, "event_sink": events.put} | more
        what = {} if entrypoint is None else {"entrypoint": entrypoint, "args": args}
        supervisor = Supervisor.start(envs=envs, **what, **settings)
        stack.callback(supervisor.stop, timeout=PATIENCE_S)
        yield Gang(supervisor, ear, gates, events)


@contextmanager
def prepared(folder: Path, kind: str, sources: list[str], **more: Any) -> Iterator[Gang]:
    """Yield a gang that is made and not started, whose ranks run Python source.

    Args:
        folder: For logs and pipes.
        kind: ``binary``, or the start method of a function.
        sources: One a rank. They may use what `work.PREAMBLE` defines; a function returns its variable `value`.
        more: Further arguments of the Supervisor.
    """
    entrypoint: Callable[..., Any] | str = work.run_source
    if kind == "binary":
        entrypoint = sys.executable
        args: dict[int, tuple[Any, ...]] = {r: ("-S", "-c", work.PREAMBLE + s) for r, s in enumerate(sources)}
    else:
        args = {rank: (source,) for rank, source in enumerate(sources)}
        more["start_method"] = kind
    with launched(folder, entrypoint, args, **more) as gang:
        yield gang


@contextmanager
def faulty(folder: Path, kind: str, sources: list[str], **more: Any) -> Iterator[Gang]:
    """Yield such a gang that is started."""
    with prepared(folder, kind, sources, **more) as gang:
        yield gang.start()


class Stopwatch:
    """Seconds that its block took."""

    def __enter__(self) -> Self:
        self._begun = os.times().elapsed
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.seconds = os.times().elapsed - self._begun
