"""What a gang costs while nothing happens."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks import work
from tests.benchmarks.job import Job

if TYPE_CHECKING:
    from tests.benchmarks.job import Contender, Figures, Gang

_SETTLE_S = 1.0
_PEAK = "print(next(l.split()[1] for l in open('/proc/self/status') if l.startswith('VmHWM')))"


def idle(contender: Contender, *, nprocs: int, window_s: float) -> Figures:
    """Wait for ranks that only sleep, tee'd."""
    gang = _sleepers(contender, nprocs)
    cpu_s, wakeups = time.process_time(), _wakeups()
    gang.wait(window_s)
    cpu_s, wakeups = time.process_time() - cpu_s, _wakeups() - wakeups
    threads = _status("Threads")
    gang.close()
    gang.discard()
    return {
        "cpu_ms_per_min": cpu_s * 1e3 * 60 / window_s,
        "wakeups_per_s": wakeups / window_s,
        "threads": threads,
    }


def memory(contender: Contender, *, nprocs: int) -> Figures:
    """Start a small gang and then a large one; return what each rank of the large one added."""
    small = _sleepers(contender, 4)
    before_kb = _status("VmRSS")
    large = _sleepers(contender, nprocs)
    added_kb = _status("VmRSS") - before_kb
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


def _status(key: str, task: Path = Path("/proc/self")) -> int:
    for line in (task / "status").read_text(encoding="ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0])
    raise KeyError(key)


def _wakeups() -> int:
    """Return how often a thread of ours has given up the processor to wait, so far."""
    return sum(_status("voluntary_ctxt_switches", task) for task in Path("/proc/self/task").iterdir())
