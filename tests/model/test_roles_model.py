"""Every order of events around a gang with roles: launches, services, and a close from the last role to the first."""

import pytest

from tests.model import planted_roles
from tests.model.planted_roles import PLANTED_IN_ROLES
from tests.model.search import Setting, search

pytestmark = pytest.mark.timeout(900)  # a search computes for some seconds, the longest for a minute; machines are busy
LONG = {"two roles", "side by side", "services side by side"}

IN_TURN = ("close in turn", "close in turn, 4 s", "kill")
ROLES = {
    "two roles": Setting(nprocs=2, tails=0, asks=1, closes=IN_TURN[:2], role_of=(0, 1)),
    "a service": Setting(nprocs=2, tails=0, asks=1, closes=IN_TURN[:1], role_of=(0, 1), services=frozenset({0})),
    "a role that is not ready": Setting(
        nprocs=2, tails=0, asks=0, role_of=(0, 1), services=frozenset({0}), notify=True
    ),
    "a service that restarts": Setting(
        nprocs=2,
        max_restarts=1,
        tails=0,
        asks=0,
        strategy="one_for_one",
        role_of=(0, 1),
        services=frozenset({0}),
    ),
}
SIDE_BY_SIDE = (frozenset[int](), frozenset[int]())
BACKWARDS = (frozenset({1}), frozenset[int]())
"""The first role of the file needs the second one."""
NEEDS = {
    "side by side": Setting(nprocs=2, tails=0, asks=1, closes=IN_TURN[:1], role_of=(0, 1), needs=SIDE_BY_SIDE),
    "backwards": Setting(nprocs=2, tails=0, asks=1, closes=IN_TURN[:2], role_of=(0, 1), needs=BACKWARDS),
    "backwards, not ready": Setting(nprocs=2, tails=0, asks=0, role_of=(0, 1), needs=BACKWARDS, notify=True),
    "backwards, rest for one": Setting(
        nprocs=2, max_restarts=1, tails=0, asks=0, strategy="rest_for_one", role_of=(0, 1), needs=BACKWARDS
    ),
    "side by side, rest for one": Setting(
        nprocs=2, max_restarts=1, tails=0, asks=0, strategy="rest_for_one", role_of=(0, 1), needs=SIDE_BY_SIDE
    ),
    "services side by side": Setting(
        nprocs=3, tails=0, asks=0, role_of=(0, 1, 2), services=frozenset({0, 1}), needs=(*SIDE_BY_SIDE, frozenset({0}))
    ),
    "a grace of its own": Setting(nprocs=2, tails=0, asks=1, closes=IN_TURN[:2], role_of=(0, 1), graces_s=((1, 2.0),)),
}
ROLES |= NEEDS
LARGER = {
    "two above one": Setting(
        nprocs=3,
        tails=0,
        asks=1,
        closes=IN_TURN[:1],
        role_of=(0, 1, 2),
        needs=(frozenset(), frozenset({0}), frozenset({0})),
    ),
    "a chain in another order": Setting(
        nprocs=3,
        tails=0,
        asks=1,
        closes=IN_TURN[:1],
        role_of=(0, 1, 2),
        needs=(frozenset({2}), frozenset({0, 2}), frozenset()),
    ),
    "a role that hangs": Setting(
        nprocs=2, tails=0, asks=0, role_of=(0, 1), services=frozenset({0}), notify=True, hangs=1
    ),
    "two roles, two closes": Setting(nprocs=2, tails=0, asks=2, closes=IN_TURN, role_of=(0, 1)),
    "three roles": Setting(nprocs=3, tails=0, asks=1, closes=IN_TURN[:1], role_of=(0, 1, 2)),
    "a role of two": Setting(nprocs=3, tails=0, asks=1, closes=IN_TURN[:1], role_of=(0, 1, 1)),
    "two services": Setting(nprocs=3, tails=0, asks=0, role_of=(0, 1, 2), services=frozenset({0, 1})),
    "a service, restarts and a close": Setting(
        nprocs=2,
        max_restarts=1,
        tails=0,
        asks=1,
        closes=IN_TURN[:1],
        strategy="one_for_one",
        role_of=(0, 1),
        services=frozenset({0}),
    ),
    "a service, all restart": Setting(
        nprocs=2, max_restarts=1, tails=0, asks=0, role_of=(0, 1), services=frozenset({0})
    ),
}
"""Searched by ``python -m tests.model --roles``."""


PLACES = {
    planted_roles.a_launch_ignores_a_need_that_is_not_launched_yet: "backwards",
    planted_roles.a_stop_signals_a_role_before_one_that_needs_it_is_gone: "backwards",
    planted_roles.a_role_that_nothing_needs_waits_for_another: "side by side",
}
"""Planted bugs that need another setting."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.stress) if n in LONG else n for n in ROLES])
def test_every_order_of_events_around_roles_keeps_every_promise(name):
    """To the fixpoint."""
    found = search(ROLES[name])
    assert not found.broken, f"{found.broken}, by: {', '.join(found.path)}"
    assert found.states > 300, "the search has hardly begun"


@pytest.mark.stress  # it tests the search
@pytest.mark.parametrize("bug", PLANTED_IN_ROLES, ids=lambda bug: bug.__name__)
def test_a_bug_that_is_planted_in_the_order_of_roles_is_found(bug):
    name = "a service that restarts" if "service" in bug.__name__ else "two roles"
    name = PLACES.get(bug, name)
    name = "a service" if "success" in bug.__name__ else name  # a close makes the difference
    with bug():
        assert search(ROLES[name]).broken
