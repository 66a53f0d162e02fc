"""`python -m tests.benchmarks.restarts`: how fast the ranks of a gang start again after a failure, without backoff.

One rank of a gang of programs is killed; the clock runs from the kill until the last rank that the strategy names has
been started again. The restart of one rank is compared with that of all.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import time
from queue import SimpleQueue
from typing import Any

from supervise import Close, Pids, RestartPolicy, Start, Status, Supervisor

_PATIENCE_S = 30.0


def restarts(strategy: str, ranks: int, rounds: int) -> list[float]:
    """Return the milliseconds of each of `rounds` restarts."""
    events: SimpleQueue[dict[str, Any]] = SimpleQueue()
    supervisor = Supervisor.start(
        name="restarts",
        entrypoint="sleep",
        args=dict.fromkeys(range(ranks), ("1000",)),
        strategy=strategy,
        restart_policy=RestartPolicy(max_restarts=rounds, backoff=0.0),
        event_sink=events.put,
    )
    taken_ms = []
    try:
        supervisor.ask(Start(), timeout=_PATIENCE_S)
        again = ranks if strategy == "one_for_all" else 1
        _await_started(events, ranks)
        for number in range(rounds):
            victim = number % ranks
            _await_ready(supervisor)
            begun_ns = time.monotonic_ns()
            os.kill(supervisor.ask(Pids(), timeout=_PATIENCE_S)[victim], signal.SIGKILL)
            taken_ms.append((_await_started(events, again) - begun_ns) / 1e6)
    finally:
        supervisor.ask(Close(timeout=1.0), timeout=_PATIENCE_S)
        supervisor.stop(timeout=_PATIENCE_S)
    return taken_ms


def _await_started(events: SimpleQueue[dict[str, Any]], count: int) -> int:
    """Return the monotonic time at which so many ranks have been started, in nanoseconds."""
    while True:
        event = events.get(timeout=_PATIENCE_S)
        count -= event["event"] == "supervise.process.started"
        if count == 0:
            return int(event["monotonic_ns"])


def _await_ready(supervisor: Any) -> None:
    while any(row.state != "ready" for row in supervisor.ask(Status(), timeout=_PATIENCE_S).ranks.values()):
        pass


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.restarts", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="restarts a gang (30)")
    rounds = parser.parse_args().rounds
    print(f"{'strategy':12} {'ranks':>5} {'median ms':>10} {'min':>7} {'max':>7}")
    for ranks in (1, 8, 64):
        for strategy in ("one_for_one", "one_for_all"):
            taken = restarts(strategy, ranks, rounds)
            print(f"{strategy:12} {ranks:5} {statistics.median(taken):10.1f} {min(taken):7.1f} {max(taken):7.1f}")


if __name__ == "__main__":
    main()
