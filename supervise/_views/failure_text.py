"""The recorded texts of a failure, as a report shows them: cleaned, shortened, without the frames of supervise."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from supervise._printable import printable

if TYPE_CHECKING:
    from supervise.result import ProcessFailure

WHY_LINES = 20
_WHY_HEAD = 3
_LINE_CHARS = 300
_HEAD = "Traceback (most recent call last):"
_FRAME = re.compile(r'[ |]*  File "(?P<path>[^"]*)", line \d+')
_OUR_FILES = re.compile(r"/supervise/(recording|_process/launch/\w+)\.py$|^<frozen runpy>$")
"""The files that import the main module of a rank and call its function: of supervise, and runpy."""


def recorded(message: str | dict[str, Any]) -> str | None:
    """Return the traceback or the message of an error file; None if there is no record."""
    if not isinstance(message, dict):
        return None
    extra = message.get("extraInfo")
    trace = extra.get("py_callstack") if isinstance(extra, dict) else None
    return str(trace or message.get("message", ""))


def traceback_of(failure: ProcessFailure) -> str:
    """Return the traceback that a rank has recorded, without the frames of supervise at its beginning; "" if none."""
    text = recorded(failure.message) or ""
    return "\n".join(without_our_frames(printable(text.rstrip()).split("\n"))) if "Traceback (" in text else ""


def without_our_frames(rows: list[str]) -> list[str]:
    """Remove the frames of supervise at the beginning of a traceback, and of each chained exception in it."""
    kept: list[str] = []
    leading = ours = False
    for row in rows:
        frame = _FRAME.match(row)
        if row.endswith(_HEAD):
            leading, ours = True, False
        elif frame is not None:
            ours = leading and _OUR_FILES.search(frame["path"]) is not None
            leading = ours
        elif not row.lstrip(" |").startswith(" ") and not row.startswith(("    ", "  |     ")):
            leading = ours = False  # the line of the exception
        if not ours:
            kept.append(row)
    return [row for row, after in pairwise([*kept, ""]) if not row.endswith(_HEAD) or _FRAME.match(after)]


def clean(text: str) -> list[str]:
    """Return the lines of `text` without control sequences, each of limited length."""
    rows = (row.rstrip("\r").rpartition("\r")[2] for row in text.rstrip().split("\n"))
    return [_clipped(printable(row).expandtabs()) for row in rows]


def _clipped(row: str) -> str:
    return row if len(row) <= _LINE_CHARS else f"{row[:_LINE_CHARS]} ... ({len(row) - _LINE_CHARS} more characters)"


def first_and_last(rows: list[str], where: str) -> list[str]:
    """Return `rows`; of too many rows, return only the first and the last.

    A line between them has the number of the rows that are left out, and `where` these are.
    """
    left_out = len(rows) - WHY_LINES
    if left_out <= 1:
        return rows
    tail = rows[len(rows) - (WHY_LINES - _WHY_HEAD) :]
    return [*rows[:_WHY_HEAD], f"  ... {left_out} more lines {where}", *tail]
