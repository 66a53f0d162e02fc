"""What a test in four processes costs: this plugin, PyTorch's MultiProcessTestCase and mpi-pytest, by turns.

``python -m tests.benchmarks.rank_tests --torch-python ~/venvs/torch/bin/python --rounds 10``

Each contender runs in the same interpreter, with the plugins that it has. A figure is the wall time of a run of pytest,
and its processor time, less that of the same run with a plain test in its place. Contenders that
are not installed there are left out.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

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
OWN = "supervise, fork"
MPIEXEC = ("mpiexec", "--oversubscribe", "-n", str(RANKS))
FLOOR = {"MultiProcessTestCase": "plain, with torch", "supervise, fork, with torch": "plain, with torch"}


def seconds(python: str, folder: Path, name: str, *, is_mpi: bool) -> tuple[float, float]:
    """Return the wall time of a run of pytest, or of one in each process of an `mpiexec`, and its processor time.

    Raises:
        RuntimeError: The run has failed.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = [*(MPIEXEC if is_mpi else ()), python, "-m", "pytest", "-q", "-p", "no:cacheprovider", name]
    begin_s, used_s = time.perf_counter(), _children_s()
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    taken_s = time.perf_counter() - begin_s
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stdout}{done.stderr}")
    return taken_s, _children_s() - used_s


def _children_s() -> float:
    """Return the processor time of all descendants that were reaped."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(python: str, count: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return the wall and processor times of each contender, which take turns."""
    times: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        (folder / "pytest.ini").write_text("[pytest]\n")
        files = {}
        for number, (name, text) in enumerate(modules(count).items()):
            if not _has(python, NEEDS.get(name, "pytest")):
                print(f"{name}: {NEEDS[name]} is not installed")
                continue
            files[name] = f"test_{number}.py"
            (folder / files[name]).write_text(text)
        for turn in range(rounds + 1):
            for name, file in list(files.items()):
                try:
                    taken = seconds(python, folder, file, is_mpi=name == "mpi-pytest")
                except RuntimeError as error:
                    print(f"left out: {error}")
                    del files[name]
                    continue
                if turn:  # the first compiles
                    times.setdefault(name, []).append(taken)
    return times


def _has(python: str, module: str) -> bool:
    command = [python, "-c", f"import importlib.util as u; raise SystemExit(u.find_spec({module!r}) is None)"]
    return subprocess.run(command, check=False).returncode == 0


def table(figures: dict[str, dict[str, list[list[float]]]], kind: int) -> list[str]:
    """Return the rows of a Markdown table: medians over those of the plain test, in milliseconds, and their ratio.

    Args:
        figures: Number of tests, to contender, to the wall and the processor time of each turn in seconds.
        kind: 0 for the wall time, 1 for the processor time.
    """
    rows = ["|".join(["", " ", *(f" {_tests(count)} | relative to the first row " for count in figures), ""])]
    rows.append("|---" * (2 * len(figures) + 1) + "|")
    for name in next(iter(figures.values())):
        if not name.startswith("plain"):
            over = {count: (_over(times, name)[kind], _over(times, OWN)[kind]) for count, times in figures.items()}
            cells = [f" {cost * 1000:.0f} ms | {cost / own:.1f} " for cost, own in over.values()]
            rows.append("|".join(["", f" {name} ", *cells, ""]))
    return rows


def _tests(count: str) -> str:
    return "1 test" if count == "1" else f"{count} tests"


def _over(times: dict[str, list[list[float]]], name: str) -> list[float]:
    """Return the medians of the wall and the processor time, less those of the plain test."""
    floor = times[FLOOR.get(name, "plain")]
    return [
        statistics.median(turn[kind] for turn in times[name]) - statistics.median(turn[kind] for turn in floor)
        for kind in (0, 1)
    ]


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch-python", default=sys.executable, help="interpreter that has the contenders")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 11], help="numbers of tests in a module")
    parser.add_argument("--json", type=Path, help="file for the figures")
    args = parser.parse_args()
    figures: dict[str, Any] = {str(count): measure(args.torch_python, count, args.rounds) for count in args.counts}
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    print(f"{RANKS} ranks, over a plain test, medians of {args.rounds} turns")
    for kind, title in enumerate(("wall time", "processor time of all processes")):
        print(f"\n{title}\n", *table(figures, kind), sep="\n")


if __name__ == "__main__":
    main()
