"""How soon an end is noticed, and how soon an end is brought about."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks import work
from tests.benchmarks.gate import Gate
from tests.benchmarks.job import Job

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.benchmarks.job import Contender, Figures

_SH = ("-c", 'exec "$@"', "sh")
"""Lets the ranks of one gang, which have one entrypoint, run different programs."""


def failure(contender: Contender, *, nprocs: int, method: str = "", tee: bool = False) -> Figures:
    """Have the last rank fail; stop the clock at the result, when all siblings are dead."""
    gate, last = Gate(), nprocs - 1
    if method:
        args: dict[int, tuple[str, ...]] = dict.fromkeys(range(last), (gate.ready,))
        args[last] = gate.args(3)
        job = Job(entrypoint=work.linger_or_fail, args=args, method=method, tee=tee)
        reporting = nprocs
    else:
        args = {rank: (*_SH, *work.command("sleep")) for rank in range(last)}
        args[last] = (*_SH, *work.command("gated"), *gate.args(3))
        job = Job(entrypoint="/bin/sh", args=args, tee=tee)
        reporting = 1
    return _through_gate(contender, job, gate, reporting)


def last_exit(contender: Contender, *, nprocs: int) -> Figures:
    """Have all ranks end at once; stop the clock at the result."""
    gate = Gate()
    program, *args = work.command("gated")
    job = Job(entrypoint=program, args=dict.fromkeys(range(nprocs), (*args, *gate.args(0))))
    return _through_gate(contender, job, gate, nprocs)


def _through_gate(contender: Contender, job: Job, gate: Gate, reporting: int) -> Figures:
    gang = contender.gang(job)
    pids = gang.start()
    thread = gate.open_when_ready(reporting)
    gang.wait()
    ended_ns = time.monotonic_ns()
    alive = _alive(pids)
    thread.join()
    gang.discard()
    return {"latency_ms": (ended_ns - gate.last_stamp_ns()) / 1e6, "left_alive": alive}


def close(contender: Contender, *, nprocs: int) -> Figures:
    """Close a gang whose ranks die of SIGTERM."""
    program, *args = work.command("sleep")
    gang = contender.gang(Job(entrypoint=program, args=dict.fromkeys(range(nprocs), tuple(args))))
    pids = gang.start()
    threading.Event().wait(0.3)
    begun_s = time.perf_counter()
    gang.close()
    ended_s = time.perf_counter()
    alive = _alive(pids)
    gang.discard()
    return {"close_ms": (ended_s - begun_s) * 1e3, "left_alive": alive}


def close_stubborn(contender: Contender, *, nprocs: int, grace_s: int) -> Figures:
    """Close a gang whose ranks ignore SIGTERM; count from the end of the grace."""
    gate = Gate()
    program, *args = work.command("stubborn")
    gang = contender.gang(Job(entrypoint=program, args=dict.fromkeys(range(nprocs), (*args, gate.ready))))
    pids = gang.start()
    gate.await_ready(nprocs)
    begun_s = time.perf_counter()
    gang.close(grace_s)
    ended_s = time.perf_counter()
    alive = _alive(pids)
    gang.discard()
    return {"late_ms": (ended_s - begun_s - grace_s) * 1e3, "left_alive": alive}


def _alive(pids: Iterable[int]) -> int:
    """Return how many of our processes run; zombies do not."""
    found = 0
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found += state[0] not in "ZX" and int(state[1]) == os.getpid()
    return found
