"""The contenders, by name. `floor` is the least that has to be done; ratios are to it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.benchmarks.job import Contender

_HOMES = {
    "floor": ("floor", "Floor"),
    "floor-session": ("floor", "FloorInSessions"),
    "supervise": ("ours", "Embedded"),
    "supervise-facade": ("ours", "Facade"),
    "pytorch": ("pytorch", "Elastic"),
    "pytorch-tuned": ("pytorch", "Tuned"),
    "torch-mp": ("pytorch", "Spawn"),
    "futures": ("executors", "Futures"),
    "loky": ("executors", "Loky"),
    "psutil": ("supervisors", "Psutil"),
    "honcho": ("supervisors", "Honcho"),
    "circus": ("circus", "Circus"),
}
NAMES = tuple(_HOMES)
OTHERS = frozenset({"pytorch", "pytorch-tuned", "torch-mp", "loky", "honcho", "circus"})
"""May run in another interpreter: that of ``--torch-python``."""


def load(name: str) -> Contender:
    """Return a contender. Nothing that it needs is imported before it makes its first gang."""
    module, kind = _HOMES[name]
    found: Contender = getattr(importlib.import_module(f"{__name__}.{module}"), kind)()
    return found
