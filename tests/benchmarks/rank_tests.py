"""What a test in four processes costs: this plugin, PyTorch's MultiProcessTestCase and mpi-pytest, by turns.

``python -m tests.benchmarks.rank_tests --torch-python ~/venvs/torch/bin/python --rounds 10``

Each contender runs in the same interpreter, with the plugins that it has. A figure is the wall time of a run of pytest
less that of the same run with a plain test in its place. Contenders that are not installed there are left out.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RANKS = 4
TORCH = """
from torch.testing._internal.common_distributed import MultiProcessTestCase

class TestIt(MultiProcessTestCase):
    world_size = {ranks}

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    {tests}
"""
PLAIN = "def test_{number}():\n    pass\n"
RANKED = "@pytest.mark.ranks({ranks})\ndef test_{number}():\n    pass\n"
SPAWNED = "@pytest.mark.ranks({ranks}, start_method='spawn')\ndef test_{number}():\n    pass\n"
MPI = "@pytest.mark.parallel({ranks})\ndef test_{number}():\n    pass\n"


def _functions(template: str, count: int, head: str = "import pytest\n") -> str:
    return head + "\n".join(template.format(number=number, ranks=RANKS) for number in range(count))


def modules(count: int) -> dict[str, str]:
    """Return the name of each contender and its module with `count` tests."""
    methods = "\n    ".join(f"def test_{number}(self):\n        pass\n" for number in range(count))
    return {
        "plain": _functions(PLAIN, count),
        "plain, with torch": _functions(PLAIN, count, "import torch.testing._internal.common_distributed\n"),
        "supervise, fork": _functions(RANKED, count),
        "supervise, fork, with torch": _functions(
            RANKED, count, "import pytest, torch.testing._internal.common_distributed\n"
        ),
        "supervise, spawn": _functions(SPAWNED, count),
        "MultiProcessTestCase": TORCH.format(ranks=RANKS, tests=methods),
        "mpi-pytest": _functions(MPI, count),
    }


NEEDS = {
    "plain, with torch": "torch",
    "supervise, fork, with torch": "torch",
    "MultiProcessTestCase": "torch",
    "mpi-pytest": "pytest_mpi",
}
MPIEXEC = ("mpiexec", "--oversubscribe", "-n", str(RANKS))
FLOOR = {"MultiProcessTestCase": "plain, with torch", "supervise, fork, with torch": "plain, with torch"}


def seconds(python: str, folder: Path, name: str, *, is_mpi: bool) -> float:
    """Return the wall time of a run of pytest, or of one in each process of an `mpiexec`.

    Raises:
        RuntimeError: The run has failed.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = [*(MPIEXEC if is_mpi else ()), python, "-m", "pytest", "-q", "-p", "no:cacheprovider", name]
    begin_s = time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    taken_s = time.perf_counter() - begin_s
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stdout}{done.stderr}")
    return taken_s


def measure(python: str, count: int, rounds: int) -> dict[str, list[float]]:
    """Return the times of each contender, which take turns."""
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        (folder / "pytest.ini").write_text("[pytest]\n")
        files = {}
        for number, (name, text) in enumerate(modules(count).items()):
            if (
                name in NEEDS
                and subprocess.run([python, "-c", f"import {NEEDS[name]}"], check=False, stderr=-3).returncode
            ):
                print(f"{name}: {NEEDS[name]} is not installed")
                continue
            files[name] = f"test_{number}.py"
            (folder / files[name]).write_text(text)
        for turn in range(rounds + 1):
            for name, file in list(files.items()):
                try:
                    taken_s = seconds(python, folder, file, is_mpi=name == "mpi-pytest")
                except RuntimeError as error:
                    print(f"left out: {error}")
                    del files[name]
                    continue
                if turn:  # the first compiles
                    times.setdefault(name, []).append(taken_s)
    return times


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch-python", default=sys.executable, help="interpreter that has the contenders")
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    print(f"{RANKS} ranks, milliseconds over a plain test: median (minimum) of {args.rounds} turns")
    for count in (1, 11):
        times = measure(args.torch_python, count, args.rounds)
        for name, taken in times.items():
            if name.startswith("plain"):
                continue
            floor = times[FLOOR.get(name, "plain")]
            over = statistics.median(taken) - statistics.median(floor), min(taken) - min(floor)
            print(f"{count:3} tests  {name:30} {over[0] * 1000:8.0f} ({over[1] * 1000:.0f})", flush=True)


if __name__ == "__main__":
    main()
