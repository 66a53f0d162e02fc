"""What a call to an actor of Ray costs its caller: ``python -m tests.benchmarks.ray_call``, with a Python that has Ray.

A cluster of one node runs on this machine. The processor time is that of all threads of the calling process.
"""

import threading
import time
from statistics import median
from typing import Any

import ray

from tests.ray.cluster import cluster

CALLS, UNDER_WAY = 2000, 20
PAUSE_S, PACED_S = 0.01, 6.0
ROUNDS = 5


class Echo:
    """The actor, whose method does nothing."""

    async def echo(self, value: int) -> int:
        return value


def together(actor: Any) -> float:
    """Return the processor time of a call in ms, with `UNDER_WAY` calls at a time."""
    answered = threading.Semaphore(UNDER_WAY)
    began_s = time.process_time()
    for number in range(CALLS):
        answered.acquire()
        actor.echo.remote(number).future().add_done_callback(lambda _: answered.release())
    for _ in range(UNDER_WAY):
        answered.acquire()
    return 1000 * (time.process_time() - began_s) / CALLS


def paced(actor: Any) -> float:
    """Return the processor time of a call in ms, with one call each `PAUSE_S`."""
    pause, calls = threading.Event(), int(PACED_S / PAUSE_S)
    began_s = time.process_time()
    for number in range(calls):
        actor.echo.remote(number).future().add_done_callback(lambda done: done.result())
        pause.wait(PAUSE_S)
    return 1000 * (time.process_time() - began_s) / calls


def main() -> None:
    with cluster(nodes=1):
        actor = ray.remote(max_concurrency=64)(Echo).remote()
        ray.get(actor.echo.remote(0))
        found = [together(actor) for _ in range(ROUNDS)]
        print(f"Ray {ray.__version__}, processor time of a call")
        print(f"{UNDER_WAY} calls under way: {median(found):.2f} ms ({min(found):.2f} to {max(found):.2f})")
        print(f"one call each {PAUSE_S * 1000:.0f} ms: {paced(actor):.2f} ms")


if __name__ == "__main__":
    main()
