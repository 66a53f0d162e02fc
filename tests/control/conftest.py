from collections.abc import Iterator
from pathlib import Path

import pytest

from supervise import Start
from supervise.testing import FakeGang
from tests.control.raw import served
from tests.patience import PATIENCE_S


@pytest.fixture
def gang() -> Iterator[FakeGang]:
    """Two ranks that run."""
    with FakeGang(2) as gang:
        gang.supervisor.ask(Start(), timeout=PATIENCE_S)
        yield gang


@pytest.fixture
def path(tmp_path: Path, gang: FakeGang) -> Iterator[Path]:
    """The socket of the gang."""
    with served(gang.supervisor, tmp_path / "control.sock"):
        yield tmp_path / "control.sock"
