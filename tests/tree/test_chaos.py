"""`python -m tests.chaos_tree`: some seconds of it, with fixed seeds; the default is ten minutes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("seconds", "seed"), [(2, 1), pytest.param(20, 2, marks=pytest.mark.stress)])
def test_e6_whatever_is_killed_comes_back_is_counted_and_leaves_nothing(seconds, seed):
    """Actors, ranks and a service; `tests/chaos_tree.py` says what is looked at."""
    command = [sys.executable, "-W", "error", "-m", "tests.chaos_tree", f"--seconds={seconds}", f"--seed={seed}"]
    done = subprocess.run(command, check=False, capture_output=True, cwd=ROOT, text=True, timeout=55)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ kills .* in \d+ rounds, \d+ restarts, none lost\n.*nothing is left\n$", done.stdout)


NOT_BY_THE_STRATEGY = "supervise._core.tree._set_of = lambda tree, cause: [cause]"
NOT_COUNTED = "supervise.RestartPolicy.counting = lambda *_: ()"


@pytest.mark.stress  # it tests the driver
@pytest.mark.parametrize(
    ("bug", "found"),
    [(NOT_BY_THE_STRATEGY, r"after the end of \w+, the tree told"), (NOT_COUNTED, r"1 restarts count, not \d")],
)
def test_a_planted_bug_is_found(bug, found):
    code = (
        f"import sys, supervise, supervise._core.tree\nfrom tests import chaos_tree\n{bug}\nsys.exit(chaos_tree.main())"
    )
    command = [sys.executable, "-W", "error", "-c", code, "--seconds=30", "--seed=4"]
    done = subprocess.run(command, check=False, capture_output=True, cwd=ROOT, text=True, timeout=55)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(f"BROKEN\n{found}", done.stdout)
