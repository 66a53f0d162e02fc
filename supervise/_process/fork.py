"""Fork a process off a host that has other threads, as `multiprocessing` does it."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any


def fork() -> int:
    """Fork; return 0 in the child, and its pid in the parent.

    The child keeps the resource tracker: from Python 3.14 on, it loses the tracker at a fork unless this thread says
    otherwise, and a tracker of its own would destroy the host's `SharedMemory` when the child ends.
    """
    from multiprocessing import resource_tracker

    if sys.version_info >= (3, 15):
        _ignore_warning()
    intent: Any = getattr(resource_tracker, "_fork_intent", None)
    if intent is None:  # Python 3.13 and before: every fork keeps the tracker
        return os.fork()
    intent.preserve_fd = True
    try:
        return os.fork()
    finally:
        intent.preserve_fd = False


def _ignore_warning() -> None:
    """Have the warning about a fork beside threads ignored, for this module alone.

    From Python 3.15 on, a warning that is an error is raised in the parent when the child exists already: the parent
    would not learn its pid. A filter that is first already is left alone, since a change resets what was warned once.
    """
    if _last_filters != warnings.filters[:1]:
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"supervise\._process\.fork\Z")
        _last_filters[:] = warnings.filters[:1]


_last_filters: list[object] = []
