"""What `run` itself says, on stderr: notes, one line that changes, and the library's log."""

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
"""How long a stderr that takes nothing is waited for; what is said meanwhile is kept for later."""
_LAST_PATIENCE_S = {False: 5.0, True: 60.0}
"""The same at the end; a terminal may be held by Ctrl-S."""
_PIECE_BYTES = 4096
_KEPT_BYTES = 256 * 1024
"""How much is kept for a stderr that takes nothing; what comes on top of it is lost, which is said later."""
_LEFT_LINES = 1000
"""The same for what other threads want to have said, in lines."""
_COLUMNS = 80
"""The width of a terminal that says 0 x 0, as that of a serial line or of a bare pty."""
_ERASE = "\r\x1b[J"
"""To the end of the screen: a line that wrapped, since the window was made narrower, is more than one."""
_RANK_COLORS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)


class Console:
    """Our stderr. A stderr that is gone is no error, and one that nobody reads holds nothing up for long.

    Written on the main thread only. What other threads have to say they `leave` here, which never blocks.
    """

    def __init__(self, color: str = "auto") -> None:
        """Look at what stdout and stderr are.

        Args:
            color: ``auto``, ``always`` or ``never``; auto is on a terminal, unless ``NO_COLOR`` is set.
        """
        self._fd = sys.stderr.fileno() if sys.stderr is not None else -1
        self.terminal = os.isatty(self._fd)
        able = os.environ.get("TERM", "dumb") != "dumb"
        wanted = color == "always" or (color == "auto" and able and not os.environ.get("NO_COLOR"))
        both = self.terminal and sys.stdout is not None and os.isatty(sys.stdout.fileno())
        self.color = wanted and (self.terminal or color == "always")
        self.rank_color = wanted and (both or color == "always")
        """Whether prefixes are colored; they are the same on stdout and stderr."""
        self.live = both and able
        """Whether one line may change; what the ranks write goes over it."""
        self.on_left: Callable[[], object] | None = None
        """Called, in whatever thread it was, when something was left: has the main thread call `show_left`."""
        self._status = False
        self._pending = b""
        self._lost_lines = 0
        self._left: deque[str] = deque(maxlen=_LEFT_LINES)

    @property
    def width(self) -> int:
        """Columns of the terminal; 0 where there is none."""
        try:
            return os.get_terminal_size(self._fd).columns or _COLUMNS
        except OSError:
            return 0

    def note(self, text: str) -> None:
        """Say one thing, behind our name; its text may be anybody's."""
        self.show([f"{self.paint('supervise:', '1')} {below_itself(text)}"])

    def show(self, lines: list[str]) -> None:
        """Write lines as they are."""
        self._write(self._erased() + "".join(f"{line}\n" for line in lines))

    def leave(self, lines: list[str]) -> None:
        """Have lines shown by the main thread. From any thread; the oldest of too many are lost."""
        self._left.extend(lines)
        if self.on_left is not None:
            self.on_left()

    def show_left(self) -> None:
        """Show what was left."""
        lines = [self._left.popleft() for _ in range(len(self._left))]
        if lines:
            self.show(lines)

    def status(self, text: str) -> None:
        """Show a line that the next one replaces. The cursor stays at its beginning, for the ranks' lines."""
        if self._pending:
            return
        self._status = True
        text, room = f"supervise: {one_line(text)}", max(self.width - 1, 20)
        text = text if len(text) <= room else f"{text[: room - 1]}…"
        self._write(f"{_ERASE}{self.paint(text, '2')}\r")

    def clear(self) -> None:
        """Take the status line away."""
        if self._status:
            self._write(self._erased())

    def _erased(self) -> str:
        erase, self._status = _ERASE if self._status else "", False
        return erase

    def paint(self, text: str, style: str) -> str:
        """Return `text` in a style (SGR numbers) where there is color."""
        return f"\x1b[{style}m{text}\x1b[0m" if self.color else text

    def prefix(self, role: str, rank: int) -> str:
        """Return what stands before each line of a rank; on a terminal it first takes the status line away."""
        plain = as_prefix(f"[{role}{rank}]:")
        shown = f"\x1b[{_RANK_COLORS[rank % len(_RANK_COLORS)]}m{plain}\x1b[0m" if self.rank_color else plain
        return f"\x1b[K{shown}" if self.live else shown

    def finish(self) -> None:
        """At the end: wait for what could not be shown yet."""
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
            text = f"supervise: {lost} lines were lost here: nobody read them\n{text}"
        patience_s = 0.0 if self._pending else _PATIENCE_S
        self._pending += text.encode(errors="backslashreplace")
        self._flush(patience_s)

    def _flush(self, patience_s: float) -> None:
        poll = select.poll()
        try:
            poll.register(self._fd, select.POLLOUT)
            while self._pending and poll.poll(patience_s * 1000):
                self._pending = self._pending[os.write(self._fd, self._pending[:_PIECE_BYTES]) :]
        except (OSError, ValueError):  # gone: say nothing more
            self._fd, self._pending = -1, b""


class LibraryLog(logging.NullHandler):
    """Shows what the library logs: its own failures. Events go elsewhere, and this handler is none for them.

    It is a `logging.NullHandler` since that is what the library takes for nobody listening. The gang's thread
    and the Tails log, too: a stderr that nobody reads must not hold them up, so the main thread does the writing.
    """

    def __init__(self, console: Console) -> None:
        """Write to `console`."""
        super().__init__(logging.WARNING)
        self._console = console

    def handle(self, record: logging.LogRecord) -> bool:
        """Show one record, with its traceback if it has one; now on the main thread, soon from any other."""
        lines = below_itself(self.format(record)).split("\n")
        if threading.current_thread() is threading.main_thread():
            self._console.show(lines)
        else:
            self._console.leave(lines)
        return True


@contextmanager
def library_log(console: Console) -> Iterator[None]:
    """Send what the library logs to the console."""
    handler = LibraryLog(console)
    handler.setFormatter(logging.Formatter("supervise: %(levelname)s: %(message)s"))
    logger = logging.getLogger("supervise")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        console.show_left()
