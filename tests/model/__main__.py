"""Search larger gangs than the tests do: ``python -m tests.model --ranks 3``.

With three ranks most settings have 350 000 to 620 000 states; each takes one and a half to three minutes of processor
time and up to 0.5 GB. "told late" is the exception: 5.1 million states and 21 million steps take 25 minutes of
processor time and 3.1 GB. It comes last; ``--only`` chooses settings by a part of their name, such as "a restart".

``--lives`` searches the restarts of single ranks in the settings that the tests leave out.
``--health`` searches readiness and hangs in all settings.
``--time`` searches restarts while time passes, in settings of 70 000 to 110 000 states, up to a minute each.
``--roles`` searches gangs with up to three roles. The largest are "two services" with 45 000 states and "a role of two"
with 565 000, which takes five minutes of processor time and 0.5 GB.
``--trees`` searches a tree with two asks instead: half a million states for each strategy, two minutes each.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.model.search import Setting, search
from tests.model.test_model import HEALTH, LIVES, SETTINGS
from tests.model.test_roles_model import LARGER, ROLES
from tests.model.test_timed_model import LARGEST as LARGEST_IN_TIME
from tests.model.test_tree_model import LARGEST, STRATEGIES
from tests.model.tree_search import TreeSetting, search_tree


def main() -> int:
    """Search every setting of two ranks with more of them; 1 if a promise is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.model")
    parser.add_argument("--ranks", type=int, default=3, metavar="N")
    parser.add_argument("--only", default="", metavar="TEXT", help="settings whose name holds this")
    parser.add_argument("--lives", action="store_true", help="search the restarts of single ranks instead")
    parser.add_argument("--health", action="store_true", help="search readiness and hangs instead")
    parser.add_argument("--roles", action="store_true", help="search gangs with roles instead")
    parser.add_argument("--time", action="store_true", help="search restarts while time passes instead")
    parser.add_argument("--trees", action="store_true", help="search trees instead of gangs")
    given = parser.parse_args()
    chosen = {"health": HEALTH, "lives": LIVES, "roles": ROLES | LARGER, "time": LARGEST_IN_TIME}
    for name, settings in chosen.items():
        if getattr(given, name):
            return search_each({title: each for title, each in settings.items() if given.only in title})
    return search_trees() if given.trees else search_gangs(given.ranks, given.only)


def search_each(settings: dict[str, Setting]) -> int:
    """Search these settings; 1 if a promise is broken."""
    return max(report(name, lambda: search(settings[name])) for name in settings)  # noqa: B023


def search_trees() -> int:
    """Search the largest settings of trees; 1 if a promise is broken."""
    broken = 0
    for name, setting in LARGEST.items():
        for strategy in STRATEGIES:
            broken += report(f"{name}, {strategy}", lambda: search_tree(TreeSetting(strategy=strategy, **setting)))  # noqa: B023
    return min(broken, 1)


def search_gangs(ranks: int, only: str) -> int:
    """Search the settings of two ranks with more of them; 1 if a promise is broken."""
    broken = 0
    for name, setting in sorted(SETTINGS.items(), key=lambda each: each[1].late):
        if setting.nprocs == 2 and only in name:
            larger = replace(setting, nprocs=ranks)
            broken += report(name.replace("two", str(ranks)), lambda: search(larger))  # noqa: B023
    return min(broken, 1)


def report(title: str, run: Callable[[], Any]) -> int:
    """Run a search and print what it found; 1 if a promise is broken."""
    began = time.monotonic()
    found = run()
    took_s = time.monotonic() - began
    print(f"{title}: {found.states:,} states, {found.steps:,} steps, {took_s:.0f} s", flush=True)
    if found.broken:
        print(f"  {found.broken}, by: {', '.join(found.path)}", flush=True)
    return 1 if found.broken else 0


if __name__ == "__main__":
    sys.exit(main())
