"""Anonymous files: memory where the kernel has it, otherwise a private temporary file."""

from __future__ import annotations

import fcntl
import os

from supervise._process import capability


def anonymous_file(name: str) -> int:
    """Return the descriptor of a new empty file that has no path; the caller closes it."""
    if capability.MEMFD:
        return clear_of_stdio(os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    import tempfile

    fd, path = tempfile.mkstemp(prefix=f"{name}-")
    os.unlink(path)
    return clear_of_stdio(fd)


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
