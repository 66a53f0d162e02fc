"""Every order of events around the core of a tree: no promise is broken, and no path fails to end."""

import itertools
from typing import get_args

import pytest

from supervise.restarts import Strategy
from tests.model.tree_planted import TREE_PLANTED
from tests.model.tree_search import TreeSetting, search_tree

pytestmark = pytest.mark.timeout(300)  # a search computes for up to four seconds, those of the stress tests for 15

STRATEGIES = get_args(Strategy)
SETTINGS = {
    "two children, an ask": {"kinds": ("permanent", "temporary"), "max_restarts": 1},
    "three children": {"kinds": ("permanent", "temporary", "transient"), "max_restarts": 1, "asks": 0},
}
LARGER = {
    "two restarts": {},
    "two restarts, other kinds": {"kinds": ("permanent", "temporary")},
    "starts that are ignored, no backoff": {"ignores": True, "kinds": ("transient", "permanent"), "backoff": 0.0},
}
LARGEST = {"two asks": {"asks": 2}}
"""Half a million states each: searched by ``python -m tests.model --trees``."""


QUICK = {(strategy, "three children") for strategy in STRATEGIES} | {("rest_for_one", "two children, an ask")}


@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        pytest.param(*each, marks=() if each in QUICK else pytest.mark.stress)
        for each in itertools.product(STRATEGIES, SETTINGS | LARGER)
    ],
)
def test_every_order_of_events_keeps_every_promise_of_a_tree(strategy, name):
    """To the fixpoint: no state that can be reached is left out."""
    found = search_tree(TreeSetting(strategy=strategy, **(SETTINGS | LARGER)[name]))
    assert not found.broken, f"{found.broken}, by: {', '.join(found.path)}"
    assert found.states > 1_000, "the search has hardly begun"


@pytest.mark.stress  # it tests the search
@pytest.mark.parametrize("bug", TREE_PLANTED, ids=lambda bug: bug.__name__)
def test_a_bug_that_is_planted_in_a_tree_is_found(bug):
    """A search that finds nothing proves something only if it would find this."""
    strategy = "one_for_one" if bug.__name__.startswith("one_for_one") else "rest_for_one"
    with bug():
        assert search_tree(TreeSetting(strategy=strategy, kinds=("permanent", "temporary"))).broken
