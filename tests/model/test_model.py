"""Every order of events around the core, for up to two ranks: no promise is broken, and no path fails to end."""

import pytest

from tests.model.planted import PLANTED
from tests.model.search import Setting, search

pytestmark = pytest.mark.timeout(240)  # a search computes for up to four seconds, and machines are busy

POLITE_OR_NOT = ("close, 9 s", "kill")

SETTINGS = {
    "one rank": Setting(nprocs=1),
    "one rank, told late": Setting(nprocs=1, late=True),
    "one rank, two restarts": Setting(nprocs=1, max_restarts=2, closes=POLITE_OR_NOT),
    "two ranks": Setting(nprocs=2, tails=0, closes=POLITE_OR_NOT),
    "two ranks, told late": Setting(nprocs=2, tails=0, closes=POLITE_OR_NOT, asks=1, late=True),
    "two ranks, a deadline": Setting(nprocs=2, tails=0, closes=("deadline", "close, 1 s")),
    "two ranks, one after the other": Setting(nprocs=2, tails=0, closes=POLITE_OR_NOT, asks=1, window=1),
    "two ranks, a restart": Setting(nprocs=2, max_restarts=1, tails=0, closes=POLITE_OR_NOT, asks=1),
    "two ranks, whose failures are heeded later": Setting(
        nprocs=2, tails=0, closes=POLITE_OR_NOT, asks=1, stop_on_failure=False
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.stress) if "late" in name.split() else name for name in SETTINGS]
)
def test_every_order_of_events_keeps_every_promise(name):
    """To the fixpoint: no state that can be reached is left out."""
    found = search(SETTINGS[name])
    assert not found.broken, f"{found.broken}, by: {', '.join(found.path)}"
    assert found.states > 1_000, "the search has hardly begun"


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug):
    """A search that finds nothing proves something only if it would find this."""
    about_restarts = "restart" in bug.__name__ or "backoff" in bug.__name__
    with bug():
        assert search(SETTINGS["one rank, two restarts" if about_restarts else "two ranks"]).broken
