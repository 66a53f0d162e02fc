"""Log files of an attempt: their preparation before the ranks start, and the reading of their last lines afterwards."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from supervise._files import is_mark, leads_to_file, link_error, open_folder, open_to_append

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervise.destinations import LogsDest


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
    try:
        os.lstat(path)  # almost always, there is no file
    except FileNotFoundError:
        return False
    except OSError:  # `open_folder` raises it
        pass
    folder, name = os.path.split(path)
    at = open_folder(folder)
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
