"""The example of a tree: whatever fails, everything comes back, and nothing is left at the end."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

pytestmark = pytest.mark.timeout(4 * PATIENCE_S)  # whole programs, one after the other
PROGRAM = Path(__file__).parent.parent / "examples" / "chat.py"


@pytest.mark.parametrize("failures", [8, pytest.param(200, marks=[pytest.mark.stress, pytest.mark.timeout(600)])])
def test_a_chat_survives_the_failure_of_any_child(failures: int) -> None:
    """The restarts are as many as the failures; no line is lost, each is moderated and counted; nothing is left."""
    done = subprocess.run(
        [sys.executable, "-W", "error", PROGRAM, "--failures", str(failures)],
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_S if failures < 100 else 590,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *rounds, words, restarts = done.stdout.splitlines()
    assert restarts == f"{failures} restarts"
    assert words.startswith("most frequent: ")
    assert set(words.split()[2:]) == {"anna:", "is", "back,", "****!"}
    downs = [re.fullmatch(r"(\d+): (room|moderator|index|door) is down", line) for line in rounds[::2]]
    assert [int(down[1]) for down in downs if down] == list(range(1, failures + 1))
    assert {down[2] for down in downs if down} == {"room", "moderator", "index", "door"}
    assert rounds[1::2] == [f"   {number} lines in the room" for number in range(1, failures + 1)]
