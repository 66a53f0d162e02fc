"""Threads, and what is said where no thread or process is to be had."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

_LIMITS = "a limit on processes and threads may be reached (ulimit -u, or pids.max of the control group)"


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


@contextmanager
def no_process(what: str) -> Iterator[None]:
    """Have a fork that the kernel refuses say what the process was for.

    Raises:
        OSError: There is no process to be had (EAGAIN).
    """
    try:
        yield
    except BlockingIOError as error:
        raise OSError(errno.EAGAIN, f"no process for {what}: {error.strerror}; {_LIMITS}") from error


def none_left(what: str, error: RuntimeError) -> OSError:
    """Return what to raise in place of the bare `RuntimeError` of a thread that could not be started."""
    return OSError(errno.EAGAIN, f"no thread for {what}: {error}; {_LIMITS}")
