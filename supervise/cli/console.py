"""The stderr of `run`: notes, a status line, and the library's log."""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from supervise._printable import as_prefix, below_itself, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PATIENCE_S = 2.0
"""How long to wait for a stderr that blocks; afterwards output is buffered."""
_LAST_PATIENCE_S = {False: 5.0, True: 60.0}
"""How long to wait at the end of the run. Key: whether stderr is a terminal, which Ctrl-S may suspend."""
_PIECE_BYTES = 4096
_KEPT_BYTES = 256 * 1024
"""The size of the buffer for a stderr that blocks; further lines are lost, and their number is reported later."""
_LEFT_LINES = 1000
"""The largest number of buffered lines from other threads."""
_COLUMNS = 80
"""The width of a terminal that reports 0 x 0, such as a serial line or a new pty."""
_ERASE = "\r\x1b[J"
"""Erase to the end of the screen: in a narrowed window the status line occupies several rows."""
_RANK_COLORS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)


class Console:
    """The stderr of `run`. Errors of writes are ignored, and a stderr that blocks delays the run only briefly.

    Only the main thread writes. Other threads pass lines to `leave`, which never blocks.
    """

    def __init__(self, color: str = "auto") -> None:
        """Inspect stdout and stderr.

        Args:
            color: ``auto``, ``always`` or ``never``; auto: color on a terminal unless ``NO_COLOR`` is set.
        """
        self._fd = sys.stderr.fileno() if sys.stderr is not None else -1
        self.terminal = os.isatty(self._fd)
        able = os.environ.get("TERM", "dumb") != "dumb"
        wanted = color == "always" or (color == "auto" and able and not os.environ.get("NO_COLOR"))
        both = self.terminal and sys.stdout is not None and os.isatty(sys.stdout.fileno())
        self.color = wanted and (self.terminal or color == "always")
        self.rank_color = wanted and (both or color == "always")
        """Whether prefixes are colored, on stdout and stderr alike."""
        self.live = both and able
        """Whether a status line may be shown; output of ranks overwrites it."""
        self.on_left: Callable[[], object] | None = None
        """Called by `leave`, on its thread, to make the main thread call `show_left`."""
        self._status = False
        self._pending = b""
        self._lost_lines = 0
        self._left: deque[str] = deque(maxlen=_LEFT_LINES)

    @property
    def width(self) -> int:
        """Columns of the terminal; 0 if stderr is not a terminal."""
        try:
            return os.get_terminal_size(self._fd).columns or _COLUMNS
        except OSError:
            return 0

    def note(self, text: str) -> None:
        """Show a message after ``supervise:``; control characters are removed."""
        self.show([f"{self.paint('supervise:', '1')} {below_itself(text)}"])

    def show(self, lines: list[str]) -> None:
        """Write lines unchanged."""
        self._write(self._erased() + "".join(f"{line}\n" for line in lines))

    def leave(self, lines: list[str]) -> None:
        """Pass lines to the main thread. Thread-safe; beyond the limit the oldest lines are lost."""
        self._left.extend(lines)
        if self.on_left is not None:
            self.on_left()

    def show_left(self) -> None:
        """Show the lines that other threads left."""
        lines = [self._left.popleft() for _ in range(len(self._left))]
        if lines:
            self.show(lines)

    def status(self, text: str) -> None:
        """Show the status line, which the next output replaces: the cursor stays at its start."""
        if self._pending:
            return
        self._status = True
        text, room = f"supervise: {one_line(text)}", max(self.width - 1, 20)
        text = text if len(text) <= room else f"{text[: room - 1]}…"
        self._write(f"{_ERASE}{self.paint(text, '2')}\r")

    def clear(self) -> None:
        """Erase the status line."""
        if self._status:
            self._write(self._erased())

    def _erased(self) -> str:
        erase, self._status = _ERASE if self._status else "", False
        return erase

    def paint(self, text: str, style: str) -> str:
        """Return `text` in a style (SGR numbers) if color is enabled."""
        return f"\x1b[{style}m{text}\x1b[0m" if self.color else text

    def prefix(self, role: str, rank: int) -> str:
        """Return the prefix of a rank's lines; on a terminal it first erases the status line."""
        plain = as_prefix(f"[{role}{rank}]:")
        shown = f"\x1b[{_RANK_COLORS[rank % len(_RANK_COLORS)]}m{plain}\x1b[0m" if self.rank_color else plain
        return f"\x1b[K{shown}" if self.live else shown

    def finish(self) -> None:
        """Write buffered output at the end of the run, with a longer wait."""
        self.show_left()
        self._flush(_LAST_PATIENCE_S[self.terminal])

    def _write(self, text: str) -> None:
        if len(self._pending) > _KEPT_BYTES:
            self._flush(0.0)
        if len(self._pending) > _KEPT_BYTES:
            self._lost_lines += text.count("\n")
            return
        if self._lost_lines:
            lost, self._lost_lines = self._lost_lines, 0
            text = f"supervise: {lost} lines were lost here: stderr was blocked\n{text}"
        patience_s = 0.0 if self._pending else _PATIENCE_S
        self._pending += text.encode(errors="backslashreplace")
        self._flush(patience_s)

    def _flush(self, patience_s: float) -> None:
        poll = select.poll()
        try:
            poll.register(self._fd, select.POLLOUT)
            while self._pending and poll.poll(patience_s * 1000):
                self._pending = self._pending[os.write(self._fd, self._pending[:_PIECE_BYTES]) :]
        except (OSError, ValueError):  # closed: write nothing more
            self._fd, self._pending = -1, b""


class LibraryLog(logging.NullHandler):
    """A logging handler that shows warnings of the library, but not its events.

    A `logging.NullHandler`, because the library emits no events to a logger without other handlers. The gang's thread
    and the Tails also log, and a stderr that blocks must not delay them: only the main thread writes.
    """

    def __init__(self, console: Console) -> None:
        """Write to `console`."""
        super().__init__(logging.WARNING)
        self._console = console

    def handle(self, record: logging.LogRecord) -> bool:
        """Show one record with its traceback: at once on the main thread, through `leave` on others."""
        lines = below_itself(self.format(record)).split("\n")
        if threading.current_thread() is threading.main_thread():
            self._console.show(lines)
        else:
            self._console.leave(lines)
        return True


@contextmanager
def library_log(console: Console) -> Iterator[None]:
    """Show warnings of the library on the console."""
    handler = LibraryLog(console)
    handler.setFormatter(logging.Formatter("supervise: %(levelname)s: %(message)s"))
    logger = logging.getLogger("supervise")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        console.show_left()
