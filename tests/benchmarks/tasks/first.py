"""What the first gang of a process takes, and a command that runs one gang."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from tests.benchmarks.tasks.launch import launch

if TYPE_CHECKING:
    from tests.benchmarks.job import Contender, Figures

_COMMANDS = {
    "floor": ("-c", "import subprocess as s\nfor p in [s.Popen(['/bin/true']) for _ in range({n})]: p.wait()"),
    "supervise": ("-m", "supervise", "run", "-n", "{n}", "/bin/true"),
}


def first(contender: Contender, *, nprocs: int, method: str = "") -> Figures:
    """Import what a user imports, run a gang, and run it again, in a process that has run none."""
    begun_s = time.perf_counter()
    exec(contender.imports, {})
    imported_s = time.perf_counter()
    first_ms = launch(contender, nprocs=nprocs, method=method)["result_ms"]
    later_ms = min(launch(contender, nprocs=nprocs, method=method)["result_ms"] for _ in range(3))
    return {
        "import_ms": (imported_s - begun_s) * 1e3,
        "first_ms": first_ms,
        "later_ms": later_ms,
        "first_with_import_ms": (imported_s - begun_s) * 1e3 + first_ms,
    }


def command(contender: Contender, *, nprocs: int, more: tuple[str, ...] = ()) -> Figures:
    """Run a command that starts ``/bin/true`` in every rank; `more` are options of ``supervise run``."""
    words = [word.format(n=nprocs) for word in _COMMANDS["supervise" if contender.imports != "pass" else "floor"]]
    if contender.imports != "pass":
        words[3:3] = more
    with tempfile.TemporaryDirectory() as folder:
        begun_s = time.perf_counter()
        subprocess.run([sys.executable, *words], check=True, capture_output=True, cwd=folder)
        return {"result_ms": (time.perf_counter() - begun_s) * 1e3}
