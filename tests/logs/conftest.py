"""A destination that remembers, an owner that collects, and a Tail between files and them."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pykka
import pytest

from supervise._core.steps import TailEnded
from supervise._gang.attempt import Source
from supervise._gang.tail import Drain, Tail
from supervise._logs.sinks import CancelToken
from tests.kernels import use_inotify
from tests.patience import PATIENCE_S

TIMEOUT_S = PATIENCE_S


class MemorySink:
    """Keeps what it is given, and lets a test wait for it; `gate` holds writes up, `fault` fails them."""

    def __init__(self, *, is_console: bool = True) -> None:
        self.is_console = is_console
        self.interruptible = True
        self.data = bytearray()
        self.closed = False
        self.fault: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.writing = threading.Event()
        self._arrived = threading.Condition()

    def write(self, data: bytes | memoryview, stop: CancelToken) -> None:
        self.writing.set()
        assert self.gate.wait(TIMEOUT_S)
        if self.fault is not None:
            raise self.fault
        with self._arrived:
            self.data += data
            self._arrived.notify_all()

    def wait_for(self, wanted: bytes) -> None:
        with self._arrived:
            assert self._arrived.wait_for(lambda: wanted in self.data, TIMEOUT_S), bytes(self.data[-300:])

    def close(self) -> None:
        self.closed = True


class Owner(pykka.ThreadingActor):
    """Stands for the Supervisor: puts every message into a queue."""

    def __init__(self, told: "queue.Queue[Any]") -> None:
        super().__init__()
        self._told = told

    def on_receive(self, message: Any) -> None:
        self._told.put(message)


class Bench:
    """Starts Tails and hears what they tell."""

    def __init__(self) -> None:
        self.told: queue.Queue[Any] = queue.Queue()
        self.owner = Owner.start(self.told)
        self.errors: queue.Queue[tuple[str, OSError]] = queue.Queue()
        self.tails: list[pykka.ActorRef[Tail]] = []

    def tail(
        self,
        sink: Any,
        paths: Sequence[Path],
        *,
        prefix: Callable[[int], bytes] = lambda rank: b"[r%d]:" % rank,
        kind: type[Tail] = Tail,
        **kwargs: Any,
    ) -> pykka.ActorRef[Tail]:
        sources = [Source(local_rank=i, path=str(path), prefix=prefix(i)) for i, path in enumerate(paths)]
        ref = kind.start(
            name="stdout",
            sink=sink,
            sources=sources,
            owner=self.owner,
            on_error=lambda where, error: self.errors.put((where, error)),
            **kwargs,
        )
        self.tails.append(ref)
        return ref

    def ended(self) -> TailEnded:
        message = self.told.get(timeout=TIMEOUT_S)
        assert isinstance(message, TailEnded), message
        return message

    def drain(self, ref: pykka.ActorRef[Tail], paths: Sequence[Path]) -> TailEnded:
        ref.tell(Drain(sizes={str(path): path.stat().st_size for path in paths}))
        return self.ended()

    def close(self) -> None:
        for ref in self.tails:
            if ref.is_alive():
                ref.tell(Drain(sizes={}))
                ref.actor_stopped.wait(TIMEOUT_S)
        self.owner.stop(timeout=TIMEOUT_S)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()
    extra = [made.told.get_nowait() for _ in range(made.told.qsize())]
    assert sum(isinstance(message, TailEnded) for message in extra) <= len(made.tails)


@pytest.fixture
def sink() -> MemorySink:
    return MemorySink()


@pytest.fixture
def file_like_sink() -> MemorySink:
    return MemorySink(is_console=False)


@pytest.fixture
def logs(tmp_path: Path) -> Callable[[int], list[Path]]:
    """Make n empty log files."""

    def make(count: int) -> list[Path]:
        paths = [tmp_path / f"{rank}.log" for rank in range(count)]
        for path in paths:
            path.touch()
        return paths

    return make


@pytest.fixture(params=["inotify", "polling"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to watch a file."""
    use_inotify(monkeypatch, use=request.param == "inotify")
    return str(request.param)


@pytest.fixture
def inotify(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inotify, also where the environment of the tests takes it away."""
    use_inotify(monkeypatch, use=True)
