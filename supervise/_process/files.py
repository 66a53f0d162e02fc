"""Memory files, and descriptors with numbers above those of the standard streams."""

from __future__ import annotations

import fcntl
import os

LEAST_BYTES = 64 * 1024
"""Least size of a buffer that gets pages of its own in the file. A smaller one stays within the pickle of a value."""


def anonymous_file(name: str) -> int:
    """Return the descriptor of a new empty memory file; the caller closes it.

    Raises:
        OSError: The file cannot be made, or no descriptor is left.
    """
    return clear_of_stdio(os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))


def file_of(name: str, *parts: bytes) -> int:
    """Return the descriptor of a new memory file that holds `parts`, positioned at the start of the file.

    The caller closes the descriptor.

    Raises:
        OSError: The file cannot be made or written.
    """
    fd = anonymous_file(name)
    try:
        for part in parts:
            write_all(fd, part)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def clear_of_stdio(fd: int, least: int = 3) -> int:
    """Return `fd`, moved to `least` or above if necessary, because lower numbers get another meaning in a worker."""
    if fd >= least:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write the whole of `data`."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def close(*fds: int | None) -> None:
    """Close the descriptors that are not None."""
    for fd in fds:
        if fd is not None:
            os.close(fd)
