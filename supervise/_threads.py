"""Threads, and what is said where there is none to be had."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading


def start(thread: threading.Thread, what: str) -> None:
    """Start `thread`.

    Args:
        thread: Not started yet.
        what: What it is needed for, to be said in the error.

    Raises:
        OSError: There is no thread to be had (EAGAIN, as a fork has it).
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise none_left(what, error) from error


def none_left(what: str, error: RuntimeError) -> OSError:
    """Return what to raise in place of the bare `RuntimeError` of a thread that could not be started."""
    limits = "a limit on processes and threads may be reached (ulimit -u, or pids.max of the control group)"
    return OSError(errno.EAGAIN, f"no thread for {what}: {error}; {limits}")
