"""What an event of the core costs at 10 and at 1 000 ranks: ``python -m tests.benchmarks.core_events``."""

from __future__ import annotations

import gc
import time
from signal import SIGTERM
from typing import TYPE_CHECKING

from supervise import messages as say
from supervise._core import steps
from supervise._core.decide import decide
from supervise._core.model import Gang
from supervise.restarts import RestartPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    History = list[steps.Event]

SIZES = 10, 1_000
EVENTS = 40_000
"""How many events are timed at each size, at the least."""
ROUNDS = 7
MOST = 1.5
"""The ratio of the costs that a history may have."""


def main() -> int:
    """Print the cost of an event in each history; 1 if a ratio is too high."""
    slow = 0
    print(f"{'history':<32}" + "".join(f"{size:>9,} ranks" for size in SIZES) + "   ratio")
    for name, history in HISTORIES.items():
        small, large = (min(_event_us(history, size) for _ in range(ROUNDS)) for size in SIZES)
        slow += large / small > MOST
        print(f"{name:<32}{small:>12.2f} us{large:>12.2f} us{large / small:>8.2f}")
    return 1 if slow else 0


def _event_us(history: Callable[[int], History], nprocs: int) -> float:
    """Return what an event takes, in microseconds: the mean over the history."""
    events = history(nprocs)
    times = max(1, EVENTS // len(events))
    gangs = [Gang(nprocs=nprocs, grace_s=5.0, window=nprocs, policy=RestartPolicy(2)) for _ in range(times)]
    gc.collect()
    gc.disable()
    begun_ns = time.thread_time_ns()
    for gang in gangs:
        for event in events:
            decide(gang, event)
    took_ns = time.thread_time_ns() - begun_ns
    gc.enable()
    assert all(gang.phase == "finished" for gang in gangs), "the history does not end"
    return took_ns / times / len(events) / 1e3


# Histories


def _starts(nprocs: int) -> History:
    return [say.WorkerStarted(local_rank=rank, pid=100 + rank, started_ns=rank) for rank in range(nprocs)]


def _exits(ranks: range, exitcode: int) -> History:
    return [_exit(rank, exitcode) for rank in ranks]


def _exit(rank: int, exitcode: int) -> say.WorkerExited:
    return say.WorkerExited(local_rank=rank, pid=100 + rank, exitcode=exitcode, ended_ns=1_000 + rank)


def _reaped() -> steps.AllReaped:
    return steps.AllReaped(recorded={}, taken_ns=1_001)


def _close() -> steps.CloseAsked:
    return steps.CloseAsked(death_sig=SIGTERM, timeout_s=1.0)


def _all_succeed(nprocs: int) -> History:
    return [steps.StartAsked(), *_starts(nprocs), *_exits(range(nprocs), 0)]


def _one_fails(nprocs: int) -> History:
    return [steps.StartAsked(), *_starts(nprocs), *_attempt_that_fails(nprocs), _close(), say.Swept()]


def _attempt_that_fails(nprocs: int) -> History:
    return [_exit(0, 3), _reaped(), *_exits(range(1, nprocs), -15)]


def _closed_and_killed(nprocs: int) -> History:
    polite = nprocs // 2
    return [
        *(steps.StartAsked(), *_starts(nprocs), _close(), _reaped()),
        *(*_exits(range(polite), -15), steps.TimerExpired(name="grace"), *_exits(range(polite, nprocs), -9)),
        say.Swept(),
    ]


def _restarted_twice(nprocs: int) -> History:
    attempt = [*_starts(nprocs), *_attempt_that_fails(nprocs)]
    again = [say.Swept(), steps.TimerExpired(name="backoff"), steps.Assembled()]
    return [steps.StartAsked(), *attempt, *again, *attempt, *again, *attempt]


HISTORIES: dict[str, Callable[[int], History]] = {
    "all start and succeed": _all_succeed,
    "one fails, all are stopped": _one_fails,
    "closed, half of them killed": _closed_and_killed,
    "restarted twice": _restarted_twice,
}

if __name__ == "__main__":
    raise SystemExit(main())
