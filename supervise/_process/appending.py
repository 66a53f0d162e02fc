"""Files that are written at their end: private to the user, and never somebody else's behind a link."""

from __future__ import annotations

import errno
import os
import stat

_STREAMS = ("/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/")
"""Links that the system makes: what is behind them is open in this process."""


def open_to_append(path: str) -> int:
    """Open `path` to write at its end, made private to the user if it is not there; return the descriptor.

    A file is never written through a symbolic link, which somebody may have planted to have another file
    written to. A link to a device or a pipe is followed, and so are the system's own, such as ``/dev/stdout``.

    Raises:
        OSError: It cannot be opened, or is a link to a file, be it one that is not there; nothing was made.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
    if path.startswith(_STREAMS):
        return os.open(path, flags)
    try:
        return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
    if leads_to_file(path):
        raise link_error(path)
    fd = os.open(path, flags)
    if stat.S_ISREG(os.fstat(fd).st_mode):  # changed meanwhile
        os.close(fd)
        raise link_error(path)
    return fd


def leads_to_file(link: str) -> bool:
    """Whether something written through `link` would end in a file, or make one."""
    try:
        return stat.S_ISREG(os.stat(link).st_mode)
    except FileNotFoundError:
        return True


def link_error(path: str) -> OSError:
    """Return the error that names a link in the place of a log."""
    return OSError(errno.ELOOP, "it is a symbolic link to another file, which is not written to", path)
