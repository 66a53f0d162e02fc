"""Output of ranks that is redirected and shown. The runner reads what is shown and adds its own figures."""

from __future__ import annotations

import os
import select
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING

from tests.benchmarks import readers, work
from tests.benchmarks.gate import Gate
from tests.benchmarks.job import Figures, Job
from tests.benchmarks.look import status

if TYPE_CHECKING:
    from tests.benchmarks.job import Contender

_DEAD_S = 30.0


def tee(contender: Contender, *, nprocs: int, megabytes: int, pause_s: float = 0.0) -> Figures:
    """Have all ranks together write so many MB; stop the clock when all is shown.

    With a pause after each write, the lines are what matters: readers then often meet half a line.
    """
    program, *args = work.command("writer")
    blocks = megabytes // nprocs
    args_of = {rank: (*args, str(rank), str(blocks), str(pause_s)) for rank in range(nprocs)}
    begun_s, cpu_s = time.perf_counter(), time.process_time()
    _show(contender, Job(entrypoint=program, args=args_of, tee=True))
    took_s, cpu_s = time.perf_counter() - begun_s, time.process_time() - cpu_s
    written = nprocs * blocks * work.BLOCK_LINES * 100
    return {"mb_per_s": written / took_s / 1e6, "cpu_s_per_gb": cpu_s / written * 1e9, "written_lines": written / 100}


def shown(contender: Contender, *, nprocs: int, lines: int, gap_s: float) -> Figures:
    """Have each rank write a line now and then that holds the time. The figures are the runner's."""
    program, *args = work.command("ticker")
    job = Job(entrypoint=program, args=dict.fromkeys(range(nprocs), (*args, str(lines), str(gap_s))), tee=True)
    _show(contender, job)
    return {"written_lines": nprocs * lines}


def flooded(contender: Contender, *, nprocs: int, megabytes: int, stalled: bool) -> Figures:
    """Have all ranks flood the console, and then one of them fail; stop the clock when all siblings are dead.

    The result may come later, since nothing may be lost: somebody reads (again, if stalled) once they are dead.
    """
    gate, figures = Gate(), Figures()
    program, *args = work.command("flooder")
    blocks = megabytes // nprocs
    args_of = {
        rank: (*args, str(rank), str(blocks), *gate.args(3)[:3], "3" if rank == nprocs - 1 else "")
        for rank in range(nprocs)
    }
    gang = contender.gang(Job(entrypoint=program, args=args_of, tee=True))
    pids, before_kb = gang.start(), status("VmRSS")

    def observe() -> None:
        fds = [os.pidfd_open(pid) for pid in pids]
        try:
            gate.await_ready(nprocs)
            figures["rss_growth_mb"] = (status("VmRSS") - before_kb) / 1024
            gate.open()
            _await_deaths(fds)
            figures["latency_ms"] = (time.monotonic_ns() - gate.last_stamp_ns()) / 1e6
        finally:
            if stalled:
                readers.go(tempfile.gettempdir())
            for fd in fds:
                os.close(fd)

    observer = threading.Thread(target=observe)
    observer.start()
    gang.wait()
    observer.join()
    gang.close()
    sys.stdout.flush()
    gang.discard()
    return {**figures, "written_lines": nprocs * blocks * work.BLOCK_LINES}


def _await_deaths(fds: list[int]) -> None:
    """Return when all processes are dead.

    Raises:
        TimeoutError: They live.
    """
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    left, deadline_s = len(fds), time.monotonic() + _DEAD_S
    while left:
        ready = poll.poll(max(0.0, deadline_s - time.monotonic()) * 1e3)
        if not ready:
            msg = f"{left} ranks live on, {_DEAD_S:g} s after the failure"
            raise TimeoutError(msg)
        for fd, _ in ready:
            poll.unregister(fd)
            left -= 1


def _show(contender: Contender, job: Job) -> None:
    gang = contender.gang(job)
    gang.start()
    gang.wait()
    gang.close()
    sys.stdout.flush()  # not everybody does
    gang.discard()
