"""Every order of events around the core, for up to two ranks: no promise is broken, and no path fails to end."""

import pytest

from tests.model.planted import PLANTED, PLANTED_IN_BATCHES, PLANTED_IN_HEALTH, PLANTED_IN_LIVES
from tests.model.search import Setting, search

pytestmark = pytest.mark.timeout(900)  # a search computes for up to a minute, and shares its processor with four others

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


SHORT = "two ranks, one after the other"
"""The others search for four to nine seconds each."""


@pytest.mark.parametrize(
    "name", [name if name == SHORT else pytest.param(name, marks=pytest.mark.stress) for name in SETTINGS]
)
def test_every_order_of_events_keeps_every_promise(name):
    """To the fixpoint: no state that can be reached is left out."""
    found = search(SETTINGS[name])
    assert not found.broken, f"{found.broken}, by: {', '.join(found.path)}"
    assert found.states > 1_000, "the search has hardly begun"


ONE, REST = "one_for_one", "rest_for_one"
LIVES = {
    "one rank, requests": Setting(nprocs=1, tails=0, asks=1, closes=POLITE_OR_NOT, requests=2),
    "one rank alone": Setting(nprocs=1, max_restarts=2, tails=0, asks=1, closes=POLITE_OR_NOT, strategy=ONE),
    "without a policy": Setting(nprocs=2, tails=0, asks=1, closes=("close, 9 s",), strategy=REST),
    "one for one": Setting(nprocs=2, max_restarts=1, tails=0, asks=0, strategy=ONE),
    "rest for one": Setting(nprocs=2, max_restarts=1, tails=0, asks=0, strategy=REST),
    "one for one, a close": Setting(
        nprocs=2, max_restarts=1, tails=0, asks=1, closes=POLITE_OR_NOT, strategy=ONE, window=1
    ),
    "rest for one, a close": Setting(
        nprocs=2, max_restarts=1, tails=0, asks=1, closes=POLITE_OR_NOT, strategy=REST, window=1
    ),
    "all, a request": Setting(nprocs=2, max_restarts=1, tails=0, asks=0, requests=1, window=1),
    "all, two requests": Setting(nprocs=1, max_restarts=1, tails=0, asks=0, requests=2),
    "all, two requests of two": Setting(nprocs=2, max_restarts=1, tails=0, asks=0, requests=2, window=1),
    "rest for one, a request": Setting(nprocs=2, max_restarts=1, tails=0, asks=0, requests=1, strategy=REST, window=1),
    "kinds": Setting(nprocs=2, max_restarts=1, tails=0, asks=0, strategy=REST, kinds=("permanent", "temporary")),
    "kinds, all": Setting(nprocs=2, max_restarts=2, tails=0, asks=0, kinds=("transient", "temporary")),
    "kinds, all, a request": Setting(
        nprocs=2, max_restarts=1, tails=0, asks=0, requests=1, kinds=("transient", "temporary"), window=1
    ),
    "kinds, a request": Setting(
        nprocs=2, max_restarts=1, tails=0, asks=0, requests=1, kinds=("permanent", "temporary"), strategy=ONE, window=1
    ),
}
HEALTH = {
    "ready": Setting(nprocs=1, tails=0, asks=1, closes=POLITE_OR_NOT, notify=True, hangs=1),
    "ready, all": Setting(nprocs=2, tails=0, asks=0, notify=True, hangs=1, window=1),
    "ready, all again": Setting(nprocs=2, max_restarts=1, tails=0, asks=0, notify=True, hangs=1, window=1),
    "hangs": Setting(nprocs=2, tails=0, asks=1, closes=POLITE_OR_NOT, hangs=1),
    "hangs, one for one": Setting(nprocs=2, max_restarts=1, tails=0, asks=0, strategy=ONE, hangs=2, window=1),
    "ready, one for one": Setting(nprocs=2, max_restarts=1, tails=0, asks=0, strategy=ONE, notify=True, window=1),
    "ready, rest for one": Setting(
        nprocs=2, max_restarts=1, tails=0, asks=0, strategy=REST, notify=True, hangs=1, window=1
    ),
    "ready, without a policy": Setting(nprocs=2, tails=0, asks=0, strategy=REST, notify=True, hangs=1, window=1),
    "ready, requests": Setting(nprocs=1, tails=0, asks=0, notify=True, hangs=1, requests=2),
    "ready, kinds": Setting(
        nprocs=2, max_restarts=1, tails=0, asks=0, strategy=ONE, kinds=("permanent", "temporary"), notify=True, hangs=1
    ),
}
QUICK = (
    *("kinds, all", "kinds", "one rank alone", "one for one", "rest for one"),
    *("one rank, requests", "all, two requests", "without a policy"),
)
"""In order of cost, since the search for a planted bug ends with the first that finds it."""
HEALTHY = ("ready", "ready, requests", "ready, one for one")
SICK = ("ready, all", "hangs")
"""Longer searches; the others of `HEALTH` are searched by ``python -m tests.model --health``."""
LONGER = ("one for one, a close", "kinds, all, a request", "all, a request")
"""The others are searched by ``python -m tests.model --lives``."""


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.stress) for name in LONGER)])
def test_every_order_of_events_around_single_restarts_keeps_every_promise(name):
    """Strategies, restart kinds and requests: to the fixpoint."""
    found = search(LIVES[name])
    assert not found.broken, f"{found.broken}, by: {', '.join(found.path)}"
    assert found.states > 300, "the search has hardly begun"


@pytest.mark.parametrize("name", [*HEALTHY, *(pytest.param(name, marks=pytest.mark.stress) for name in SICK)])
def test_every_order_of_events_around_readiness_and_hangs_keeps_every_promise(name):
    """To the fixpoint."""
    found = search(HEALTH[name])
    assert not found.broken, f"{found.broken}, by: {', '.join(found.path)}"
    assert found.states > 300, "the search has hardly begun"


@pytest.mark.stress  # it tests the search
@pytest.mark.parametrize("bug", PLANTED_IN_HEALTH, ids=lambda bug: bug.__name__)
def test_a_bug_that_is_planted_in_readiness_is_found(bug):
    with bug():
        assert any(search(HEALTH[name]).broken for name in HEALTHY)


@pytest.mark.stress  # it tests the search
@pytest.mark.parametrize("bug", PLANTED_IN_LIVES, ids=lambda bug: bug.__name__)
def test_a_bug_that_is_planted_in_single_restarts_is_found(bug):
    with bug():
        assert any(search(LIVES[name]).broken for name in QUICK)


@pytest.mark.stress  # it tests the search
@pytest.mark.parametrize("bug", PLANTED_IN_BATCHES, ids=lambda bug: bug.__name__)
def test_a_bug_that_is_planted_in_batches_is_found(bug):
    """A batch takes over ranks in the longer of the two settings."""
    with bug():
        assert any(search(LIVES[name]).broken for name in ("one rank, requests", "rest for one, a request"))


@pytest.mark.stress  # it tests the search
@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug):
    """A search that finds nothing proves something only if it would find this."""
    about_restarts = "restart" in bug.__name__ or "backoff" in bug.__name__
    with bug():
        assert search(SETTINGS["one rank, two restarts" if about_restarts else "two ranks"]).broken
