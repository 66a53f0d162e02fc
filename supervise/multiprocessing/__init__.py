"""PyTorch's ``torch.multiprocessing``, the part about processes, without PyTorch.

The module has every name of the standard library's `multiprocessing` (`Queue`, `Process`, `get_context`, ...),
unchanged. `spawn` and `start_processes` start their processes with `supervise`.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing import *  # noqa: F403 - the standard library's own list of names

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
