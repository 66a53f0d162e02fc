"""The files of an attempt, made ready before its ranks start; and their last lines, after."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from supervise._folders import open_folder
from supervise._opening import open_regular
from supervise._process.appending import leads_to_file, link_error, open_to_append

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervise.destinations import LogsDest

_TAIL_BYTES = 16 * 1024


def make_ready(dest: LogsDest) -> None:
    """Move an earlier run's files aside (``.1``, ``.2``, ...), and make the log files, empty and private.

    Raises:
        OSError: A file cannot be made, or a symbolic link to another file is in its place; ``filename`` names it.
    """
    logs = [path for paths in (dest.stdouts, dest.stderrs) for path in paths.values()]
    for path in dict.fromkeys(_real(logs)):
        move_aside(path)
    for path in dict.fromkeys(_real(dest.error_files.values())):
        # The rank, which writes it, would follow the link
        if move_aside(path) and os.path.islink(path) and leads_to_file(path):
            raise link_error(path)
    for path in dict.fromkeys(_real(logs)):
        os.close(open_to_append(path))


def move_aside(path: str) -> bool:
    """Move one earlier file aside, if it holds anything; tell whether there was one. What is no file stays.

    Raises:
        OSError: It cannot be moved; ``filename`` names it.
    """
    folder, name = os.path.split(path)
    try:
        at = open_folder(folder)
    except FileNotFoundError:
        return False
    try:
        found = os.lstat(name, dir_fd=at)
        if not found.st_size or not stat.S_ISREG(found.st_mode):
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


def last_lines(path: str, count: int = 20) -> str:
    """Return the last lines of a log, at most 16 KiB of it; "" where there is none."""
    if not path or path == os.devnull:
        return ""
    try:
        with open(open_regular(path), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.strip("\0").rstrip("\n").split("\n")[-count:])  # NUL is what the hole in a file reads as
