"""Files that are written at their end: private to the user, and never somebody else's behind a link."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING

from supervise._folders import open_folder

if TYPE_CHECKING:
    from collections.abc import Callable

_STREAMS = ("/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/")
"""Links that the system makes: what is behind them is open in this process."""


def open_to_append(path: str) -> int:
    """Open `path` to write at its end, made private to the user if it is not there; return the descriptor.

    A file is never written through a symbolic link, which somebody may have planted to have another file
    written to. A link to a device is followed, and so are the system's own, such as ``/dev/stdout``. A named pipe
    without a reader is refused: opening it would wait for one.

    Raises:
        OSError: It cannot be opened, is a named pipe without a reader, or a link to a file, be it one that is not
            there; nothing was made. ``filename`` names it.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
    if path.startswith(_STREAMS):
        return os.open(path, flags)
    flags |= os.O_NONBLOCK | os.O_NOCTTY
    folder, name = os.path.split(path)
    try:
        at = open_folder(folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    try:
        fd = os.open(name, flags | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=at)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise _pipe_error(path) from error
        if error.errno != errno.ELOOP:
            raise OSError(error.errno, error.strerror, path) from error
        return _follow(path, os.readlink(name, dir_fd=at), flags)
    finally:
        os.close(at)
    return _writable(fd, path, stat.S_ISREG, stat.S_ISCHR, stat.S_ISFIFO)


def _follow(path: str, target: str, flags: int) -> int:
    """Open what a link leads to, if that is no file."""
    if target.startswith(_STREAMS):
        return os.open(path, flags & ~os.O_NONBLOCK)
    if leads_to_file(path):
        raise link_error(path)
    try:
        fd = os.open(path, flags)
    except OSError as error:
        raise _pipe_error(path) if error.errno == errno.ENXIO else error from error
    if stat.S_ISREG(os.fstat(fd).st_mode):  # changed meanwhile
        os.close(fd)
        raise link_error(path)
    return _writable(fd, path, stat.S_ISCHR)


def _writable(fd: int, path: str, *kinds: Callable[[int], bool]) -> int:
    """Return `fd`, which waits in a write from now on, if it is of one of these kinds; else close it and raise."""
    mode = os.fstat(fd).st_mode
    if not any(is_kind(mode) for is_kind in kinds):
        os.close(fd)
        raise _pipe_error(path)
    os.set_blocking(fd, True)
    return fd


def _pipe_error(path: str) -> OSError:
    return OSError(
        errno.EINVAL,
        "it is a pipe without a reader, a socket or a disk, and no file that a log can be written to",
        path,
    )


_readers: dict[str, Callable[[int], object]] = {}


def tell_of_open(path: str, reader: Callable[[int], object]) -> None:
    """Have `reader` called with a copy of each descriptor that a worker is given for `path`, which it has to close.

    The copy shares its position with the worker's: the end of what the worker has written last.
    """
    _readers.setdefault(path, reader)


def forget_reader(path: str, reader: Callable[[int], object]) -> None:
    """Undo `tell_of_open`; again is harmless."""
    if _readers.get(path) == reader:
        _readers.pop(path, None)


def tell_reader(path: str, fd: int) -> None:
    """Tell who has asked that a worker is given `fd`; without a descriptor to spare, nobody is told."""
    reader = _readers.get(path)
    if reader is not None:
        with contextlib.suppress(OSError):
            reader(os.dup(fd))


def leads_to_file(link: str) -> bool:
    """Whether something written through `link` would end in a file, or make one."""
    try:
        return stat.S_ISREG(os.stat(link).st_mode)
    except FileNotFoundError:
        return True


def link_error(path: str) -> OSError:
    """Return the error that names a link in the place of a log."""
    return OSError(errno.ELOOP, "it is a symbolic link to another file, which is not written to", path)
