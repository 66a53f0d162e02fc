"""Text for a person: without escape sequences and control characters, and exit codes in words."""

from __future__ import annotations

import re
from functools import cache
from signal import Signals
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_SEQUENCES = (
    r"(?:\x1b\[|\x9b)[0-9;:<=>?]*[ -/]*[@-~]"  # CSI: colors, the cursor, erasing
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"  # OSC, DCS: titles, the clipboard
    r"|\x1b[ -/]*[0-~]"
)
REWRITES = r"\r+(?!\n|\r|\Z)"
"""Carriage returns before other text, each of which ends a line."""
STYLES = rf"{_SEQUENCES}|\r"
"""What a terminal does not show of a line: escape sequences, and the carriage returns that `REWRITES` leaves."""
_CONTROLS = r"[\x00-\x08\x0b-\x1f\x7f-\x9f]"
_DIRECTIONS = r"[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
_SEPARATORS = r"[\u2028\u2029]"
_REMOVED = f"{_SEQUENCES}|{_CONTROLS}|{_DIRECTIONS}|{_SEPARATORS}"
"""Each alternative has a character that `str.isprintable` refuses. So a text that is printable needs no pattern."""
_ALL_BUT_COLORS = rf"(\x1b\[[0-9;]*[mK])|\n|{_REMOVED}"
_compiled = cache(re.compile)  # at the first use, since that takes a millisecond


def printable(text: str) -> str:
    r"""Return `text` without escape sequences and control characters; ``\n`` and ``\t`` stay.

    Control characters are those of C0 and C1, and those that change the text direction. A carriage return before
    other text ends a line, because text other than a progress bar must not be lost.
    """
    if text.isprintable():
        return text
    if "\r" in text:
        text = _compiled(REWRITES).sub("\n", text)
    return _compiled(_REMOVED).sub("", text)


def one_line(text: str) -> str:
    """Return `text` as `printable` does, joined to one line."""
    return " ".join(printable(text).split("\n"))


def below_itself(text: str) -> str:
    """Return `text` as `printable` does. Its later lines are indented, so that none looks like a line of supervise."""
    return printable(text).replace("\n", "\n  ")


def as_prefix(text: str) -> str:
    """Return `text` as a line prefix: one line, without control sequences other than colors and erasing."""
    return text if text.isprintable() else _compiled(_ALL_BUT_COLORS).sub(lambda found: found[1] or "", text)


# The columns of a text on a terminal


def width_of(text: str) -> int:
    """Return the number of columns of a text on a terminal. Control sequences have none."""
    text = printable(text)
    return len(text) if text.isascii() else sum(map(_columns_of, text))


def first_columns(text: str, columns: int) -> str:
    """Return the beginning of a text without control sequences, at most `columns` wide."""
    if text.isascii():
        return text[: max(columns, 0)]
    for at, char in enumerate(text):
        columns -= _columns_of(char)
        if columns < 0:
            return text[:at]
    return text


def _columns_of(char: str) -> int:
    import unicodedata  # lazy: most lines are ASCII

    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


# Numbers, and what the exit code of a process says, in words


def runs_of(numbers: Iterable[int]) -> list[str]:
    """Return sorted numbers as texts, one for each run without a gap: ``0-2``, ``4``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ["-".join(map(str, run)) for run in runs]


def ranks_as_text(ranks: Iterable[int]) -> str:
    """Return ranks as text: ``rank 3`` or ``ranks 0-2, 4``."""
    text = ", ".join(runs_of(sorted(set(ranks))))
    return f"rank {text}" if text.isdigit() else f"ranks {text}"


LOST_CODE = 255
"""The exit code in results of a rank whose exit status is unknown."""
OUT_OF_MEMORY = "out of memory suspected"
"""What is known of a process that was killed while the cgroup of the rank counted an OOM kill."""


def signal_name(number: int) -> str:
    """Return the name of a signal; ``signal 99`` if the signal has no name."""
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def ending(exitcode: int | None, *, core_dumped: bool = False, oom_kill: bool = False) -> str:
    """Format the end of a process: ``exit code 3``, ``SIGKILL``, ``SIGKILL, out of memory suspected``."""
    if exitcode is None:
        how = "exit status lost"
    else:
        how = f"exit code {exitcode}" if exitcode >= 0 else signal_name(-exitcode)
    return f"{how}{', core dumped' * core_dumped}{f', {OUT_OF_MEMORY}' * oom_kill}"
