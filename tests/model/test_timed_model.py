"""Every order of events around the core while time passes: restarts come when the policy says so, and as often."""

import re
from dataclasses import replace

import pytest

from tests.model.planted_time import PLANTED_IN_THE_TIME_OF_TREES, PLANTED_IN_TIME
from tests.model.search import Setting, search
from tests.model.tree_search import TreeSetting, search_tree

pytestmark = pytest.mark.timeout(240)  # a search computes for up to ten seconds, and machines are busy

ONE, REST, CLOSE = "one_for_one", "rest_for_one", ("close, 9 s",)
SHORT = {
    "all, no window": Setting(nprocs=1, max_restarts=2, tails=0, asks=0, failures=4, uncounted=True),
    "all, a window": Setting(nprocs=1, max_restarts=1, tails=0, asks=1, closes=CLOSE, failures=3, within=1.5),
    "no backoff": Setting(
        nprocs=1, max_restarts=1, tails=0, asks=0, failures=3, within=1.5, backoff=0.0, uncounted=True
    ),
    "one for one": Setting(
        nprocs=1, max_restarts=2, tails=0, asks=1, closes=CLOSE, failures=3, within=3.5, uncounted=True, strategy=ONE
    ),
}
"""A second and less each."""
LONG = {
    "all, longer": Setting(
        nprocs=1, max_restarts=2, tails=0, asks=1, closes=CLOSE, failures=3, within=3.5, uncounted=True
    ),
    "all of two": Setting(nprocs=2, max_restarts=1, tails=0, asks=0, failures=3, within=1.5, uncounted=True),
    "one for one of two": Setting(nprocs=2, max_restarts=2, tails=0, asks=0, failures=3, within=1.5, strategy=ONE),
    "rest for one of two": Setting(nprocs=2, max_restarts=2, tails=0, asks=0, failures=3, within=1.5, strategy=REST),
}
TIMED = SHORT | LONG
LARGEST = {
    "all, four failures": replace(LONG["all, longer"], failures=4),
    "one for one of two, a longer window": replace(LONG["one for one of two"], within=3.5),
    "rest for one of two, a longer window": replace(LONG["rest for one of two"], within=3.5),
}
"""A hundred thousand states each: searched by ``python -m tests.model --time``."""
TREES = {
    "no window": TreeSetting(strategy=ONE, kinds=("transient",), max_restarts=3, asks=0, failures=4),
    "one for one": TreeSetting(strategy=ONE, asks=0, failures=3, within=2.5),
    "one for all": TreeSetting(strategy="one_for_all", max_restarts=1, asks=0, failures=3, within=1.5),
    "rest for one": TreeSetting(strategy=REST, asks=0, failures=3, within=1.5),
}
LARGER_TREES = {
    "one for one, longer": TreeSetting(strategy=ONE, asks=0, failures=3, within=3.5),
    "one for all, longer": TreeSetting(strategy="one_for_all", asks=0, failures=3, within=2.5),
    "rest for one of three": TreeSetting(
        strategy=REST, kinds=("transient", "temporary", "transient"), asks=0, failures=3, within=2.5
    ),
}


@pytest.mark.parametrize("name", [*SHORT, *(pytest.param(name, marks=pytest.mark.stress) for name in LONG)])
def test_restarts_come_at_the_times_of_the_policy_in_every_order_of_events(name):
    """To the fixpoint: the delay, the row that a stable life ends, the window, and the codes that do not count."""
    found = search(TIMED[name])
    assert not found.broken, f"{found.broken}, by: {', '.join(found.path)}"
    assert found.states > 500, "the search has hardly begun"


@pytest.mark.stress  # it tests the search
@pytest.mark.parametrize("bug", PLANTED_IN_TIME, ids=lambda bug: bug.__name__)
def test_a_bug_that_is_planted_in_the_time_of_restarts_is_found(bug):
    """By the invariant that it breaks."""
    name, said = PLANTED_IN_TIME[bug]
    with bug():
        assert re.fullmatch(said, search(TIMED[name]).broken)


@pytest.mark.parametrize("name", [*TREES, *(pytest.param(name, marks=pytest.mark.stress) for name in LARGER_TREES)])
def test_restarts_of_a_tree_come_at_the_times_of_the_policy_in_every_order_of_events(name):
    """To the fixpoint: the delay by the restarts in the window, and a backoff that another one replaces."""
    found = search_tree((TREES | LARGER_TREES)[name])
    assert not found.broken, f"{found.broken}, by: {', '.join(found.path)}"
    assert found.states > 100, "the search has hardly begun"


@pytest.mark.stress  # it tests the search
@pytest.mark.parametrize("bug", PLANTED_IN_THE_TIME_OF_TREES, ids=lambda bug: bug.__name__)
def test_a_bug_that_is_planted_in_the_time_of_trees_is_found(bug):
    """By the invariant that it breaks."""
    name, said = PLANTED_IN_THE_TIME_OF_TREES[bug]
    with bug():
        assert re.fullmatch(said, search_tree(TREES[name]).broken)
