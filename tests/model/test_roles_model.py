"""Every order of events around a gang with roles: launches, services, and a close from the last role to the first."""

import pytest

from tests.model.planted_roles import PLANTED_IN_ROLES
from tests.model.search import Setting, search

pytestmark = pytest.mark.timeout(240)  # a search computes for some seconds, and machines are busy

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
LARGER = {
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


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.stress) if n == "two roles" else n for n in ROLES])
def test_every_order_of_events_around_roles_keeps_every_promise(name):
    """To the fixpoint."""
    found = search(ROLES[name])
    assert not found.broken, f"{found.broken}, by: {', '.join(found.path)}"
    assert found.states > 300, "the search has hardly begun"


@pytest.mark.stress  # it tests the search
@pytest.mark.parametrize("bug", PLANTED_IN_ROLES, ids=lambda bug: bug.__name__)
def test_a_bug_that_is_planted_in_the_order_of_roles_is_found(bug):
    name = "a service that restarts" if "service" in bug.__name__ else "two roles"
    name = "a service" if "success" in bug.__name__ else name  # a close makes the difference
    with bug():
        assert search(ROLES[name]).broken
