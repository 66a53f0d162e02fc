"""Functions that ranks of the tests run."""

import os
import signal
import sys

from supervise import notify


def product(factor: int) -> dict[str, int]:
    """Return a value that tells the rank."""
    print("product of", os.environ["RANK"], flush=True)
    return {"product": int(os.environ["RANK"]) * factor}


def failing() -> None:
    """Raise on rank 3."""
    if os.environ["RANK"] == "3":
        raise ValueError("the 7th shard is empty")
    os.read(os.open("/proc/self/fd/0", os.O_RDONLY), 1)


def unready() -> None:
    """Become ready, and wait for a signal; rank 3 of a restart fails instead."""
    if os.environ["RANK"] == "3" and os.environ["SUPERVISE_EPOCH"] != "0":
        print("no checkpoint", file=sys.stderr)
        sys.exit(7)
    notify(ready=True)
    signal.pause()


def reporting() -> None:
    """Report ten times the rank as the step, become ready, and wait for a signal."""
    rank = int(os.environ["RANK"])
    notify(step=10 * rank, status=f"epoch of {rank}")
    notify(ready=True)
    signal.pause()
