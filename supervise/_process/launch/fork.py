"""Fork of a host that has other threads, as in `multiprocessing`."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def fork() -> int:
    """Fork; return 0 in the child, and the pid of the child in the parent.

    The child keeps the host's resource tracker. If it had a tracker of its own, that tracker would unlink the host's
    `SharedMemory` at the exit of the child. From Python 3.14 on, a child loses the host's tracker unless the forking
    thread sets `preserve_fd`.
    """
    if sys.version_info < (3, 14):
        return os.fork()
    from multiprocessing import resource_tracker

    intent: Any = resource_tracker._fork_intent  # noqa: SLF001 - there is no public way
    with _without_warning():
        intent.preserve_fd = True
        try:
            return os.fork()
        finally:
            intent.preserve_fd = False


@contextlib.contextmanager
def _without_warning() -> Iterator[None]:
    """Ignore Python's warning about a fork in a process with threads.

    From Python 3.15 on, the warning comes after the fork. If warnings are errors, the parent would get an exception
    instead of the child's pid. This function adds and removes only one filter, because other threads may change the
    list of filters, too.
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
        with contextlib.suppress(ValueError):  # another thread has restored an earlier list of filters
            warnings.filters.remove(ours)
