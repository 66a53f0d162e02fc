"""Pickling, by cloudpickle, of calls that a new interpreter cannot import.

Such calls come from cells or prompts, or are lambdas or closures.
"""

from __future__ import annotations

import io
import os
from collections import ChainMap
from functools import partial
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

INSTALL = "pip install 'supervise-gang[pickle]'"
"""The command that installs cloudpickle."""


def is_installed() -> bool:
    """Return whether cloudpickle can be imported."""
    from importlib import util

    return util.find_spec("cloudpickle") is not None


def dump(call: object, file: io.BytesIO) -> None:
    """Pickle a call. Objects that only this process can import are pickled by value.

    Queues, locks and connections are pickled as for a child of multiprocessing.

    Raises:
        ImportError: cloudpickle is not installed.
        Exception: The call cannot be pickled.
    """
    from multiprocessing import reduction

    import cloudpickle

    of_children: Any = reduction.ForkingPickler(io.BytesIO())
    table = cloudpickle.Pickler.dispatch_table
    both = ChainMap({CodeType: partial(_reduced_code, table[CodeType])}, table, of_children.dispatch_table)
    # The pickler reads the table when it is made
    type("Pickler", (cloudpickle.Pickler,), {"dispatch_table": both})(file).dump(call)


def _reduced_code(reduce: Callable[[CodeType], tuple[Any, ...]], code: CodeType) -> tuple[Any, ...]:
    """Pickle a code object as cloudpickle does, with its file name and source, for tracebacks in the rank."""
    import linecache

    make, args = reduce(code)[:2]
    source = [] if os.path.exists(code.co_filename) else linecache.getlines(code.co_filename)  # a cell has no file
    return _code, (make, args, code.co_filename, tuple(source))


def _code(make: Callable[..., CodeType], args: tuple[Any, ...], filename: str, source: tuple[str, ...]) -> CodeType:
    """Return a code object in the rank, and keep the source of the code for tracebacks."""
    import linecache

    if source and filename not in linecache.cache:
        linecache.cache[filename] = sum(map(len, source)), None, list(source), filename
    return make(*args).replace(co_filename=filename)


def dump_without_main(call: object, file: io.BytesIO) -> None:
    """Pickle a call that refers to nothing in the main module, as for a child of multiprocessing.

    Raises:
        PicklingError: The call refers to a function or a class of the main module.
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
