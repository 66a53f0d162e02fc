"""Memory files, and descriptors with numbers above those of the standard streams."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

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
    except OSError as error:
        os.close(fd)
        raise explained(error) from None
    except BaseException:
        os.close(fd)
        raise
    return fd


def explained(error: OSError) -> OSError:
    """Return the error of a write to a memory file, with the limit that a user does not expect to hold there."""
    if error.errno != errno.EFBIG:
        return error
    limit = "the limit of file sizes (RLIMIT_FSIZE, ulimit -f) holds for arguments and return values, too"
    return OSError(error.errno, f"{os.strerror(error.errno)}: {limit}")


def clear_of_stdio(fd: int, least: int = 3) -> int:
    """Return `fd`, moved to `least` or above if necessary, because lower numbers get another meaning in a worker."""
    if fd >= least:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)
    finally:
        os.close(fd)


@contextmanager
def stdio_taken() -> Iterator[None]:
    """Open those of the descriptors 0 to 2 that are closed, so that no other new descriptor gets their numbers.

    multiprocessing passes the number of stderr and that of a new pipe to its processes, and fails if both are the same.

    Raises:
        OSError: No descriptor is left.
    """
    taken: list[int] = []
    try:
        while not taken or taken[-1] < 3:
            taken.append(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
        close(taken.pop())
        yield
    finally:
        close(*taken)


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
