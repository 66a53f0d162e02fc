"""From the call that starts a gang to its result."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.benchmarks import work
from tests.benchmarks.job import Job, Unsupported
from tests.benchmarks.look import status

if TYPE_CHECKING:
    from tests.benchmarks.job import Contender, Figures

MIB = 1 << 20
_LARGE_MIB = 1000


def launch(contender: Contender, *, nprocs: int, method: str = "") -> Figures:
    """Run ``/bin/true``, or with a start method a function that does nothing, in every rank."""
    if method:
        job = Job(entrypoint=work.nothing, args=dict.fromkeys(range(nprocs), ()), method=method)
    else:
        program, *args = work.command("true")
        job = Job(entrypoint=program, args=dict.fromkeys(range(nprocs), tuple(args)))
    return _run(contender, job)


def returned(contender: Contender, *, mib: int, what: str) -> Figures:
    """Have one forked rank return a large value."""
    function = work.many_numbers if what == "numpy" else work.many_bytes
    if what == "numpy":
        try:
            __import__("numpy")
        except ImportError as error:
            raise Unsupported(f"this interpreter has no numpy ({error})") from error
    if mib >= _LARGE_MIB:  # is not repeated, so that what happens once must have happened before
        _run(contender, Job(entrypoint=function, args={0: (MIB,)}, values=True))
    return _run(contender, Job(entrypoint=function, args={0: (mib * MIB,)}, values=True), size_bytes=mib * MIB)


def _run(contender: Contender, job: Job, size_bytes: int | None = None) -> Figures:
    before_kb = status("VmRSS")
    begun_s, cpu_s = time.perf_counter(), time.process_time()
    gang = contender.gang(job)
    gang.start()
    values = gang.wait()
    ended_s, cpu_s = time.perf_counter(), time.process_time() - cpu_s
    if values is None or len(values) != job.nprocs:
        msg = f"expected {job.nprocs} results, got {values!r}"
        raise AssertionError(msg)
    added_kb = status("VmRSS") - before_kb
    if size_bytes is not None and getattr(values[0], "nbytes", None) != size_bytes and len(values[0]) != size_bytes:
        raise AssertionError("not the value that was returned")
    gang.discard()
    done_s = time.perf_counter()
    return {
        "result_ms": (ended_s - begun_s) * 1e3,
        "discarded_ms": (done_s - begun_s) * 1e3,
        "cpu_us_per_rank": cpu_s / job.nprocs * 1e6,
        "host_rss_mb": added_kb / 1024,
    }
