"""What heartbeats cost the host: ``python -m tests.benchmarks.heartbeats`` (64 ranks, 1 Hz, half a minute)."""

from __future__ import annotations

import os
import queue
import random
import subprocess
import sys
import time

from supervise._gang.notify_protocol import new_address
from supervise._gang.notify_sockets import NotifySockets
from supervise._runtime.loop import Loop

RANKS = 64
ROUNDS = 3
ROUND_S = 5.0
PATIENCE_S = 60.0

SENDER = f"""
import os, select, sys, time
from supervise import notify
beats = sorted((float(at), address) for at, address in (word.split(",") for word in sys.argv[1:]))
begun = time.monotonic()
for second in range({int(ROUND_S)}):
    for at, address in beats:
        select.select([], [], [], max(0.0, begun + second + at - time.monotonic()))
        os.environ["NOTIFY_SOCKET"] = address
        notify(heartbeat=True)
"""
"""One process stands for all ranks, each with its own moment within a second."""


def main() -> int:
    """Print the processor time of the host with and without the interval of 0.1 s, in turns, and their ratio."""
    costs: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(ROUNDS):
        for at_once, found in costs.items():
            found.append(_host_share(at_once=at_once))
    at_once, every = (min(costs[which]) * 100 for which in (True, False))
    print(f"{RANKS} ranks at 1 Hz, processor time of the host: {every:.2f} % of one processor")
    print(f"read at once: {at_once:.2f} %; ratio {every / at_once:.2f}")
    return 0


def _host_share(*, at_once: bool) -> float:
    """Return the processor time of the loop's thread, divided by the time that passed."""
    loop = Loop("heartbeats", lost=print)
    loop.start()
    answers: queue.SimpleQueue[object] = queue.SimpleQueue()
    sockets = NotifySockets(loop, print)
    draw = random.Random(1)
    addresses: list[str] = []

    def open_all() -> None:
        addresses.extend(new_address() for _ in range(RANKS))
        for rank, address in enumerate(addresses):
            sockets.open(rank, address)
        answers.put(None)

    loop.post(open_all)
    answers.get(timeout=PATIENCE_S)
    words = [f"{draw.random()},{address}" for address in addresses]
    begun_s = time.monotonic()
    sender = subprocess.Popen([sys.executable, "-c", SENDER, *words], env={**os.environ, "PYTHONPATH": "."})

    def watch_all() -> None:
        for rank in range(RANKS):
            sockets.launched(rank, sender.pid, awaits_ready=at_once)
        answers.put(time.thread_time())

    def close_all() -> None:
        answers.put(time.thread_time())
        answers.put(sum(sockets.state(rank).beat_ns is not None for rank in range(RANKS)))
        sockets.close_all()
        loop.end()

    loop.post(watch_all)
    before = answers.get(timeout=PATIENCE_S)
    sender.wait(PATIENCE_S)
    loop.post(close_all)
    after = answers.get(timeout=PATIENCE_S)
    assert answers.get(timeout=PATIENCE_S) == RANKS, "a rank was not heard"
    assert isinstance(before, float)
    assert isinstance(after, float)
    loop.join(PATIENCE_S)
    return (after - before) / (time.monotonic() - begun_s)


if __name__ == "__main__":
    sys.exit(main())
