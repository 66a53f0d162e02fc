"""`python -m tests.benchmarks`: run scenarios, print tables, write figures."""

from __future__ import annotations

import argparse
import atexit
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks import contenders, machine, report
from tests.benchmarks.runner import Runner
from tests.benchmarks.scenarios import SCENARIOS

if TYPE_CHECKING:
    from tests.benchmarks.report import Cases


def main() -> None:
    """Run what the command line asks for."""
    asked = _arguments()
    names = [name for name in contenders.NAMES if name in asked.contenders]
    runner = Runner.probe(names, asked.torch_python)
    facts = machine.describe(runner.called()) | {"rounds": asked.rounds}
    print(json.dumps(facts, indent=2))
    for name, why in runner.absent.items():
        print(f"absent: {name}: {why}")
    print("\nmedian and min: of the later runs in a process; first: of its first run, imports included")
    print("x floor: ratio of the medians; of MB/s, more is better; target: what `supervise` has set itself")
    figures: dict[str, Cases] = {}
    begun_s = time.monotonic()
    atexit.register(runner.tidy)
    done = {name: figures.setdefault(name, []) for name in asked.scenarios or SCENARIOS}
    for name, cases in done.items():
        print(report.title(name), flush=True)
        for case in SCENARIOS[name]:
            if asked.case in case.label:
                taken = runner.run(case, asked.rounds)
                cases.append((case, taken))
                print(report.table(case, taken, cases), flush=True)
        facts["took_s"] = round(time.monotonic() - begun_s)
        if asked.json is not None:
            report.write(asked.json, facts, runner, figures)
    print(report.summary(figures))
    print(f"took {facts['took_s']} s")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}; default: all")
    parser.add_argument("--rounds", type=int, default=3, help="processes a contender and case, taking turns (3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where every raw figure is written")
    parser.add_argument("--case", default="", metavar="TEXT", help="only cases whose label holds this")
    parser.add_argument(
        "--contenders",
        type=lambda text: text.split(","),
        default=contenders.NAMES,
        metavar="NAME,...",
        help=f"of {', '.join(contenders.NAMES)}; default: all",
    )
    parser.add_argument(
        "--torch-python",
        default="",
        metavar="PATH",
        help="interpreter for contenders that this one cannot import, such as PyTorch",
    )
    asked = parser.parse_args()
    if unknown := [name for name in asked.scenarios if name not in SCENARIOS]:
        parser.error(f"no scenario {', '.join(unknown)}")
    if unknown := [name for name in asked.contenders if name not in contenders.NAMES]:
        parser.error(f"no contender {', '.join(unknown)}")
    return asked


if __name__ == "__main__":
    main()
