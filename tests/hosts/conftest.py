"""Gangs over hosts that are processes of this machine; each is ended behind its test."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.hosts.gangs import Gang


@pytest.fixture
def gangs() -> Iterator[Any]:
    """Return a maker of gangs, with the arguments of `Gang`."""
    made: list[Gang] = []

    def make(*args: Any, **settings: Any) -> Gang:
        made.append(Gang(*args, **settings))
        return made[-1]

    yield make
    for gang in made:
        gang.end()


def pytest_collection_modifyitems(items):
    """Leave out the tests with real host processes, whose pids may be reused on a busy machine, unless asked for."""
    import os

    import pytest

    if "SUPERVISE_HOSTS_PROCESSES" not in os.environ:
        skip = pytest.mark.skip(reason="real host processes: set SUPERVISE_HOSTS_PROCESSES=1 to run them")
        for item in items:
            if item.path.parent.name == "hosts" and item.path.name in ("test_gangs.py", "test_faults.py"):
                item.add_marker(skip)
