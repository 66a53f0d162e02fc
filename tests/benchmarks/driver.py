"""One measurement in a process of its own: does a task, more than once, and writes what it measured as JSON.

Spawned workers import this module again, so it imports next to nothing by itself.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing itself takes 3 ms
if TYPE_CHECKING:
    from typing import Any

    from tests.benchmarks.job import Figures

_TOO_LONG_S = 20.0
"""A first run that took longer is not repeated."""


def main(request: str, out: str) -> None:
    """Do what `request` (JSON) says; write ``{"runs": [figures, ...]}``, ``{"absent": why}`` or ``{"error": what}``."""
    import json
    import traceback
    from pathlib import Path

    from tests.benchmarks.job import Unsupported

    try:
        answer: dict[str, Any] = {"runs": _measure(**json.loads(request))}
    except Unsupported as why:
        answer = {"absent": str(why)}
    except BaseException as error:  # whatever it is, the other contenders go on
        traceback.print_exc()
        answer = {"error": f"{type(error).__name__}: {error}"}
    Path(out).write_text(json.dumps(answer), encoding="utf-8")


def _measure(contender: str, task: str, params: dict[str, Any], again: int, budget_s: float) -> list[Figures]:
    """Run the task once, which is the cold run, and then up to `again` times, as long as `budget_s` lasts."""
    import time

    from tests.benchmarks import contenders, tasks

    _allow_files(params.get("nprocs", 1))
    rival, run = contenders.load(contender), tasks.load(task)
    begun_s, runs = time.monotonic(), [run(rival, **params)]
    first_s = time.monotonic()
    if first_s - begun_s > _TOO_LONG_S:
        return runs
    while len(runs) <= again:
        runs.append(run(rival, **params))
        if time.monotonic() - first_s > budget_s:
            break
    return runs


def _allow_files(nprocs: int) -> None:
    """Raise the limit of open files if the gang needs it."""
    import resource

    from tests.benchmarks.job import Unsupported

    needed = 8 * nprocs + 100
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed or soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise Unsupported(f"the hard limit of open files is {hard}; {needed} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


if __name__ == "__main__":
    main(*sys.argv[1:])
