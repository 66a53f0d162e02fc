"""The tasks that every contender does, by name. Each returns what it measured."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.benchmarks.job import Figures

_HOMES = {
    "launch": "launch",
    "returned": "launch",
    "first": "first",
    "command": "first",
    "feature": "features",
    "failure": "ends",
    "last_exit": "ends",
    "close": "ends",
    "close_stubborn": "ends",
    "tee": "streams",
    "shown": "streams",
    "flooded": "streams",
    "idle": "standing",
    "memory": "standing",
    "imported": "standing",
}


def load(name: str) -> Callable[..., Figures]:
    """Return the task, a function of the contender and the case's parameters."""
    found: Any = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    task: Callable[..., Figures] = found
    return task
