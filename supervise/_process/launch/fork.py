"""Fork a process off a host that has other threads, as `multiprocessing` does it."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def fork() -> int:
    """Fork; return 0 in the child, and its pid in the parent.

    The child keeps the resource tracker: from Python 3.14 on, it loses the tracker at a fork unless this thread says
    otherwise, and a tracker of its own would destroy the host's `SharedMemory` when the child ends.
    """
    from multiprocessing import resource_tracker

    intent: Any = getattr(resource_tracker, "_fork_intent", None)  # None: every fork keeps the tracker
    with _without_warning():
        if intent is None:
            return os.fork()
        intent.preserve_fd = True
        try:
            return os.fork()
        finally:
            intent.preserve_fd = False


@contextlib.contextmanager
def _without_warning() -> Iterator[None]:
    """Have Python's warning about a fork beside threads ignored.

    From Python 3.15 on, a warning that is an error is raised in the parent when the child exists already: the parent
    would not learn its pid. One filter comes and goes, and no copy of all is put back: other threads may change them.
    """
    if sys.version_info < (3, 15):
        yield
        return
    import warnings

    message = r"This process \(pid=\d+\) is multi-threaded, use of fork"
    warnings.filterwarnings("ignore", message=message, category=DeprecationWarning)
    ours = warnings.filters[0]
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # another thread has put back what was there before
            warnings.filters.remove(ours)
