"""multiprocessing's fork server: started where that is safe, and what it says of the workers that it forks."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from supervise import _threads

_SERVER_S = 60.0
"""A fork server starts in a fraction of a second."""

_PRELOAD = ("supervise._process.child", "supervise._process.process_object", "pkgutil")
"""What every worker imports; `runpy` takes the last to run the main module."""


def ensure_server() -> None:
    """Have multiprocessing's fork server run. It inherits its starter's mask, and needs SIGCHLD to tell exits."""
    problems: list[BaseException] = []

    def begin() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        try:
            _run_server()
        except BaseException as error:
            problems.append(error)

    if signal.SIGCHLD not in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        _run_server()
        return
    thread = threading.Thread(target=begin, name="supervise-forkserver", daemon=True)
    _threads.start(thread, "the start of the fork server")
    thread.join(_SERVER_S)
    if thread.is_alive():
        msg = f"the fork server did not start within {_SERVER_S:.0f} s"
        raise TimeoutError(msg)
    if problems:
        raise problems[0]


def _run_server() -> None:
    """Have the fork server run. One that is started now imports what every worker would; the user's preload stays."""
    from multiprocessing import forkserver

    server: Any = forkserver._forkserver  # noqa: SLF001 - there is no public way to add to the list
    users = server._preload_modules  # noqa: SLF001
    server._preload_modules = [*users, *_PRELOAD]  # noqa: SLF001
    try:
        forkserver.ensure_running()
    finally:
        server._preload_modules = users  # noqa: SLF001


def check_room() -> None:
    """Take as many descriptors as a request to the fork server does, and give them back.

    Raises:
        OSError: There are too few.
    """
    taken: list[int] = []
    try:
        taken += os.pipe()
        taken += os.pipe()
    finally:
        for fd in taken:
            os.close(fd)


class ServerStatus:
    """What the fork server says of one child: its number first, at the end its exit code."""

    def __init__(self, fd: int) -> None:
        """Take over the descriptor to read from; it does not block."""
        self._fd = fd

    def fileno(self) -> int:
        """The descriptor that is readable when there is something new."""
        return self._fd

    def read(self) -> int | None:
        """Return the next number, None while there is none.

        Raises:
            EOFError: The server is gone and will not say.
        """
        try:
            data = os.read(self._fd, 8)  # written at once: eight bytes into an empty pipe
        except BlockingIOError:
            return None
        if len(data) < 8:
            raise EOFError
        return int.from_bytes(data, sys.byteorder, signed=True)

    @staticmethod
    def is_process(pid: int) -> bool:
        """Whether the server has this number. A new one is no parent of what its killed forerunner has forked."""
        from multiprocessing import forkserver

        return bool(pid == forkserver._forkserver._forkserver_pid)  # type: ignore[attr-defined]  # noqa: SLF001

    def close(self) -> None:
        """Let the descriptor go. Idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
