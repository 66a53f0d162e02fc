"""The ends of the logs of ranks: their sizes, their last lines, and the lines of the page of logs."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from supervise._opening import open_regular
from supervise._printable import printable
from supervise._views.samples import STREAMS

_TAIL_BYTES = 4096
_PANE_BYTES = 128 << 10
_LONGEST_LINE = 1000


class LogEnd(NamedTuple):
    """Where the logs of one life of a rank end."""

    size_bytes: int
    """Of both streams together."""
    written_s: float
    """The last write, in seconds since the epoch."""
    newest: str
    """Path of the log that was written last."""
    key: tuple[int, int]
    """Size and time of the newest log. If neither has changed, the content has not changed."""


class LogTails:
    """Reads the ends of the logs of one run. Used by one thread."""

    def __init__(self, directory: str) -> None:
        """Describe the run directory; nothing is read yet."""
        self._directory = directory
        self._known: dict[str, tuple[tuple[int, int], str | None]] = {}

    def paths(self, rank: int, attempt: int) -> list[str]:
        """Return the paths of the logs of a life, stdout first; they may not exist."""
        return [f"{self._directory}/attempt_{attempt}/{rank}/{name}" for name in STREAMS]

    def end(self, rank: int, attempt: int) -> LogEnd | None:
        """Return where the logs of a life end; None if it has none."""
        total, newest, found = 0, "", None
        for path in self.paths(rank, attempt):
            try:
                one = os.lstat(path)
            except OSError:  # the stream is not redirected
                continue
            if stat.S_ISREG(one.st_mode):
                total += one.st_size
                if found is None or (one.st_size and (not found.st_size or one.st_mtime_ns >= found.st_mtime_ns)):
                    newest, found = path, one
        if found is None:
            return None
        return LogEnd(total, found.st_mtime, newest, (found.st_size, found.st_mtime_ns))

    def last_line(self, end: LogEnd) -> str | None:
        """Return the last line with text of the newest log, printable; None if no line has text."""
        known = self._known.get(end.newest)
        if known is None or known[0] != end.key:
            lines = read_lines(end.newest, _TAIL_BYTES)
            known = self._known[end.newest] = end.key, next((line for line in reversed(lines) if line.strip()), None)
        return known[1]

    def last_words(self, rank: int, attempt: int) -> str | None:
        """Return the last line of the stderr of a life, or else of its stdout."""
        for path in reversed(self.paths(rank, attempt)):
            if found := [line for line in read_lines(path, _TAIL_BYTES) if line.strip()]:
                return found[-1].strip()
        return None

    def forget_other_lives(self, ends: dict[int, LogEnd]) -> None:
        """Forget the last lines of logs that are not among these."""
        kept = {end.newest for end in ends.values()}
        self._known = {path: known for path, known in self._known.items() if path in kept}


def read_lines(path: str, most_bytes: int = _PANE_BYTES) -> list[str]:
    """Return the last lines of a log as a terminal shows them, printable; empty if the log cannot be read.

    In a line with carriage returns, such as a progress bar, the last part that is not empty counts.
    """
    try:
        fd = open_regular(path)
    except OSError:
        return []
    try:
        size = os.fstat(fd).st_size
        data = os.pread(fd, most_bytes, max(0, size - most_bytes))
    except OSError:
        return []
    finally:
        os.close(fd)
    lines = data.lstrip(b"\0").decode(errors="replace").split("\n")
    if size > most_bytes and len(lines) > 1 and data[0]:  # NUL: the first line begins after a hole
        del lines[0]  # the beginning of the line is missing
    if lines and not lines[-1]:
        del lines[-1]
    return [_shown(line) for line in lines]


def _shown(line: str) -> str:
    part = next((part for part in reversed(line.split("\r")) if part.strip()), "")
    return printable(part).expandtabs(8)[:_LONGEST_LINE]
