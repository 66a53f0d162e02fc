"""The small families: everything of the contract that is not the end of a gang. Each is ``(library, folder) -> JSON``.

A name that begins with ``differs.`` is a deliberate difference: `test_differences.py` says what both do.
"""

import importlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.compat.normal import Normal

MODULES = ("words", "failing", "recording", "streams", "contexts", "replaced", "differing")

Family = Callable[[ModuleType, Path], Any]


@cache
def _all() -> dict[str, Family]:
    found: dict[str, Family] = {}
    for name in MODULES:
        module = importlib.import_module(f"tests.compat.families_{name}")
        found |= {
            f"{'differs' if name == 'differing' else name}.{key}": value
            for key, value in vars(module).items()
            if callable(value) and getattr(value, "is_family", False)
        }
    return found


def names() -> list[str]:
    """Return the ids of all families."""
    return list(_all())


def observe(name: str, lib: ModuleType, folder: str) -> Any:
    """Run one family, and return what was observed."""
    return Normal(folder, {}).any(_all()[name](lib, Path(folder)))
