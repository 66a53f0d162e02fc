"""`python -m tests.chaos`, as CONTRIBUTING.md tells people to run it."""

import subprocess
import sys
from pathlib import Path


def test_the_first_seed_of_a_fresh_process_is_not_broken_by_what_the_process_has_yet_to_make():
    """What the main thread waits with is made by the first wait, and kept: it is no leak."""
    command = [sys.executable, "-m", "tests.chaos", "--seed", "1", "--machines", "2", "--steps", "10"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, check=False, capture_output=True, cwd=root, text=True, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken seeds" in done.stdout
