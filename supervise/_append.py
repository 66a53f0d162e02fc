"""Files opened for appending: private to the user, and never reached through another user's symbolic link."""

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
"""Links of the system to open descriptors of this process."""


def open_to_append(path: str) -> int:
    """Open `path` for appending; a new file is private to the user. Return the descriptor.

    A symbolic link to a file is refused, because another user may have planted it so that this process
    writes to another file. A link to a device is followed, and also a link of the system, such as ``/dev/stdout``. A
    named pipe without a reader is refused, because the open would wait for a reader.

    Raises:
        OSError: The path cannot be opened, is a named pipe without a reader, or is a link to a file, existing or
            not; no file was made. ``filename`` is the path.
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
    """Open the target of a link unless it is a file."""
    if target.startswith(_STREAMS):
        return os.open(path, flags & ~os.O_NONBLOCK)
    if leads_to_file(path):
        raise link_error(path)
    try:
        fd = os.open(path, flags)
    except OSError as error:
        raise _pipe_error(path) if error.errno == errno.ENXIO else error from error
    if stat.S_ISREG(os.fstat(fd).st_mode):  # the link was changed in between
        os.close(fd)
        raise link_error(path)
    return _writable(fd, path, stat.S_ISCHR)


def _writable(fd: int, path: str, *kinds: Callable[[int], bool]) -> int:
    """Return `fd`, made blocking, if its file is of one of `kinds`; otherwise close it and raise."""
    mode = os.fstat(fd).st_mode
    if not any(is_kind(mode) for is_kind in kinds):
        os.close(fd)
        raise _pipe_error(path)
    os.set_blocking(fd, True)
    return fd


def _pipe_error(path: str) -> OSError:
    return OSError(
        errno.EINVAL,
        "a log cannot be written to a pipe without a reader, a socket or a disk",
        path,
    )


_readers: dict[str, Callable[[int], object]] = {}


def tell_of_open(path: str, reader: Callable[[int], object]) -> None:
    """Call `reader` with a copy of each descriptor that is opened for a worker's `path`; the reader closes the copy.

    The copy shares its file position, the end of the worker's last write, with the worker's descriptor. A new
    reader of a path replaces the earlier one; that one may still be reading the file of a past life at the same path.
    """
    _readers[path] = reader


def forget_reader(path: str, reader: Callable[[int], object]) -> None:
    """Undo `tell_of_open`. Idempotent."""
    if _readers.get(path) == reader:
        _readers.pop(path, None)


def tell_reader(path: str, fd: int) -> None:
    """Pass a copy of `fd` to the reader of `path`, unless no descriptor is left."""
    reader = _readers.get(path)
    if reader is not None:
        with contextlib.suppress(OSError):
            reader(os.dup(fd))


def leads_to_file(link: str) -> bool:
    """Whether a write through `link` would change or make a file."""
    try:
        return stat.S_ISREG(os.stat(link).st_mode)
    except FileNotFoundError:
        return True


def link_error(path: str) -> OSError:
    """Return the error for a symbolic link in the place of a log."""
    return OSError(errno.ELOOP, "it is a symbolic link to another file, which supervise does not write to", path)
