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
