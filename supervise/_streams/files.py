"""The files of an attempt, made ready before its ranks start; and their last lines, after."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

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
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    if not found.st_size or not stat.S_ISREG(found.st_mode):
        return True
    number = 1
    while os.path.lexists(f"{path}.{number}"):
        number += 1
    with contextlib.suppress(FileNotFoundError):
        os.rename(path, f"{path}.{number}")
    return True


def _real(paths: Iterable[str]) -> Iterable[str]:
    return (path for path in paths if path and path != os.devnull)


def last_lines(path: str, count: int = 20) -> str:
    """Return the last lines of a log, at most 16 KiB of it; "" where there is none."""
    if not path or path == os.devnull:
        return ""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.rstrip("\n").split("\n")[-count:])
