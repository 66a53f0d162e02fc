"""The terminal of the live table: its modes, its size, its input, and writes that never block."""

from __future__ import annotations

import errno
import os
import re
import select
import termios
import time
from codecs import getincrementaldecoder
from contextlib import suppress

from rich.cells import get_character_cell_size
from rich.color import ColorSystem
from rich.style import Style

# A picture of the terminal as cells, and the text that turns one picture into the next: in each row, one range
#
# The module uses the styles and the widths of characters of rich. rich's `Live` would draw all lines again for each
# picture, and the import of `Live` takes as long as the first picture may take.


STYLES = {
    "title": "bold",
    "dim": "dim",
    "head": "bold underline",
    "key": "bold cyan",
    "ready": "green",
    "starting": "cyan",
    "waiting": "dim cyan",
    "stopping": "yellow",
    "suspended": "bold yellow",
    "backoff": "bold yellow",
    "late": "bold yellow",
    "hung": "bold magenta",
    "failed": "bold red",
    "finished": "blue",
    "terminated": "dim blue",
    "running": "green",
    "restarting": "bold yellow",
    "ask": "bold reverse",
    "selected": "reverse",
}
"""Name of a style to its definition; names can be joined by a space. The 16 colors are those of the user's terminal."""

Cell = tuple[str, str]
"""The text of a column and the name of its style. The second column of a wide character has "" as its text."""

_BLANK: Cell = (" ", "")


class Canvas:
    """One picture."""

    def __init__(self, columns: int, rows: int) -> None:
        """Begin with blanks."""
        self.columns, self.rows = columns, rows
        self._lines: list[list[Cell]] = [[_BLANK] * columns for _ in range(rows)]

    def write(self, row: int, column: int, text: str, style: str = "") -> int:
        """Write text, with a blank for each character that cannot be printed; return the column after it.

        Args:
            row: Row from 0; other rows than those of the picture are ignored.
            column: The first column, from 0.
            text: The text; what does not fit is cut.
            style: Names of styles.
        """
        if not 0 <= row < self.rows or column >= self.columns:
            return column
        line, cells = self._lines[row], _cells(text, style, self.columns - column)
        end = column + len(cells)
        line[column:end] = cells
        _mend(line, column, end)
        return end

    def paint(self, row: int, style: str) -> None:
        """Add a style to a whole row."""
        if 0 <= row < self.rows:
            self._lines[row] = [(text, f"{old} {style}".strip()) for text, old in self._lines[row]]

    def text(self) -> list[str]:
        """Return the lines without styles."""
        return ["".join(text for text, _ in line).rstrip() for line in self._lines]

    def drawing(self, before: Canvas | None, palette: Palette) -> str:
        """Return the text that makes a terminal show this picture.

        Args:
            before: The picture that the terminal shows, of the same size; None if that is not known.
            palette: The colors of the terminal.
        """
        parts = ["\x1b[0m\x1b[2J"] if before is None else []
        known = before or Canvas(self.columns, self.rows)
        for row, (old, new) in enumerate(zip(known._lines, self._lines, strict=True)):  # noqa: SLF001 - of the same class
            if old != new:
                changed = [column for column in range(self.columns) if old[column] != new[column]]
                start, end = changed[0], changed[-1] + 1
                while start and not new[start][0]:  # in a wide character
                    start -= 1
                while end < self.columns and not new[end][0]:
                    end += 1
                parts += [f"\x1b[{row + 1};{start + 1}H", palette.text(new[start:end])]
        return "".join(parts)


class Palette:
    """The escape sequences of styles on one terminal."""

    def __init__(self, *, color: bool) -> None:
        """Describe the terminal. Without color, text is only bold, dim, underlined or reversed."""
        self._color = color
        self._starts: dict[str, str] = {"": ""}

    def text(self, cells: list[Cell]) -> str:
        """Return cells as text with escape sequences."""
        parts, now = [], ""
        for text, style in cells:
            if style != now:
                parts.append(("\x1b[0m" if now else "") + self._start(style))
                now = style
            parts.append(text)
        return "".join(parts) + ("\x1b[0m" if now else "")

    def _start(self, names: str) -> str:
        if names not in self._starts:
            style = Style.combine(Style.parse(STYLES[name]) for name in names.split())
            shown = style if self._color else style.without_color
            self._starts[names] = shown.render("\0", color_system=ColorSystem.STANDARD).partition("\0")[0]
        return self._starts[names]


def _mend(line: list[Cell], start: int, end: int) -> None:
    """Replace halves of wide characters by blanks: new cells in the range may have cut a character at either end."""
    if not line[start][0]:  # no cell was written
        return
    if start and width_of(line[start - 1][0]) > 1:
        line[start - 1] = _BLANK
    if end < len(line) and not line[end][0]:
        line[end] = _BLANK


def _cells(text: str, style: str, room: int) -> list[Cell]:
    if not text.isprintable():  # a tab is replaced, too, and here at the latest a control sequence
        text = "".join(character if character.isprintable() else " " for character in text)
    if text.isascii():
        return [(character, style) for character in text[:room]]
    found: list[Cell] = []
    for character in text:
        width = get_character_cell_size(character)
        if not width:  # a combining character
            if found and found[-1][0]:
                found[-1] = found[-1][0] + character, style
            continue
        if len(found) + width > room:
            break
        found += [(character, style)] + [("", style)] * (width - 1)
    return found


def width_of(text: str) -> int:
    """Return the number of columns of a text."""
    return len(text) if text.isascii() else sum(map(get_character_cell_size, text))


# Keys, from the bytes that a terminal sends


_KEY = re.compile(r"\x1b[\[O](?:[^@-~]{0,29}[@-~]|(?=.{30}))|\x1b(?=[^\[O])|[^\x1b]", re.DOTALL)
"""A sequence, or the first two characters of one that is too long; Esc, and another key soon after it; a character."""
_NAMES = {
    **dict.fromkeys(("\x1b[A", "\x1bOA"), "up"),
    **dict.fromkeys(("\x1b[B", "\x1bOB"), "down"),
    **dict.fromkeys(("\x1b[C", "\x1bOC"), "right"),
    **dict.fromkeys(("\x1b[D", "\x1bOD"), "left"),
    **dict.fromkeys(("\x1b[H", "\x1bOH", "\x1b[1~", "\x1b[7~"), "home"),
    **dict.fromkeys(("\x1b[F", "\x1bOF", "\x1b[4~", "\x1b[8~"), "end"),
    **dict.fromkeys(("\x1b[5~", "\x02"), "page up"),
    **dict.fromkeys(("\x1b[6~", "\x06"), "page down"),
    **dict.fromkeys("\n\r", "enter"),
    **dict.fromkeys("\x7f\x08", "backspace"),
    "\t": "tab",
    "\x0c": "redraw",
    "\x1b": "escape",
}
_NOT_TEXT = "\ufffd"
"""The decoder puts it in the place of bytes that are not UTF-8."""


class Keys:
    """Splits input into keys: a character, or a word such as ``up``."""

    def __init__(self) -> None:
        """Begin without input."""
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    @property
    def waits(self) -> bool:
        """Whether the input ends in an escape character that may be the Esc key, or the start of a sequence."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[str]:
        """Return the keys of new input."""
        found = []
        self._rest += self._decoder.decode(data)
        while (key := _KEY.match(self._rest)) is not None:
            self._rest = self._rest[key.end() :]
            if key[0] in _NAMES or (key[0].isprintable() and key[0] != _NOT_TEXT):
                found.append(_NAMES.get(key[0], key[0]))
        return found

    def timed_out(self) -> list[str]:
        """Return the keys of the rest after a time without further input: Esc, if the rest is an escape character."""
        rest, self._rest = self._rest, ""
        return ["escape"] if rest == "\x1b" else []


_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""The alternate screen, without a cursor and without line wrap, so that the last column can be written."""
_LEAVE = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_PIECE_BYTES = 4096
_LAST_PATIENCE_S = 1.0
"""How long to wait at the end for a terminal that takes no output, such as one that Ctrl-S has suspended."""


class Screen:
    """The terminal, opened once more. This open file is non-blocking; the one of the shell stays as it is."""

    def __init__(self, fd: int) -> None:
        """Open the terminal of a descriptor; the terminal's modes are not changed yet.

        Raises:
            OSError: The descriptor is not a terminal, or the terminal cannot be opened.
            termios.error: The terminal has no modes.
        """
        try:
            path = os.ttyname(fd)
        except FileNotFoundError:  # a container without the file system of its terminals
            path = "/dev/tty"
        self.fd = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            self._modes = termios.tcgetattr(self.fd)
        except termios.error:
            os.close(self.fd)
            raise
        self._pending = b""
        self.entered: bool = False
        """Whether the table has the terminal: from `enter` to `leave`."""

    @property
    def busy(self) -> bool:
        """Whether the terminal has not taken all output yet."""
        return bool(self._pending)

    def enter(self) -> None:
        """Switch to the alternate screen, and read keys one by one. Ctrl-C and Ctrl-Z still send signals.

        In the background, SIGTTOU suspends this process until the shell continues it. Then the table does not have the
        terminal yet: the signal that has ended the wait decides what follows.

        Raises:
            OSError: The terminal is lost.
            termios.error: The same.
        """
        modes = termios.tcgetattr(self.fd)
        modes[0] &= ~(termios.ICRNL | termios.INLCR)
        modes[3] &= ~(termios.ICANON | termios.ECHO)
        modes[6] = list(modes[6])
        modes[6][termios.VMIN], modes[6][termios.VTIME] = 1, 0
        try:
            termios.tcsetattr(self.fd, termios.TCSANOW, modes)
        except termios.error as error:
            if error.args[0] == errno.EINTR:  # by the signal that has continued or ends this process
                return
            raise
        self.entered = True
        self._pending += _ENTER.encode()
        self.flush()

    def leave(self) -> None:
        """Restore the screen and the modes. Never raises; idempotent."""
        if not self.entered:
            return
        self.entered = False
        self._pending += _LEAVE.encode()  # after the rest of the last picture, so that no sequence is cut
        deadline_s = time.monotonic() + _LAST_PATIENCE_S
        with suppress(OSError):
            while not self.flush() and (left_s := deadline_s - time.monotonic()) > 0:
                select.select([], [self.fd], [], left_s)
        self._pending = b""
        with suppress(OSError, termios.error):  # the terminal has hung up
            termios.tcsetattr(self.fd, termios.TCSANOW, self._modes)

    def close(self) -> None:
        """Restore and close the terminal."""
        self.leave()
        os.close(self.fd)

    def write(self, data: bytes) -> None:
        """Add output; `flush` writes it."""
        self._pending += data

    def flush(self) -> bool:
        """Write as much as the terminal takes; return whether all output is written.

        Raises:
            OSError: The terminal is lost.
        """
        while self._pending:
            try:
                self._pending = self._pending[os.write(self.fd, self._pending[:_PIECE_BYTES]) :]
            except BlockingIOError:
                return False
        return True

    def read(self) -> bytes | None:
        """Return the bytes that were typed; None if the terminal is lost."""
        try:
            return os.read(self.fd, 1024) or None
        except BlockingIOError:
            return b""
        except OSError:
            return None
