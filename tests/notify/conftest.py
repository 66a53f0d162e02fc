"""A host for each test."""

import os

import pytest

from tests.notify.host import Host


@pytest.fixture
def host():
    with Host(os.environ, watchdog_s=1.5) as made:
        yield made
