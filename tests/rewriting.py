"""A plugin of pytest: the assertions of the tests are rewritten once, and not by each worker of xdist at the same time.

Pytest rewrites every test file when it imports it first, and keeps the result. In a fresh checkout, that takes 7 s of
processor time, and as much in each of the workers, which all begin with the same file.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_sessionstart(session: pytest.Session) -> None:
    """Import all tests in one process, before xdist starts its workers, if they have not been rewritten here."""
    option = session.config.option
    if option.cases == "quarter" and option.numprocesses and not (sys.dont_write_bytecode or _rewritten()):
        words = ["-n", "0", "--collect-only", "-qq", "-p", "no:cacheprovider"]
        subprocess.run([sys.executable, "-m", "pytest", *words], cwd=session.config.rootpath, stdout=-3, check=False)


def _rewritten() -> bool:
    """Whether this Python has rewritten most files; a few that have changed since cost little."""
    tests = list(Path(__file__).parent.rglob("test_*.py"))
    kept = sum(any(file.parent.glob(f"__pycache__/{file.stem}.{sys.implementation.cache_tag}-*")) for file in tests)
    return kept > len(tests) / 2
