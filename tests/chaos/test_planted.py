"""The chaos finds what it is for: each bug that is planted makes it fail, and it says why."""

import pytest

from tests.chaos import case, planted
from tests.chaos.driver import run
from tests.chaos.machine import BrokenError


@pytest.mark.stress
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a rank that is lost is never reaped
@pytest.mark.parametrize("bug", planted.PLANTS)
def test_a_planted_bug_is_found(monkeypatch, bug):
    """Within a few seeds; most of them within the first ten machines."""
    monkeypatch.setattr(case, "PATIENCE_S", 3.0)
    with planted.planted(bug), pytest.raises(BrokenError, match=planted.FINDS[bug]):
        _some_seeds()


def _some_seeds():
    for seed in range(6):
        run(seed, machines=30)
