"""The examples of gangs: a ring, roles from a file, a preempted job, a service tree. Each does what it says."""

import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

pytestmark = pytest.mark.timeout(4 * PATIENCE_S)  # whole programs, one after the other
EXAMPLES = Path(__file__).parent.parent / "examples"


def run(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run an example, or the command, with warnings as errors."""
    return subprocess.run(
        [sys.executable, "-W", "error", *map(str, words)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_S,
        check=False,
    )


def output(*words: str | Path) -> list[str]:
    """Return what a run prints that succeeds."""
    done = run(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_a_ring_adds_the_vectors_of_all_ranks(size: int) -> None:
    """Of even and odd sizes, with parts that differ in length, and more than a socket buffers."""
    numbers = 200_003
    total = float(numbers * sum(range(1, size + 1)))
    lines = output(EXAMPLES / "ring.py", "--ranks", str(size), "--numbers", str(numbers))
    assert lines == [f"{size} ranks have the same sum: {total}"]


def test_a_ring_with_a_dead_rank_ends_and_says_which_one_it_was() -> None:
    """The others do not wait for it."""
    done = run(EXAMPLES / "ring.py", "--ranks", "4", "--fail-rank", "2")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"rank 2 failed first: Signal 9 \(SIGKILL\) received by PID \d+", done.stderr.splitlines()[-1])


def test_the_tests_of_the_ring_pass_in_all_their_ranks() -> None:
    """They run as the page of the examples says, without the options of this project."""
    lines = output("-m", "pytest", "-p", "no:cacheprovider", EXAMPLES / "ring_tests")
    assert re.search(r" 21 passed in ", lines[-1])


@pytest.mark.stress  # a failure waits for the victims, whose stacks it shows
def test_the_tests_of_the_ring_fail_with_a_ring_that_does_not_add(tmp_path: Path) -> None:
    """The failure is that of a rank."""
    shutil.copytree(EXAMPLES / "ring_tests", tmp_path / "examples" / "ring_tests")
    ring = (EXAMPLES / "ring.py").read_text()
    (tmp_path / "examples" / "ring.py").write_text(ring.replace("a + b for a, b", "a for a, b"))
    suite = tmp_path / "examples" / "ring_tests"
    done = run("-m", "pytest", "-p", "no:cacheprovider", "-k", "same_sum and 7", suite)
    assert done.returncode == 1
    assert re.search(r" 3 failed, 1 passed, ", done.stdout)
    assert "failed first" in done.stdout


def test_the_workers_of_a_gang_file_empty_the_queue() -> None:
    """Each number is factored by one worker, the queue is stopped at the end, and the run succeeds."""
    file = EXAMPLES / "roles" / "gang.toml"
    assert "2 roles, 4 ranks" in output("-m", "supervise", "check", file)[0]
    lines = output("-m", "supervise", "run", "--no-prefix", "--file", file)
    found = [re.fullmatch(r"worker [012] of 3: (\d+) = ([\d ]+)", line) for line in lines]
    factors = {int(each[1]): [int(factor) for factor in each[2].split()] for each in found if each}
    assert sorted(factors) == list(range(1_000_000, 1_000_012))
    assert len(lines) == len(factors)
    assert all(math.prod(found) == number for number, found in factors.items())


def test_a_preempted_job_has_the_result_of_one_that_was_not_interrupted() -> None:
    """A rank that a preemption finds at its end does not restart, so there may be fewer restarts."""
    steps = 10_000_000
    *preempted, restarts, result = output(EXAMPLES / "preempted.py", "--steps", str(steps), "--preemptions", "4")
    assert result == f"every rank has {sum(step * step for step in range(steps))}"
    assert len(preempted) <= 4
    assert all(re.fullmatch(r"life \d of rank [01] is preempted", line) for line in preempted)
    number = re.fullmatch(r"(\d) restarts, 0 of them counted", restarts)
    assert number
    assert 1 <= int(number[1]) <= len(preempted)


def test_a_service_tree_restarts_what_depends_on_the_dead() -> None:
    """One worker alone; all workers, after too many failures; everything, after a failure of the store."""
    assert output(EXAMPLES / "service_tree.py") == [
        "west was killed; new processes: west",
        "east was killed; new processes: east",
        "east was killed; new processes: east west",
        "store was killed; new processes: east store west",
        "lines were counted: True",
    ]
