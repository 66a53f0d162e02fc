"""Lazy loading of names: a worker that imports one name does not load all modules."""

from __future__ import annotations

TYPE_CHECKING = False  # instead of importing typing into every worker
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def names(
    module: str, namespace: dict[str, Any], homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and the ``__dir__`` of a module.

    Args:
        module: Name of the module.
        namespace: Globals of the module; they cache each name that was loaded.
        homes: Name to the module of `supervise` that defines it. If the name differs there, a colon and that name
            follow. Empty for a submodule.
    """

    def load(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        import importlib

        if not home:
            return importlib.import_module(f"{module}.{name}")
        path, _, other = home.partition(":")
        namespace[name] = value = getattr(importlib.import_module(f"supervise.{path}"), other or name)
        return value

    return load, lambda: sorted({*namespace, *homes})
