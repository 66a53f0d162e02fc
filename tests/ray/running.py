"""Runs the programs that need Ray, with this Python or the one in `SUPERVISE_RAY_PYTHON`."""

import functools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.engines import python_of

ROOT = Path(__file__).parents[2]
LOOK = "import cloudpickle, ray"


@functools.cache
def missing() -> str:
    """Return why nothing can run on Ray; "" if it can."""
    tried = subprocess.run([python_of("ray"), "-c", LOOK], capture_output=True, text=True, timeout=60, check=False)
    return tried.stderr.strip().rpartition("\n")[2]


@functools.cache
def program(what: str, timeout_s: float = 280) -> dict[str, dict[str, Any]]:
    """Run ``tests.ray.program`` with a word; return what it has observed, by name.

    Without Ray the test is skipped, or fails if `SUPERVISE_NEEDS_RAY` is 1.
    """
    if why := missing():
        reason = f"{python_of('ray')} cannot run gangs on Ray: {why}. SUPERVISE_RAY_PYTHON names a Python that can."
        if os.environ.get("SUPERVISE_NEEDS_RAY") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    done = subprocess.run(
        [python_of("ray"), "-m", "tests.ray.program", what],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {row.pop("name"): row for row in rows}
