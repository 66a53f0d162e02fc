"""`python -m tests.health`: run the corpus of hangs, and print whom the watchdog names and how fast it is.

The command ends with code 1 if fewer than 95 of 100 culprits are named, or if a hang is reported that cannot be seen.
"""

import argparse
import logging
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.health.corpus import Case, Found, cases, run
from tests.health.hangs import SEEN

WANTED = 0.95


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.health", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the gangs' sizes and the ranks at fault (default: 0)")
    parser.add_argument("--only", default="", metavar="HOW", help="only this way to hang, such as lock_twice")
    asked = parser.parse_args()
    logging.lastResort = None
    seen: list[tuple[Case, Found]] = []
    wrong = 0
    print(f"{'named':>6} {'late s':>7} {'stacks s':>8} {'end s':>6}  case")
    for case in cases(asked.seed):
        if asked.only in ("", case.how):
            with tempfile.TemporaryDirectory() as folder:
                found = run(case, Path(folder))
            times = f"{found.late_s:7.3f} {found.stacks_s:8.3f} {found.ended_s:6.3f}" if found.named is not None else ""
            print(f"{'-' if found.named is None else found.named:>6} {times:23}  {case}", flush=True)
            if case.how in SEEN:
                seen.append((case, found))
            else:
                wrong += found.named is not None
    named = [found for case, found in seen if found.named == case.culprit]
    print(f"{len(named)} of {len(seen)} culprits named; {wrong} reports of hangs that cannot be seen")
    if named:
        _print_times("from the timeout to the report", [found.late_s for found in named])
        _print_times("from the report to the first signal", [found.stacks_s for found in named])
        _print_times("from the first signal to the end of the gang", [found.ended_s for found in named])
    return 0 if not wrong and len(named) >= WANTED * len(seen) else 1


def _print_times(what: str, times_s: Sequence[float]) -> None:
    print(f"{what}: median {statistics.median(times_s):.3f} s, at most {max(times_s):.3f} s")


if __name__ == "__main__":
    sys.exit(main())
