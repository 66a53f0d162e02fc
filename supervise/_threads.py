"""Errors that name the purpose of a thread or process that the kernel refused to create."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

from supervise import _platform as platform

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

_LIMITS = "a limit on processes and threads may be reached (ulimit -u, or pids.max of the control group)"


def start(thread: threading.Thread, what: str) -> None:
    """Start `thread`.

    Args:
        thread: A thread that is not started yet.
        what: Purpose of the thread, for the error text.

    Raises:
        OSError: The thread cannot be created (EAGAIN, as for a fork).
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise none_left(what, error) from error


@contextmanager
def no_process(what: str) -> Iterator[None]:
    """Re-raise the error of a refused fork with the purpose of the process.

    Raises:
        OSError: The process cannot be created (EAGAIN).
    """
    try:
        yield
    except BlockingIOError as error:
        raise OSError(errno.EAGAIN, f"no process for {what}: {error.strerror}; {_LIMITS}") from error


def refused(number: int, reason: str) -> str:
    """Return why the kernel refused a launch; after EAGAIN with the limit that may be reached."""
    return f"{reason}; {_LIMITS}" if number == errno.EAGAIN and _LIMITS not in reason else reason


def none_left(what: str, error: RuntimeError) -> OSError:
    """Return the `OSError` to raise instead of the bare `RuntimeError` of a failed thread start."""
    return OSError(errno.EAGAIN, f"no thread for {what}: {error}; {platform.refused_thread() or _LIMITS}")
