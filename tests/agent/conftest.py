"""Runs the agent of supervise, and PyTorch's for comparison, with a Python that has PyTorch."""

import pytest

from tests.agent.agents import Agents
from tests.clients.conftest import torch_python  # noqa: F401 - a fixture


@pytest.fixture
def agents(torch_python, tmp_path):  # noqa: F811 - the fixture that is imported
    """Starts agents; none of them lives on after the test."""
    with Agents(torch_python, tmp_path) as found:
        yield found
