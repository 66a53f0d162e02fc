"""The example of a tree: whatever fails, everything comes back, and nothing is left at the end."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent.parent / "examples" / "chat.py"


@pytest.mark.parametrize("failures", [8, pytest.param(200, marks=[pytest.mark.stress, pytest.mark.timeout(600)])])
def test_a_chat_survives_the_failure_of_any_child(failures: int) -> None:
    """The restarts are as many as the failures; a conftest's look finds no process behind."""
    done = subprocess.run(
        [sys.executable, "-W", "error", PROGRAM, "--failures", str(failures)],
        capture_output=True,
        text=True,
        timeout=50 if failures < 100 else 590,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == f"{failures} restarts"
    downs = [re.fullmatch(r"(\d+): (room|service|index|door) is down", line) for line in lines[:-1]]
    assert [int(down[1]) for down in downs if down] == list(range(1, failures + 1))
