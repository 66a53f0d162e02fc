"""`python -m tests.chaos --minutes 30`: chaos for as long as you like. Ends with code 1 when something breaks."""

import argparse
import faulthandler
import logging
import random
import sys
import time
from multiprocessing import forkserver

from tests import conftest as leaks
from tests.chaos.driver import run
from tests.chaos.machine import BrokenError


def main() -> int:
    """Run what the command line asks for."""
    asked = _arguments()
    logging.getLogger("pykka").addHandler(logging.NullHandler())
    logging.lastResort = None
    leaks.settle_down()  # a seed that begins with less would find it left behind
    faulthandler.enable()
    begun_s = time.monotonic()
    seeds = [asked.seed] if asked.seed is not None else iter(lambda: random.randrange(1 << 32), None)
    machines = steps = gangs = broken = 0
    for seed in seeds:
        try:
            done = run(seed, machines=asked.machines, steps=asked.steps, shrink=asked.shrink)
        except BrokenError as found:
            broken += 1
            print(f"\nseed {seed}: BROKEN\n{found}\n", flush=True)
            if not asked.go_on:
                break
        else:
            machines, steps, gangs = machines + done.machines, steps + done.steps, gangs + done.gangs
            minutes = (time.monotonic() - begun_s) / 60
            print(f"seed {seed}: {minutes:.1f} min; {machines} machines, {gangs} gangs, {steps} steps", flush=True)
        if time.monotonic() - begun_s > asked.minutes * 60:
            break
    print(f"{machines} machines, {gangs} gangs, {steps} steps, {broken} broken seeds", flush=True)
    forkserver._forkserver._stop()
    return 1 if broken else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="no new seed is begun after so long (default: 5)")
    parser.add_argument("--seed", type=int, help="run this one seed, and no other")
    parser.add_argument("--machines", type=int, default=20, help="state machines a seed (default: 20)")
    parser.add_argument("--steps", type=int, default=20, help="steps a machine, at most (default: 20)")
    parser.add_argument("--go-on", action="store_true", help="go on with other seeds when one is broken")
    parser.add_argument("--shrink", action="store_true", help="have hypothesis look for a shorter plan that breaks too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
