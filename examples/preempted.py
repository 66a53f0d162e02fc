"""A job that is preempted again and again, saves its state each time, and continues where it was.

    python examples/preempted.py --ranks 2 --preemptions 4

A preemption is a SIGTERM to one rank, as a scheduler sends it. The rank finishes its step, writes a checkpoint, and
exits with code 75 (EX_TEMPFAIL of sysexits.h: try again). The policy restarts it, and does not count that: only other
failures count toward `max_restarts`, which is 0 here. The result is that of a job that was never interrupted.

The same for a program, with `kill -TERM` of a rank by hand:

    supervise run -n 2 --strategy one_for_one --max-restarts 0 --uncounted-exit-codes 75 train.py
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

from supervise import RestartPolicy, WorkerReady, aio, notify

PREEMPTED = 75


def work(folder: Path, rank: int, steps: int) -> int:
    """Add the squares of some numbers, one a step: what a rank runs."""
    file, preempted = folder / f"{rank}.json", False

    def note(*_: object) -> None:
        nonlocal preempted
        preempted = True

    signal.signal(signal.SIGTERM, note)  # before the rank is ready: no preemption comes earlier
    first, total = json.loads(file.read_text()) if file.exists() else (0, 0)
    notify(ready=True, status=f"begins with step {first}")
    for step in range(first, steps):
        total += step * step
        if preempted:
            save(file, (step + 1, total))
            os._exit(PREEMPTED)
    return int(total)


def save(file: Path, state: tuple[int, int]) -> None:
    """Write a checkpoint, which is never torn: a rank may be killed at any moment."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps(state))
    new.replace(file)


async def run(folder: Path, ranks: int, steps: int, preemptions: int) -> None:
    """Run the job, and preempt one rank after the other as soon as it is ready."""
    policy = RestartPolicy(max_restarts=0, backoff=0.0, uncounted_exit_codes=frozenset({PREEMPTED}))
    gang = aio.Gang(
        name="job",
        entrypoint=work,
        args={rank: (folder, rank, steps) for rank in range(ranks)},
        ready="notify",
        strategy="one_for_one",
        restart_policy=policy,
    )
    events = gang.events()
    async with gang:
        async for event in events:
            if isinstance(event, WorkerReady) and preemptions:
                preemptions -= 1
                await gang.signal(signal.SIGTERM, {event.local_rank})
                print(f"life {event.attempt} of rank {event.local_rank} is preempted")
        result = await gang.wait()
    if result.is_failed():
        sys.exit(f"rank {result.root_cause} failed")
    counted = sum(restart.counted for restart in result.restarts)
    print(f"{result.restarts_total} restarts, {counted} of them counted")
    print("every rank has", *set(result.return_values.values()))


def main() -> None:
    """Run the job in a folder of its own."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3_000_000)
    parser.add_argument("--preemptions", type=int, default=4)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="preempted-") as folder:
        asyncio.run(run(Path(folder), given.ranks, given.steps, given.preemptions))


if __name__ == "__main__":
    main()
