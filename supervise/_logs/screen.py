r"""Rows below the lines of a terminal: the unfinished line of each rank, such as a progress bar, and a status.

Every write to the terminal leaves the cursor at the start of the first row. So the next write can erase all rows: it
erases everything below the cursor. This also works if another thread writes, or if the terminal was resized.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from supervise._printable import first_columns, printable, width_of

if TYPE_CHECKING:
    from collections.abc import Sequence

ERASE = "\r \x1b[J\r"
"""Erases the cursor's row and those below.

In a window that became narrower, one row may occupy several rows of the terminal. The space is for tmux, which keeps
what is erased in its history if the cursor is in the first column of the first row.
"""
_COLUMNS, _LINES = 80, 24
"""Size that is assumed for a terminal that reports 0 x 0, such as a serial line or a new pty, or none."""
_NOTEBOOK_COLUMNS = 200
_BYTES_PER_COLUMN = 16
"""Number of bytes of a line to consider for each column. Escape sequences and wide characters need several."""


def terminal_size(fd: int) -> tuple[int, int]:
    """Return columns and lines of a terminal; 80 and 24 if it does not say them."""
    try:
        size = os.get_terminal_size(fd)
    except (OSError, OverflowError):
        return _COLUMNS, _LINES
    return size.columns or _COLUMNS, size.lines or _LINES


class Screen:
    """The rows of one terminal, or of none.

    Two threads may use the object, because each method reads or sets single attributes.
    """

    def __init__(self, fd: int = -1) -> None:
        """Show rows on the terminal `fd`, which the caller keeps open. -1: there is no terminal for rows."""
        self._fd = fd
        self._drawn = False
        self.rows: tuple[tuple[bytes, bytes], ...] = ()
        """Prefix and content of the unfinished lines."""
        self.status = ""
        """The last row. Empty: there is no such row."""
        self.status_style = ""
        """The style of the last row (SGR numbers); may be empty."""

    def is_on(self, fd: int) -> bool:
        """Return whether `fd`, which may be -1, is the terminal of the rows."""
        return self._fd >= 0 and os.isatty(fd) and os.fstat(fd).st_rdev == os.fstat(self._fd).st_rdev

    def erasure(self) -> str:
        """Return the text that erases the rows; "" if no rows are drawn."""
        drawn, self._drawn = self._drawn, False
        return ERASE if drawn else ""

    def drawing(self) -> str:
        """Return the text that draws the rows and moves the cursor to their start; "" if there are no rows."""
        rows, status = self.rows, self.status
        if not rows and not status:
            return ""
        columns, lines = terminal_size(self._fd)
        room = max(lines - 1 - bool(status), 1)
        kept = rows if len(rows) <= room else rows[: room - 1]
        drawn = [_cut(prefix, text, columns - 1) for prefix, text in kept]
        if len(kept) < len(rows):
            drawn.append(f"... {len(rows) - len(kept)} more unfinished lines"[: columns - 1])
        if status:
            text = status if width_of(status) < columns else f"{first_columns(status, columns - 2)}…"
            drawn.append(f"\x1b[{self.status_style}m{text}\x1b[0m" if self.status_style else text)
        self._drawn = True
        up = f"\x1b[{len(drawn) - 1}A" if len(drawn) > 1 else ""
        return "\r\n".join(drawn) + f"{up}\r"


class NotebookScreen(Screen):
    """One row below the lines of a notebook's stream, whose carriage return goes back to the start of the line.

    A stream cannot move its cursor up, so only the unfinished line of the lowest rank is shown.
    """

    _width = 0

    def is_on(self, fd: int) -> bool:
        """Return whether `fd` is -1, because a notebook's stream has no descriptor."""
        return fd < 0

    def erasure(self) -> str:
        """Return the text that overwrites the row with spaces; "" if no row is drawn."""
        width, self._width = self._width, 0
        return f"\r{' ' * width}\r" if width else ""

    def drawing(self) -> str:
        """Return the text of the row; "" if there is none."""
        text = _cut(*self.rows[0], _NOTEBOOK_COLUMNS) if self.rows else ""
        self._width = width_of(text)
        return text


def _cut(prefix: bytes, text: bytes, columns: int) -> str:
    """Return a row of at most `columns` columns. Control sequences in the text are removed."""
    shown = prefix.decode(errors="replace")
    if width_of(shown) > columns:  # a long name of a role, in a narrow window
        shown = first_columns(printable(shown), columns // 2)
    content = printable(text[: _BYTES_PER_COLUMN * max(columns, 0)].decode(errors="replace")).expandtabs()
    return shown + first_columns(content, columns - width_of(shown))


def rows_of(lines: Sequence[tuple[int, bytes, Sequence[bytes]]]) -> tuple[tuple[bytes, bytes], ...]:
    """Return the rows for the unfinished lines of streams, each given as (local rank, prefix, contents).

    The result has the lines of the last stream of each rank, in the order of the ranks.
    """
    by_rank = {rank: (prefix, texts) for rank, prefix, texts in lines}
    return tuple((prefix, text) for _, (prefix, texts) in sorted(by_rank.items()) for text in texts)
