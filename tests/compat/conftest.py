"""What the tests of this folder share: the modules of the suite are importable as ``tests.compat``."""

import fcntl
import json
import os
import sys
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.compat import oracle


@pytest.fixture(scope="session")
def ours(tmp_path_factory):
    """Return the observations of a group of cases, made once for all workers: group to (id to observation)."""
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    @cache
    def observed(group):
        seen = folder / f"compat-{group}.json"
        with (folder / f"compat-{group}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if seen.exists():
                return json.loads(seen.read_text())
            return oracle.run(sys.executable, "supervise", oracle.groups()[group], seen)

    return observed


@pytest.fixture(scope="session")
def torch_python():
    """Return an interpreter that has PyTorch, or skip."""
    python = os.environ.get("SUPERVISE_TORCH_PYTHON") or (sys.executable if _has_torch() else None)
    if python is None:
        reason = "PyTorch is not installed here, and SUPERVISE_TORCH_PYTHON names no interpreter that has it"
        if os.environ.get("SUPERVISE_NEEDS_TORCH") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return python


def _has_torch():
    import importlib.util

    return importlib.util.find_spec("torch") is not None
