"""PyTorch's ``torch.multiprocessing``, the part about processes, without PyTorch.

The module has every name of the standard library's `multiprocessing` (`Queue`, `Process`, `get_context`, ...),
unchanged. `spawn` and `start_processes` start their processes with `supervise`. Where PyTorch is installed, the names
that concern tensors, such as `set_sharing_strategy`, are those of PyTorch.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
from multiprocessing import *  # noqa: F403 - the standard library's own list of names
from typing import Any

from supervise.multiprocessing._rank import living
from supervise.multiprocessing.spawn import (
    ENV_VAR_PARALLEL_START,
    ProcessContext,
    ProcessException,
    ProcessExitedException,
    ProcessRaisedException,
    SpawnContext,
    spawn,
    start_processes,
)


def active_children() -> list[Any]:  # type: ignore[no-redef]  # in place of that of the standard library
    """Return the processes of this process that have not ended: those of `spawn`, and those of `multiprocessing`."""
    return [*living(), *multiprocessing.active_children()]


__all__ = [
    "ENV_VAR_PARALLEL_START",
    "ProcessContext",
    "ProcessException",
    "ProcessExitedException",
    "ProcessRaisedException",
    "SpawnContext",
    "spawn",
    "start_processes",
]
__all__ += multiprocessing.__all__

_OF_TENSORS = ("get_all_sharing_strategies", "get_sharing_strategy", "set_sharing_strategy", "reductions")


def __getattr__(name: str) -> Any:
    """Return a name that concerns tensors, such as `set_sharing_strategy`, from PyTorch."""
    if name not in _OF_TENSORS or importlib.util.find_spec("torch") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("torch.multiprocessing"), name)
