"""Trainings whose ranks all fall silent together: their stacks tell which of them hangs. See tests.health.training."""

import subprocess
from pathlib import Path

import pytest

from tests.clients.torchrun import PATIENCE_S

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("how", ["sleep", "loader", "left_early"])
@pytest.mark.timeout(5 * PATIENCE_S)
def test_the_rank_outside_of_the_collective_is_named(torch_python, how):
    """Of three ranks, each of which reports every step."""
    done = subprocess.run(
        [torch_python, "-m", "tests.health.training", "--only", how, "--ranks", "3"],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == ["2 of 2 ranks named"], done.stdout + done.stderr
