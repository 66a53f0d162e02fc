"""Runs cases on an engine that is not for the process of the tests.

Run as ``python -m tests.conformance.on_engine NAME CASE...``. It prints a line of JSON for each case, and
ends with `MISSING` and a reason if this Python lacks what the engine needs. It is a program of its own, since Ray and
PyTorch leave threads and descriptors in their process.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

from tests.conformance.cases import CASES, PATIENCE_S
from tests.conformance.engines import ENGINES

MISSING = 77
SIGTERM = "SIGTERM"


@contextlib.contextmanager
def surroundings(name: str) -> Iterator[None]:
    """Provide what an engine needs around all its gangs."""
    if name != "ray":
        yield
        return
    from tests.ray.cluster import cluster

    with cluster():
        yield


def signaled(name: str) -> dict[str, Any]:
    """Send SIGTERM to a driver that waits for its gang; return what it observes."""
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.conformance.driver", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    deadline = threading.Timer(PATIENCE_S, driver.kill)
    deadline.start()
    try:
        for line in driver.stdout:
            if line == "waits\n":
                driver.send_signal(signal.SIGTERM)
            elif line.startswith("{"):
                return {**json.loads(line), "code": driver.wait(PATIENCE_S)}
        raise AssertionError(f"the driver ended without an observation: {driver.wait(PATIENCE_S)}")
    finally:
        deadline.cancel()
        deadline.join()
        driver.kill()
        driver.communicate()


def main(name: str, cases: list[str]) -> int:
    engine = ENGINES[name]
    if missing := engine.missing():
        print(missing)
        return MISSING
    with surroundings(name):
        for case in cases:
            found = signaled(name) if case == SIGTERM else engine.run(CASES[case])
            print(json.dumps({"name": case, **found}), flush=True)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main(sys.argv[1], sys.argv[2:]))
