"""Compare more than the tests do: ``python -m tests.oracle --histories 100000``; 1 if the cores differ."""

import argparse
import sys
import time

from tests.model.search import search
from tests.model.test_model import SETTINGS
from tests.oracle.plans import random_plans
from tests.oracle.twins import Twins, compare_along


def main() -> int:
    """Make every transition of the model with both cores, then run random histories."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle")
    parser.add_argument("--histories", type=int, default=100_000, metavar="N", help="0: only the model's transitions")
    parser.add_argument("--seed", type=int, default=int(time.time()), metavar="N")
    parser.add_argument("--no-model", action="store_true", help="only the random histories")
    given = parser.parse_args()
    broken = 0
    for name, setting in {} if given.no_model else SETTINGS.items():
        found = search(setting, new=Twins)
        print(f"{name}: {found.steps:,} steps", flush=True)
        if found.broken:
            broken += 1
            print(f"  {found.broken}\n  by: {', '.join(found.path)}", flush=True)
    print(f"{given.histories:,} histories, --seed {given.seed}", flush=True)
    for plan in random_plans(given.seed, given.histories):
        try:
            compare_along(plan)
        except AssertionError as error:
            print(error)
            return 1
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
