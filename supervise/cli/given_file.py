"""Files that the user names on the command line: regular files, or pipes such as ``<(command)`` of a shell."""

from __future__ import annotations

import errno
import os
import stat


def read(path: str, limit_bytes: int) -> bytes:
    """Return the content of a file, at most one byte more than `limit_bytes`.

    A named pipe without a writer is refused, since its open would wait for one. A pipe of a shell has a writer, or its
    content, as soon as the command starts.

    Raises:
        OSError: The file cannot be read.
    """
    with open(path, "rb", opener=open_without_wait) as file:
        content = file.read(limit_bytes + 1)
        if not content and stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EPIPE, "the pipe is empty, and no process writes to it", path)
        return content


def open_without_wait(path: str, flags: int) -> int:
    """Open a file as an ``opener`` of `open` does, but never wait for the writer of a pipe."""
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
    os.set_blocking(fd, True)
    return fd
