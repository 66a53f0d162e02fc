"""``supervise logs RUN``: the output of the ranks, from their files."""

from __future__ import annotations

import argparse
import os
import select
import sys
import time
from typing import TYPE_CHECKING

from supervise._opening import open_regular
from supervise.cli import option_values
from supervise.cli.console import Console
from supervise.cli.run_commands import parser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervise._views.recorded_run import RecordedRun

_PIECE_BYTES = 1 << 16
_LOOK_S = 0.2
_LARGEST_LINE = 1 << 20
"""A longer line is shown in pieces."""


def logs(words: Sequence[str]) -> int:
    """Print the output of the ranks; return the exit code.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    options = parser("logs", "Show the output of the ranks of a run, in their newest attempt.", run=True)
    options.add_argument("-f", "--follow", action="store_true", help="go on while the run does")
    options.add_argument("--rank", metavar="R", type=_rank, help="only this local rank, without prefixes")
    options.add_argument("--stderr", action="store_true", help="only stderr")
    options.add_argument(
        "--since", metavar="DUR", type=option_values.seconds, help="only logs that were written in the last DUR"
    )
    found = options.parse_args(words)
    return _show(found.run, options, found)


def _show(run: RecordedRun, options: argparse.ArgumentParser, found: argparse.Namespace) -> int:
    if found.rank is not None and found.rank not in run.logs() and not (found.follow and run.is_running()):
        options.error(f"rank {found.rank} of {run.name} has no log")
    shown = _Logs(run, found.rank, stderr=found.stderr, since_s=found.since)
    while True:
        going_on = found.follow and run.is_running()  # before the look: what is written until then is shown
        shown.look()
        if not going_on:
            shown.finish()
            return 0
        select.select([], [], [], _LOOK_S)


def _rank(text: str) -> int:
    if not option_values.is_count(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a rank; give a number, 0 or more")
    return int(text)


def _after_hole(fd: int, place: int) -> int:
    """Return the first place from `place` on that holds data; `place` if there is none, or no holes are known."""
    try:
        return os.lseek(fd, place, os.SEEK_DATA)
    except OSError:
        return place


class _Logs:
    """The logs of a run, each shown up to some place."""

    def __init__(self, run: RecordedRun, rank: int | None, *, stderr: bool, since_s: float | None) -> None:
        self._run = run
        self._rank = rank
        self._stderr = stderr
        self._after_s = None if since_s is None else time.time() - since_s
        self._places: dict[str, int] = {}
        """Path to the number of bytes that were shown."""
        self._rests: dict[str, bytes] = {}
        """Path to the beginning of a line without an end."""
        self._console = Console()

    def look(self) -> None:
        """Show what was written since the last look."""
        for rank, paths in self._run.logs().items():
            if self._rank in (None, rank):
                for path in paths:
                    if not self._stderr or path.endswith("stderr.log"):
                        self._show(rank, path)
        sys.stdout.buffer.flush()

    def finish(self) -> None:
        """Show the last lines that have no end."""
        for rank, paths in self._run.logs().items():
            for path in paths:
                if rest := self._rests.pop(path, b""):
                    self._write(rank, [rest])
        sys.stdout.buffer.flush()

    def _show(self, rank: int, path: str) -> None:
        try:
            fd = open_regular(path)
        except OSError:
            return
        try:
            if self._after_s is not None and os.fstat(fd).st_mtime < self._after_s:
                return
            shown = self._places.get(path, 0)
            place = _after_hole(fd, shown)
            if place > shown:  # --log-max-bytes has removed what was there
                self._rests.pop(path, None)
            end = os.fstat(fd).st_size  # not what is written meanwhile: another log would wait for it
            while piece := os.pread(fd, min(_PIECE_BYTES, max(end - place, 0)), place):
                place += len(piece)
                *lines, rest = (self._rests.get(path, b"") + piece).split(b"\n")
                if len(rest) > _LARGEST_LINE:
                    lines, rest = [*lines, rest], b""
                self._rests[path] = rest
                self._write(rank, lines)
            self._places[path] = place
        finally:
            os.close(fd)

    def _label(self, rank: int) -> str:
        role, number = self._run.title(rank)
        return self._console.prefix(f"[{role}{number}]:", rank)

    def _write(self, rank: int, lines: list[bytes]) -> None:
        prefix = b"" if self._rank is not None else self._label(rank).encode()
        sys.stdout.buffer.write(b"".join(b"%b%b\n" % (prefix, line) for line in lines))
