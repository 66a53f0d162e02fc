"""What an option of a gang adds to the time from its launch to its result."""

from __future__ import annotations

import tempfile
import time
from typing import TYPE_CHECKING, Any

from tests.benchmarks import work
from tests.benchmarks.job import Job

if TYPE_CHECKING:
    from tests.benchmarks.job import Contender, Figures

FEATURES = ("none", "watchdog", "notify", "control socket", "restart policy", "rank variables", "sweep")


def feature(contender: Contender, *, nprocs: int, what: str) -> Figures:
    """Run a function that reports readiness and a heartbeat in each of `nprocs` forked ranks, with one option."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(entrypoint=work.ready, args=dict.fromkeys(range(nprocs), ()), feature=_settings(what, folder))
        begun_s = time.perf_counter()
        gang = contender.gang(job)
        gang.start()
        gang.wait()
        taken_s = time.perf_counter() - begun_s
        gang.discard()
    return {"result_ms": taken_s * 1e3}


def _settings(what: str, folder: str) -> dict[str, Any]:
    from supervise import RestartPolicy, Watchdog

    every = {
        "none": {},
        "watchdog": {"watchdog": Watchdog(heartbeat_timeout_s=60.0)},
        "notify": {"ready": "notify"},
        "control socket": {"control": f"{folder}/control"},
        "restart policy": {"restart_policy": RestartPolicy(3)},
        "rank variables": {"rank_variables": True},
        "sweep": {"containment": "sweep"},
    }
    return every[what]
