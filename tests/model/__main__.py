"""Search larger gangs than the tests do: ``python -m tests.model --ranks 3``.

With three ranks most settings have 350 000 to 620 000 states; each takes one and a half to three minutes of processor
time and up to 0.5 GB. "told late" is the exception: it has more than two million states, takes gigabytes, and has not
been searched to its end. It comes last; ``--only`` chooses settings by a part of their name, such as "a restart".
"""

import argparse
import sys
import time
from dataclasses import replace

from tests.model.search import search
from tests.model.test_model import SETTINGS


def main() -> int:
    """Search every setting of two ranks with more of them; 1 if a promise is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.model")
    parser.add_argument("--ranks", type=int, default=3, metavar="N")
    parser.add_argument("--only", default="", metavar="TEXT", help="settings whose name holds this")
    given = parser.parse_args()
    broken = 0
    for name, setting in sorted(SETTINGS.items(), key=lambda each: each[1].late):
        if setting.nprocs != 2 or given.only not in name:
            continue
        began = time.monotonic()
        found = search(replace(setting, nprocs=given.ranks))
        took_s = time.monotonic() - began
        title = name.replace("two", str(given.ranks))
        print(f"{title}: {found.states:,} states, {found.steps:,} steps, {took_s:.0f} s", flush=True)
        if found.broken:
            broken += 1
            print(f"  {found.broken}, by: {', '.join(found.path)}", flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
