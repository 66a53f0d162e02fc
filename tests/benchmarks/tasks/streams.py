"""Output of ranks that is redirected and shown. The runner reads what is shown and adds its own figures."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from tests.benchmarks import work
from tests.benchmarks.job import Job

if TYPE_CHECKING:
    from tests.benchmarks.job import Contender, Figures


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


def _show(contender: Contender, job: Job) -> None:
    gang = contender.gang(job)
    gang.start()
    gang.wait()
    gang.close()
    sys.stdout.flush()  # not everybody does
    gang.discard()
