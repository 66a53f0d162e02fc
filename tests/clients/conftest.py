"""Runs PyTorch's torchrun on our process layer, with a Python that has PyTorch: ours, or SUPERVISE_TORCH_PYTHON."""

import os
import subprocess
import sys

import pytest

from tests.clients.torchrun import Clients

TRY = "import importlib.metadata as m, pykka, psutil, structlog, sys; print(m.version('torch'))"


@pytest.fixture(scope="session")
def torch_python():
    """A Python with PyTorch and what we depend on. Without one the test is skipped, or fails if it is needed."""
    python = os.environ.get("SUPERVISE_TORCH_PYTHON") or sys.executable
    tried = subprocess.run([python, "-c", TRY], capture_output=True, text=True, timeout=60, check=False)
    if tried.returncode == 0:
        return python
    *_, why = tried.stderr.splitlines() or ["no reason given"]
    reason = f"{python} cannot run PyTorch's clients: {why}. SUPERVISE_TORCH_PYTHON names a Python that can."
    if os.environ.get("SUPERVISE_NEEDS_TORCH") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture
def clients(torch_python, tmp_path):
    """Starts clients; none of them lives on after the test."""
    with Clients(torch_python, tmp_path) as found:
        yield found
