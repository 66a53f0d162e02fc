"""A store of PyTorch that rank 0 hosts, which returns before the others have used it for the last time."""

import pytest

from tests.clients.torchrun import PATIENCE_S
from tests.ports import free_port

pytestmark = pytest.mark.timeout(2 * PATIENCE_S)


@pytest.mark.parametrize("kind", ["spawn", "fork"])
@pytest.mark.parametrize("agent", ["theirs", "ours"])
def test_a_store_outlives_the_function_of_its_rank(clients, kind, agent):
    """As with PyTorch: the process of rank 0 lives until rank 1 has returned, too. With both agents."""
    client = clients.start("store.py", kind, agent, STORE_PORT=str(free_port()))
    assert client.end() == 0, client.told()
    assert client.stdout.splitlines()[-1] == "[(0, 'hosted'), (1, 'used 1, exited False')]", client.told()
