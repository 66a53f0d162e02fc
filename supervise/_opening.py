"""Safe reading of files that another process may have replaced by a pipe, a link or a huge file."""

# A worker imports this module: only `os` and built-in modules.

from __future__ import annotations

import errno
import os
import stat


def open_regular(path: str, *, follow: bool = False) -> int:
    """Open a regular file for reading and return the descriptor. Never blocks, even if `path` is a named pipe.

    The file type is checked after the open, since another process can replace the file between a check and an open.

    Args:
        path: The file.
        follow: Whether `path` may be a symbolic link.

    Raises:
        OSError: The file cannot be opened, is a symbolic link, or is not a regular file; ``filename`` names it.
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
    """Return the content of a regular file, and its modification time in nanoseconds.

    Args:
        path: The file.
        limit_bytes: The largest size that is read.

    Raises:
        OSError: As for `open_regular`, or the file cannot be read.
        ValueError: The file is larger than the limit.
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
    """Return whether a file marks an exception whose text could not be written because the disk was full.

    The file is empty, so it needs no block of the disk; its modification time is that of the exception. The sticky bit
    distinguishes it from an empty file that user code or another recorder made.
    """
    return not found.st_size and bool(found.st_mode & stat.S_ISVTX)
