"""Functions through PyTorch's `elastic_launch`, unmodified: their values, restarts and failures."""

import pytest

from tests.clients.torchrun import PATIENCE_S

pytestmark = pytest.mark.timeout(2 * PATIENCE_S)


@pytest.mark.parametrize("kind", ["spawn", "fork"])
def test_functions(clients, kind):
    """Tensors come back, the large ones without a copy and views as views; a failure is raised as PyTorch's class."""
    client = clients.start("functions.py", kind)
    assert client.end() == 0, client.told()
    told = client.stdout.splitlines()
    assert told[:6] == ["hello 0 1", "mapped True", "shared True", "hello 1 1", "mapped True", "shared True"], (
        client.told()
    )
    assert told[6] == "failed 1 1 LookupError: rank 1 has no luck"
    assert "fail FAILED" in client.stdout
