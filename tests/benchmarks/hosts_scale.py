"""The driver of a gang over many hosts, with simulated hosts: ``python -m tests.benchmarks.hosts_scale``.

The hosts answer at once and run no process, so that the figures are those of the driver alone: its actor, its core, the
links and the merge of the results. Prints one line for each number of hosts.
"""

from __future__ import annotations

import logging
import statistics
import sys
import threading
import time
from signal import SIGTERM
from typing import TYPE_CHECKING, Any

from supervise._hosts.plan import HostAddress, HostEnd, HostOrder, News, make_plan
from supervise._hosts.supervisor import HostsSupervisor
from supervise.messages import Start, Wait, WorkerExited
from supervise.result import ProcessFailure, RankEnd, RunProcsResult

if TYPE_CHECKING:
    from collections.abc import Callable

RANKS = 8
TURNS = 5
IDLE_S = 10.0
LEASE_S = 10.0


class SimulatedHost:
    """A host without processes."""

    def __init__(self, order: HostOrder) -> None:
        self.address = HostAddress(host_name=f"h{order.number}", node_id="", ip="127.0.0.1", port=1, pid=1)
        self._count = 0
        self._waiting: list[News] = []
        self._stopped = False
        self._done: Callable[[Any, BaseException | None], object] | None = None
        self.stopped_ns = 0

    def call(self, method: str, *args: Any, done: Callable[[Any, BaseException | None], object]) -> None:
        if method == "news_after":
            self._done = done
            self.tell()
            return
        done({"launch": {rank: 100 + rank for rank in range(RANKS)}, "renew": 1}.get(method), None)
        if method == "stop" and not self._stopped:
            self._stopped = True
            self.stopped_ns = time.monotonic_ns()
            self.tell(*self._ends("stopped", -SIGTERM))

    def tell(self, *news: tuple[Any, Any]) -> None:
        for kind, what in news:
            self._count += 1
            self._waiting.append(News(self._count, kind, what))
        if self._waiting and self._done is not None:
            done, self._done = self._done, None
            found, self._waiting = self._waiting, []
            done(found, None)

    def _ends(self, outcome: Any, code: int) -> list[tuple[Any, Any]]:
        result = RunProcsResult(outcome=outcome)
        for rank in range(RANKS):
            role: Any = "root_cause" if outcome == "failed" and rank == 0 else "bystander"
            result.ends[rank] = RankEnd(
                local_rank=rank, pid=100 + rank, exitcode=code, role=role, started_ns=1, ended_ns=2
            )
            result.failures[rank] = ProcessFailure.of(rank, 100 + rank, code, "", message="")
        ends = [WorkerExited(local_rank=rank, pid=100 + rank, exitcode=code, ended_ns=2) for rank in range(RANKS)]
        return [*(("worker", end) for end in ends), ("ended", HostEnd(result=result))]

    def fail(self) -> None:
        self._stopped = True
        self.tell(*self._ends("failed", 3))


class SimulatedEngine:
    """Places any number of simulated hosts."""

    def __init__(self) -> None:
        self.hosts: list[SimulatedHost] = []

    def place(self, orders: Any, done: Callable[[Any, BaseException | None], object]) -> None:
        self.hosts = [SimulatedHost(order) for order in orders]
        done(self.hosts, None)

    def release(self, epoch: int) -> None:
        pass

    def close(self, done: Callable[[], object]) -> None:
        done()


class Nowhere:
    def write(self, host: int, stream: str, data: bytes, stop: object) -> None:
        pass

    def finish(self, host: int, stop: object) -> None:
        pass


def measure(nodes: int, idle_s: float) -> tuple[float, float, float, float]:
    """Return seconds: start, failure until the last stop was sent, until the result; CPU seconds a second at rest."""
    engine = SimulatedEngine()
    plan = make_plan(name="g", entrypoint="true", nnodes=nodes, nproc_per_node=RANKS, lease_s=LEASE_S)
    gang = HostsSupervisor.start(plan, engine, load=lambda value: value, shown=Nowhere())
    begun = time.perf_counter()
    gang.ask(Start())
    started = time.perf_counter()
    load = 0.0
    if idle_s:
        before = time.process_time()
        threading.Event().wait(idle_s)
        load = (time.process_time() - before) / idle_s
    failed, failed_ns = time.perf_counter(), time.monotonic_ns()
    engine.hosts[nodes // 2].fail()
    result: Any = gang.ask(Wait())
    ended = time.perf_counter()
    assert result.root_cause == nodes // 2 * RANKS
    told = max(host.stopped_ns for host in engine.hosts) - failed_ns
    gang.stop()
    return started - begun, told / 1e9, ended - failed, load


def main(numbers: list[int]) -> None:
    """Measure each number of hosts."""
    logging.getLogger("supervise").setLevel(logging.CRITICAL)  # not a line for each failed gang
    print(f"{RANKS} ranks a host, lease {LEASE_S:g} s, medians of {TURNS}")
    print(f"{'hosts':>6} {'start':>10} {'all told':>10} {'result':>10} {'at rest':>10}")
    for nodes in numbers:
        turns = [measure(nodes, 0.0)[:3] for _ in range(TURNS)]
        start, told, result = (statistics.median(column) for column in zip(*turns, strict=True))
        load = measure(nodes, IDLE_S)[3]
        print(
            f"{nodes:6} {start * 1e3:7.1f} ms {told * 1e3:7.1f} ms {result * 1e3:7.1f} ms {load * 100:7.2f} %",
            flush=True,
        )


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [10, 100, 1000])
