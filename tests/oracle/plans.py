"""Random plans of histories, the same ones for the same seed."""

import random
from collections.abc import Iterator

from tests.model.neutral import Spec
from tests.oracle.histories import Attempt


def random_plans(seed: int, number: int) -> Iterator[Attempt]:
    """Yield plans of up to eight ranks; the longest have hundreds of events and dozens of restarts."""
    chance = random.Random(seed)
    for _ in range(number):
        nprocs = chance.randint(1, 8)
        policy = chance.choice([None, (chance.randrange(50), chance.choice([None, 1e-8, 1e-6]), 1.0)])
        spec = Spec(
            nprocs=nprocs,
            grace_s=chance.choice([0.0, 5.0]),
            window=chance.randint(1, nprocs),
            stop_on_failure=chance.random() < 0.7,
            policy=policy,
        )
        choices = [chance.randrange(2**20) for _ in range(chance.choice([50, 400]))]
        yield Attempt(spec, choices, chance.randrange(3), chance.random() < 0.5, chance.choice([0, 0, 40, 1_000]))
