"""Pickles of calls that a new interpreter cannot import: of cells, prompts, lambdas, closures. By cloudpickle."""

from __future__ import annotations

import io
from collections import ChainMap
from types import FunctionType
from typing import Any

INSTALL = "pip install 'supervise-gang[pickle]'"
"""The command that installs cloudpickle."""


def is_installed() -> bool:
    """Return whether cloudpickle can be imported."""
    from importlib import util

    return util.find_spec("cloudpickle") is not None


def dump(call: object, file: io.BytesIO) -> None:
    """Pickle a call, and what only this process can import by its value.

    Queues, locks and connections are pickled as for a child of multiprocessing.

    Raises:
        ImportError: cloudpickle is not installed.
        Exception: The call cannot be pickled.
    """
    from multiprocessing import reduction

    import cloudpickle

    of_children: Any = reduction.ForkingPickler(io.BytesIO())
    both = ChainMap({}, cloudpickle.Pickler.dispatch_table, of_children.dispatch_table)
    # The pickler reads the table when it is made
    type("Pickler", (cloudpickle.Pickler,), {"dispatch_table": both})(file).dump(call)


def dump_without_main(call: object, file: io.BytesIO) -> None:
    """Pickle a call that refers to nothing in the main module, as for a child of multiprocessing.

    Raises:
        PicklingError: It refers to a function or a class of the main module.
        Exception: The call cannot be pickled.
    """
    import pickle
    from multiprocessing import reduction

    class Pickler(reduction.ForkingPickler):
        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, (type, FunctionType)) and value.__module__ == "__main__":
                raise pickle.PicklingError(f"{value.__qualname__} is of the main module")
            return NotImplemented

    Pickler(file).dump(call)
