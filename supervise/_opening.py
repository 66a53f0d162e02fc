"""Open files to read in whose place another process may have put something else: a pipe, a link, a huge file."""

# The words use it, and a worker imports those: nothing but `os` and what is built in.

from __future__ import annotations

import errno
import os
import stat


def open_regular(path: str, *, follow: bool = False) -> int:
    """Open a regular file to read it; return the descriptor. Never waits: a named pipe has no writer, maybe for ever.

    What `path` is gets looked at after the open, since it can be replaced between a look and an open.

    Args:
        path: The file.
        follow: Whether `path` may be a symbolic link.

    Raises:
        OSError: It cannot be opened, is a symbolic link, or is not a regular file; ``filename`` names it.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    fd = os.open(path, flags if follow else flags | os.O_NOFOLLOW)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "not a regular file", path)


def read_regular(path: str, limit_bytes: int) -> tuple[bytes, int]:
    """Return what is in a regular file, and its modification time in nanoseconds.

    Args:
        path: The file.
        limit_bytes: Of a larger file, nothing is read.

    Raises:
        OSError: As `open_regular`, or it cannot be read.
        ValueError: It is larger than that.
    """
    fd = open_regular(path)
    try:
        found = os.fstat(fd)
        parts, left = [], limit_bytes + 1 if found.st_size <= limit_bytes else 0
        while left and (part := os.read(fd, left)):
            parts.append(part)
            left -= len(part)
        if not left:
            raise ValueError(f"it has more than {limit_bytes >> 20} MiB")
        return b"".join(parts), os.fstat(fd).st_mtime_ns
    finally:
        os.close(fd)


def is_mark(found: os.stat_result) -> bool:
    """Whether a regular file stands for a recorded exception whose text could not be written: its disk was full.

    The file is empty, which needs no block of the disk, and its time is that of the exception. The sticky bit tells it
    from an empty file that user code or another recorder has made.
    """
    return not found.st_size and bool(found.st_mode & stat.S_ISVTX)
