"""Named pipes between a test and its processes."""

import pytest

from tests.processes.gangs import Fifo


@pytest.fixture
def ear(tmp_path):
    """Where processes say lines."""
    fifo = Fifo(tmp_path / "ear")
    yield fifo
    fifo.close()


@pytest.fixture
def gate(tmp_path):
    """Where processes wait for words."""
    fifo = Fifo(tmp_path / "gate")
    yield fifo
    fifo.close()
