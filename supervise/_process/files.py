"""Anonymous files in memory, and descriptors that stay clear of the standard streams."""

from __future__ import annotations

import fcntl
import os

LEAST_BYTES = 64 * 1024
"""A smaller buffer of a value travels within its pickle; a larger one has pages of its own in the file."""


def anonymous_file(name: str) -> int:
    """Return the descriptor of a new empty file that has no path; the caller closes it.

    Raises:
        OSError: It cannot be made, or no descriptor is left.
    """
    return clear_of_stdio(os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))


def file_of(name: str, *parts: bytes) -> int:
    """Return the descriptor of a new anonymous file that holds `parts`, at its start; the caller closes it.

    Raises:
        OSError: It cannot be made, or written.
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


def clear_of_stdio(fd: int) -> int:
    """Return `fd`, moved above 2 where stdin, stdout or stderr is closed: a worker's own streams go there."""
    if fd > 2:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write the whole of `data`."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def close(*fds: int | None) -> None:
    """Close those that are not None."""
    for fd in fds:
        if fd is not None:
            os.close(fd)
