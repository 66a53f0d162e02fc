"""A gang over hosts that are processes of this machine, and what a test sees of it."""

import os
import select
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pykka

from supervise import Start, Subscribe, Wait
from supervise._hosts.plan import make_plan
from supervise._hosts.supervisor import HostsSupervisor, StreamsShown
from supervise._runtime.wakeup import remaining
from tests.hosts.engine import ProcessEngine
from tests.patience import PATIENCE_S

LONG_LEASE_S = 60.0
"""For tests that are not about the lease: a busy machine does not end it."""
READY = "echo ready $RANK; "
FOREVER = "sleep 1000 & wait"
"""A rank of two processes."""
RUNS = "sleep 1000 & echo ready $RANK; wait"
"""The same; it is ready when both run."""


class Seen:
    """Things that arrive on other threads, and waits for them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.all: list[Any] = []

    def add(self, thing: Any) -> None:
        with self._changed:
            self.all.append(thing)
            self._changed.notify_all()

    def until(self, there: Callable[[list[Any]], Any]) -> Any:
        """Return what `there` returns of all things as soon as that is true."""
        with self._changed:
            assert self._changed.wait_for(lambda: there(self.all), PATIENCE_S), f"it did not come: {self.all}"
            return there(self.all)


class Listener(pykka.ThreadingActor):
    """A subscriber."""

    use_daemon_thread = True

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen

    def on_receive(self, message: Any) -> None:
        self._seen.add(message)


class Gang:
    """One gang. Its ranks run `script` with sh, or the given entrypoint."""

    def __init__(
        self,
        script: str = "",
        *,
        nnodes: int = 2,
        nproc_per_node: int = 2,
        engine: ProcessEngine | None = None,
        listens: bool = True,
        **settings: Any,
    ) -> None:
        plain = {"entrypoint": "sh", "args": ("-c", script), "lease_s": LONG_LEASE_S} if script else {}
        settings = {"name": "g", "lease_s": LONG_LEASE_S, **plain, **settings}
        self.engine = engine or ProcessEngine()
        self.lines, self.events, self.messages = Seen(), Seen(), Seen()
        sink = self.events.add if listens else None
        plan = make_plan(nnodes=nnodes, nproc_per_node=nproc_per_node, event_sink=sink, **settings)
        shown = StreamsShown(self._show)
        self.ref = HostsSupervisor.start(plan, self.engine, load=lambda value: value, shown=shown)
        self.listener = Listener.start(self.messages)
        self.ref.ask(Subscribe(ref=self.listener), timeout=PATIENCE_S)
        self.pids: dict[int, int] = {}

    def _show(self, stream: str, data: bytes, _stop: object) -> None:
        for line in data.splitlines(keepends=True):
            self.lines.add((stream, line.decode()))

    def start(self) -> dict[int, int]:
        self.pids = self.ref.ask(Start(), timeout=PATIENCE_S)
        return self.pids

    def wait(self) -> Any:
        return self.ref.ask(Wait(), timeout=PATIENCE_S)

    def ask(self, message: Any) -> Any:
        return self.ref.ask(message, timeout=PATIENCE_S)

    def shown(self) -> list[str]:
        return sorted(line for _, line in self.lines.all)

    def await_ready(self, ranks: Collection[int]) -> None:
        """Wait until each rank has said that it is ready."""
        wanted = {f"[g{rank}]:ready {rank}\n" for rank in ranks}
        self.lines.until(lambda all_: wanted <= {line for _, line in all_})

    def event(self, name: str) -> dict[str, Any]:
        """Return the first event of a name as soon as it has come."""
        found: dict[str, Any] = self.events.until(lambda all_: next((e for e in all_ if e["event"] == name), None))
        return found

    def end(self) -> None:
        for hosts in self.engine.attempts.values():
            for host in hosts:
                host.join()
        if self.ref.is_alive():
            self.ref.stop(timeout=PATIENCE_S)
        self.listener.stop(timeout=PATIENCE_S)


class Watched:
    """Processes whose ends a test awaits. The processes of each rank's group are among them."""

    def __init__(self, pids: Collection[int]) -> None:
        self._pidfds: dict[int, int] = {}
        for pid in {*pids, *(member for leader in pids for member in group_of(leader))}:
            with suppress(ProcessLookupError):
                self._pidfds[pid] = os.pidfd_open(pid)

    def gone_within(self, seconds: float) -> bool:
        """Whether all end within the time, from now on; a zombie has ended."""
        deadline_s, left = time.monotonic() + seconds, dict(self._pidfds)
        poll = select.poll()
        for pidfd in left.values():
            poll.register(pidfd, select.POLLIN)
        while left:
            ready = {fd for fd, _ in poll.poll(1000 * (remaining(deadline_s) or 0.0))}
            for fd in ready:
                poll.unregister(fd)
            left = {pid: fd for pid, fd in left.items() if fd not in ready}
            if not ready:
                return False
        return True

    def alive(self) -> set[int]:
        """Return those that run."""
        poll = select.poll()
        for pidfd in self._pidfds.values():
            poll.register(pidfd, select.POLLIN)
        ended = {fd for fd, _ in poll.poll(0)}
        return {pid for pid, fd in self._pidfds.items() if fd not in ended}

    def close(self) -> None:
        for pidfd in self._pidfds.values():
            os.close(pidfd)


@contextmanager
def watched(pids: Collection[int]) -> Iterator[Watched]:
    found = Watched(pids)
    try:
        yield found
    finally:
        found.close()


def group_of(pgid: int) -> set[int]:
    """Return the processes of a process group."""
    found = set()
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and os.getpgid(int(entry.name)) == pgid:
                found.add(int(entry.name))
    return found


def keeper_of(host: int) -> int:
    """Return the pid of the keeper of a host, which is not a child of the host."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if len(words) > 5 and words[3].endswith(b"/keeper.py") and words[4] == str(host).encode():
                return int(entry.name)
    raise AssertionError("there is no keeper")
