"""Some minutes of chaos with fixed seeds; `python -m tests.chaos --minutes 60` has as much as you like of it."""

import pytest

from tests.chaos.driver import run


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("seed", "machines"), [(0, 6), *(pytest.param(seed, 20, marks=pytest.mark.stress) for seed in range(6))]
)
def test_e1_e3_k4_whatever_is_done_to_gangs_all_is_answered_told_once_and_nothing_is_left(seed, machines):
    """State machines with up to three gangs of real processes in each; `invariants` says what is looked at."""
    run(seed, machines=machines)
