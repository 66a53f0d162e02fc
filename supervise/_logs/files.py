"""Log files of an attempt: their preparation before the ranks start, and the reading of their last lines afterwards."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from supervise._append import leads_to_file, link_error, open_to_append
from supervise._folders import open_folder
from supervise._opening import is_mark, open_regular

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervise.destinations import LogsDest

_TAIL_BYTES = 16 * 1024
_NAMELESS = getattr(os, "O_TMPFILE", 0)
_PAGE = bytes(4096)


def make_ready(dest: LogsDest) -> None:
    """Move the files of an earlier run aside (``.1``, ``.2``, ...), and create empty private log files.

    Raises:
        OSError: A file cannot be created, or its path is a symbolic link to another file. ``filename`` is the path.
    """
    logs = [path for paths in (dest.stdouts, dest.stderrs) for path in paths.values()]
    for path in dict.fromkeys(_real(logs)):
        move_aside(path)
    for path in dict.fromkeys(_real(dest.error_files.values())):
        # The rank, which writes this file, would follow the link
        if move_aside(path) and os.path.islink(path) and leads_to_file(path):
            raise link_error(path)
    for path in dict.fromkeys(_real(logs)):
        os.close(open_to_append(path))


def move_aside(path: str) -> bool:
    """Rename an earlier regular file, unless it is empty; return whether there was a file at `path`.

    Raises:
        OSError: The file cannot be renamed; ``filename`` is its path.
    """
    folder, name = os.path.split(path)
    try:
        at = open_folder(folder)
    except FileNotFoundError:
        return False
    try:
        found = os.lstat(name, dir_fd=at)
        if not stat.S_ISREG(found.st_mode) or not (found.st_size or is_mark(found)):
            return True
        number = 1
        while _exists(f"{name}.{number}", at):
            number += 1
        os.rename(name, f"{name}.{number}", src_dir_fd=at, dst_dir_fd=at)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        os.close(at)
    return True


def _exists(name: str, at: int) -> bool:
    try:
        os.lstat(name, dir_fd=at)
    except FileNotFoundError:
        return False
    return True


def _real(paths: Iterable[str]) -> Iterable[str]:
    return (path for path in paths if path and path != os.devnull)


def size_of(path: str) -> int | None:
    """Return the size of a log in bytes; None if there is no log."""
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def last_lines(path: str, count: int = 20) -> str:
    """Return the last lines of a log, at most 16 KiB; "" if the log cannot be read."""
    if not path or path == os.devnull:
        return ""
    try:
        with open(open_regular(path), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.strip("\0").rstrip("\n").split("\n")[-count:])  # a hole in a file reads as NUL


def no_room(path: str) -> OSError | None:
    """Return the error ENOSPC or EDQUOT if a write to the disk of `path` fails with it; None otherwise.

    The function writes to a file without a name, then drops the file. The count of free blocks would not do, because it
    ignores quotas and reserves.
    """
    try:
        fd = os.open(os.path.dirname(path), _NAMELESS | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, _PAGE)
        finally:
            os.close(fd)
    except OSError as failed:
        if failed.errno in (errno.ENOSPC, errno.EDQUOT):
            return OSError(failed.errno, failed.strerror, path)
        if failed.errno == errno.EOPNOTSUPP and _is_full(path):  # a network file system
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    return None


def _is_full(path: str) -> bool:
    try:
        disk = os.statvfs(path)
    except OSError:
        return False
    free = disk.f_bfree if os.geteuid() == 0 else disk.f_bavail
    return bool(disk.f_blocks) and free == 0
