"""Files that are written in one step: a reader sees the old content or the new content, never a part."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from supervise._folders import is_own, open_folder

_MOST_LINKS = 40


def write(path: str, data: bytes) -> None:
    """Write a file of mode 0600, and replace an existing one.

    Raises:
        OSError: The file cannot be written; an existing file is unchanged. ``filename`` is the path.
    """
    _replace(path, data, mode=0o600, suffix=".new")


def write_output(path: str, data: bytes, *, mode: int) -> None:
    """Write to a path that the user has given for the output of a command.

    A regular file is replaced; a symbolic link to a file stays, and its target is replaced. A character device, a named
    pipe, and ``/dev/stdout`` are written into. Replacing a device would break other programs.

    Args:
        path: The path.
        data: The whole output.
        mode: Mode of a new file; the umask applies.

    Raises:
        OSError: The output cannot be written, the path is a block device, or a link belongs to another user; an
            existing file is unchanged. ``filename`` is the path.
    """
    try:
        target, is_stream = _target(path)
        if is_stream:
            _write_into(target, data)
            return
    except OSError as e:
        raise OSError(e.errno, e.strerror, path) from e
    _replace(target, data, mode=mode, suffix=f".{os.getpid()}.new")


def _target(path: str) -> tuple[str, bool]:
    """Return the path behind symbolic links, and whether to write into it instead of replacing it.

    Raises:
        OSError: There are too many links, one belongs to another user, or the path is a block device.
    """
    for _ in range(_MOST_LINKS):
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            return path, False
        if not stat.S_ISLNK(found.st_mode):
            if stat.S_ISBLK(found.st_mode):
                raise OSError(errno.EINVAL, "is a block device, which is not overwritten")
            return path, not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode)
        if not is_own(found.st_uid):
            raise OSError(errno.ELOOP, "is a symbolic link of another user, which is not followed")
        folder, leads_to = os.path.dirname(path), os.readlink(path)
        if f"{os.path.realpath(folder)}/".startswith("/proc/"):  # a descriptor, as behind /dev/stdout or /dev/fd/63
            return path, True
        path = os.path.join(folder, leads_to)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _write_into(path: str, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        fd = os.open(path, flags)
    except OSError as e:
        if e.errno == errno.ENXIO and stat.S_ISFIFO(os.stat(path).st_mode):
            raise OSError(e.errno, "no process reads this pipe") from e
        raise
    with open(fd, "wb", buffering=0) as file:
        os.set_blocking(fd, True)
        while data:
            data = data[file.write(data) :]


def _replace(path: str, data: bytes, *, mode: int, suffix: str) -> None:
    folder, name = os.path.split(path)
    at = open_folder(folder)
    new = f"{name}{suffix}"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new, dir_fd=at)
        with open(os.open(new, flags, mode, dir_fd=at), "wb") as file:
            file.write(data)
        os.replace(new, name, src_dir_fd=at, dst_dir_fd=at)
    except BaseException as e:
        with contextlib.suppress(OSError):
            os.unlink(new, dir_fd=at)
        if isinstance(e, OSError):
            raise OSError(e.errno, e.strerror, path) from e
        raise
    finally:
        os.close(at)
