"""The example of a training that hangs: the watchdog names the rank, and the next attempt ends the training."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.clients.torchrun import PATIENCE_S

PROGRAM = Path(__file__).parent.parent.parent / "examples" / "ddp_hang.py"
ROOT = PROGRAM.parent.parent


ABORTED_BY_PYTORCH = "terminate called without an active exception"
"""What a thread of PyTorch says that wants the GIL while its interpreter ends: rarely, and after the training."""


def train(torch_python):
    return subprocess.run(
        [torch_python, PROGRAM, "--ranks", "3", "--steps", "14", "--hang-at", "8"],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )


@pytest.mark.timeout(5 * PATIENCE_S)
def test_a_training_in_which_a_rank_hangs_is_restarted_and_ends(torch_python):
    done = train(torch_python)
    if ABORTED_BY_PYTORCH in done.stderr:
        done = train(torch_python)
    assert done.returncode == 0, done.stderr
    hung, restarting, ended, losses = done.stdout.splitlines()
    assert hung == "rank 1 hangs after step 7"
    why = r"rank 1 failed: hung: no heartbeat for [\d.]+ s \(step 7, .*\)"
    assert re.fullmatch(f"attempt 1 begins, because {why}", restarting)
    assert ended == "3 ranks have trained for 14 steps; the last losses:"
    assert all(0 <= float(loss) < 1 for loss in losses.split())
    assert len(losses.split()) == 3
