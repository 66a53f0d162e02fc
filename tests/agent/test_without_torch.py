"""`supervise.agent` where PyTorch is not installed. These tests need no PyTorch."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[2])
MISSING = "supervise.agent needs PyTorch, which is not installed: pip install torch"


def run(*words):
    """Run a Python without installed packages."""
    env = {**os.environ, "PYTHONPATH": ROOT}
    return subprocess.run(
        [sys.executable, "-S", *words], capture_output=True, text=True, timeout=50, check=False, env=env
    )


def test_the_import_says_what_to_install():
    code = (
        f"try: import supervise.agent\nexcept ImportError as error: assert str(error) == {MISSING!r}; print(error.name)"
    )
    done = run("-c", code)
    assert (done.stdout, done.stderr) == ("torch\n", "")


def test_the_command_says_it_in_one_line():
    done = run("-m", "supervise.agent", "train.py")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{MISSING}\n")
