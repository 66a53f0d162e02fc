"""What a gang costs while nothing happens."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from tests.benchmarks import look as look_at, work
from tests.benchmarks.job import Job

if TYPE_CHECKING:
    from tests.benchmarks.job import Contender, Figures, Gang

_SETTLE_S = 1.0
_PEAK = "print(next(l.split()[1] for l in open('/proc/self/status') if l.startswith('VmHWM')))"


def idle(contender: Contender, *, nprocs: int, window_s: float) -> Figures:
    """Wait for ranks that only sleep, tee'd; look at our threads within that time, from one that does not count."""
    gang = _sleepers(contender, nprocs)
    figures: Figures = {}

    def look() -> None:
        pause, me = threading.Event(), threading.get_native_id()
        pause.wait(_SETTLE_S)
        before = look_at.threads(but=me)
        pause.wait(window_s)
        after = look_at.threads(but=me)
        cpu_ns, wakeups = (
            sum(now[part] - before.get(thread, (0, 0))[part] for thread, now in after.items()) for part in (0, 1)
        )
        figures["cpu_ms_per_min"] = cpu_ns / 1e6 * 60 / window_s
        figures["wakeups_per_s"] = wakeups / window_s
        figures["threads"] = len(after)

    looking = threading.Thread(target=look)
    looking.start()
    gang.wait(window_s + 2 * _SETTLE_S)
    looking.join()
    gang.close()
    gang.discard()
    return figures


def memory(contender: Contender, *, nprocs: int) -> Figures:
    """Start a small gang and then a large one; return what each rank of the large one added."""
    small = _sleepers(contender, 4)
    before_kb = look_at.status("VmRSS")
    large = _sleepers(contender, nprocs)
    added_kb = look_at.status("VmRSS") - before_kb
    for gang in (small, large):
        gang.close()
        gang.discard()
    return {"rss_kb_per_rank": added_kb / nprocs}


def imported(contender: Contender, *, package: bool = False) -> Figures:
    """Run an interpreter that does nothing but import: what a program needs, or only the package, as a worker does."""
    imports = contender.imports
    if package:
        imports = "import " + imports.split()[1] if imports != "pass" else imports
    begun_s = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", f"{imports}\n{_PEAK}"], check=True, capture_output=True, text=True)
    return {"import_ms": (time.perf_counter() - begun_s) * 1e3, "peak_rss_mb": int(done.stdout) / 1024}


def _sleepers(contender: Contender, nprocs: int) -> Gang:
    program, *args = work.command("sleep")
    gang = contender.gang(Job(entrypoint=program, args=dict.fromkeys(range(nprocs), tuple(args)), tee=True))
    gang.start()
    threading.Event().wait(_SETTLE_S)
    return gang
