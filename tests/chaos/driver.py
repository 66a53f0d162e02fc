"""Runs the state machine for a seed, and says what it did or what broke."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.chaos import places
from tests.chaos.machine import BrokenError, Chaos, Tally


def run(number: int, *, machines: int, steps: int = 20, shrink: bool = False) -> Tally:
    """Run so many machines of at most so many steps.

    Raises:
        BrokenError: An invariant did not hold. Says what was done, and how to do it again.
    """
    tally = Tally()
    tally.shrinking = shrink

    class Seeded(Chaos):
        pass

    Seeded.tally = tally
    how = settings(
        max_examples=machines,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    again = f"python -m tests.chaos --seed {number} --machines {machines} --steps {steps}"
    try:
        with places.small_disk(), silenced():
            run_state_machine_as_test(seed(number)(Seeded), settings=how)
    except Exception:
        if tally.broken is None:
            raise
    if tally.broken is not None:
        raise BrokenError(f"{tally.broken}\nin machine {tally.machines}; again: {again}") from None
    return tally


@contextmanager
def silenced() -> Iterator[None]:
    """Send to nowhere what ranks without log files write to this process's stdout and stderr."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, fd in enumerate(kept, 1):
            os.dup2(fd, number)
            os.close(fd)
        os.close(nowhere)
