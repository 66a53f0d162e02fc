"""What the tests of trees share."""

import pytest

from supervise import ActorSupervisor, RestartPolicy, Start, Subscribe
from tests.tree.actors import PATIENCE_S, Ear, Parts


@pytest.fixture
def parts():
    return Parts()


@pytest.fixture
def ear():
    with Ear() as found:
        yield found


@pytest.fixture
def grow(ear):
    """Start a tree about which `ear` is told, wait until it has started, and stop it at the end of the test."""
    trees = []

    def grow(*children, wait=True, **more):
        more = {"name": "tree", "restart_policy": RestartPolicy(backoff=0.0)} | more
        tree = ActorSupervisor.start(children=children, **more)
        trees.append(tree)
        tree.ask(Subscribe(ref=ear.ref), timeout=PATIENCE_S)
        if wait:
            tree.ask(Start(), timeout=PATIENCE_S)
        return tree

    yield grow
    for tree in reversed(trees):
        tree.stop(timeout=PATIENCE_S)


@pytest.fixture
def crash_by(monkeypatch):
    """Make every tree of this process crash at its next message, by an error."""

    def crash_by(error):
        def fail(*_):
            raise error

        monkeypatch.setattr("supervise._tree.supervisor.decide", fail)

    return crash_by
