"""The stderr of `run`: notes, a status line, and the library's log."""

from __future__ import annotations

import json
import logging
import os
import select
import stat
import sys
import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from supervise._logs.lines import TIME
from supervise._logs.screen import ERASE, Screen
from supervise._printable import as_prefix, below_itself, one_line, width_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


# Events as lines on stderr for people (``-v``)


_COMMON = frozenset(
    "event level schema_version timestamp monotonic_ns run_id gang role attempt rank local_rank host_name seq".split()  # noqa: SIM905 - shorter
)
_MOST_CHARS = 400


def as_text(event: dict[str, Any]) -> str:
    """Return an event as one line: time, name, rank, and the other fields that are not empty."""
    rank = event.get("local_rank")
    who = "" if rank is None else f" rank={rank}"
    fields = (f"{key}={_value(value)}" for key, value in event.items() if key not in _COMMON and value not in _EMPTY)
    line = f"{str(event['timestamp'])[11:23]} {event['event'].removeprefix('supervise.')}{who} {' '.join(fields)}"
    return one_line(line.rstrip())[:_MOST_CHARS]


_EMPTY: tuple[Any, ...] = (None, "", [], {}, ())


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return json.dumps(text) if " " in text and isinstance(value, str) else text


_PATIENCE_S = 2.0
"""How long to wait for a stderr that blocks; afterwards output is buffered."""
_LAST_PATIENCE_S = {False: 5.0, True: 60.0}
"""How long to wait at the end of the run. Key: whether stderr is a terminal, which Ctrl-S may suspend."""
_PIECE_BYTES = 4096
_KEPT_BYTES = 256 * 1024
"""The size of the buffer for a stderr that blocks; further lines are lost, and their number is reported later."""
_LEFT_LINES = 1000
"""The largest number of buffered lines from other threads."""
_RANK_COLORS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)


class Console:
    """The stderr of `run`. Errors of writes are ignored, and a stderr that blocks delays the run only briefly.

    Only the main thread writes. Other threads pass lines to `leave`, which never blocks.
    """

    def __init__(self, color: str = "auto", *, quiet: bool = False, json: bool = False, shared: bool = False) -> None:
        """Inspect stdout and stderr.

        Args:
            color: ``auto``, ``always`` or ``never``; auto: color on a terminal unless ``NO_COLOR`` is set.
            quiet: Whether to show errors only.
            json: Whether to show JSON objects only.
            shared: Whether ranks write to the terminal themselves, so that `Console` draws no rows below the lines.
        """
        self._quiet, self._json = quiet, json
        self._fd = sys.stderr.fileno() if sys.stderr is not None else -1
        out_fd = sys.stdout.fileno() if sys.stdout is not None else -1
        self.terminal: bool = os.isatty(self._fd)
        able = (os.environ.get("TERM") or "dumb") != "dumb"
        wanted = color == "always" or (color == "auto" and able and not os.environ.get("NO_COLOR"))
        both = self.terminal and os.isatty(out_fd)
        self.color: bool = wanted and (self.terminal or color == "always")
        self.rank_color: bool = wanted and (both or color == "always")
        """Whether prefixes are colored, on stdout and stderr alike."""
        self.live: bool = both and able
        """Whether a status line may be shown; output of ranks overwrites it."""
        rows_fd = -1 if shared or not able else _terminal_of_rows(out_fd, self._fd)
        self.screen: Screen = Screen(rows_fd)
        """Where the unfinished lines of ranks are shown."""
        self._own = (
            self.screen if rows_fd in (self._fd, -1) else Screen(self._fd)
        )  # the rows below the lines of this console
        self.on_left: Callable[[], object] | None = None
        """Called by `leave`, on the thread of its caller. The function makes the main thread call `show_left`."""
        self._pending = b""
        self._lost_lines = 0
        self._left: deque[str] = deque(maxlen=_LEFT_LINES)

    def note(self, text: str) -> None:
        """Show a message after ``supervise:``; control characters are removed."""
        if not self._quiet and not self._json:
            self.show([f"{self.paint('supervise:', '1')} {below_itself(text)}"])

    def error(self, text: str) -> None:
        """Show an error, as `note` shows a message; as JSON an object with the keys ``level`` and ``message``."""
        line = f"{self.paint('supervise:', '1')} {below_itself(text)}"
        self.show([json.dumps({"level": "error", "message": text}) if self._json else line])

    def show(self, lines: list[str]) -> None:
        """Write lines unchanged. They replace the status line."""
        self._own.status = ""
        self._write(self._own.erasure() + "".join(f"{line}\n" for line in lines) + self._own.drawing())

    def leave(self, lines: list[str]) -> None:
        """Pass lines to the main thread. Thread-safe; beyond the limit the oldest lines are lost."""
        self._left.extend(lines)
        if self.on_left is not None:
            self.on_left()

    def leave_note(self, text: str) -> None:
        """Pass a message to the main thread, as `leave` passes lines."""
        if not self._quiet and not self._json:
            self.leave([f"supervise: {below_itself(text)}"])

    def show_left(self) -> None:
        """Show the lines that other threads left."""
        lines = [self._left.popleft() for _ in range(len(self._left))]
        if lines:
            self.show(lines)

    def status(self, text: str) -> None:
        """Show the status line, below the unfinished lines of ranks."""
        if self._pending or self._quiet or self._json:
            return
        self._own.status, self._own.status_style = f"supervise: {one_line(text)}", "2" if self.color else ""
        self._write(ERASE + self._own.drawing())

    def clear(self) -> None:
        """Erase the status line and unfinished lines. Call this method when no output of ranks is shown any more."""
        self._own.status, self._own.rows = "", ()
        if erasure := self._own.erasure():
            self._write(erasure)

    def paint(self, text: str, style: str) -> str:
        """Return `text` in a style (SGR numbers) if color is enabled."""
        return f"\x1b[{style}m{text}\x1b[0m" if self.color else text

    def prefix(self, text: str, rank: int) -> str:
        """Return the prefix of a rank's lines, in the rank's color. On a terminal, it first erases the status line."""
        plain = as_prefix(text)
        shown = f"\x1b[{_RANK_COLORS[rank % len(_RANK_COLORS)]}m{plain}\x1b[0m" if self.rank_color else plain
        return f"\x1b[K{shown}" if self.live else shown

    def add_variables(self, envs: dict[int, dict[str, str]], prefixes: Mapping[int, str]) -> None:
        """Add variables that tell ranks that a terminal shows their output. A variable that the user has set stays.

        ``FORCE_COLOR`` enables colors. With it alone, rich would also move the cursor; ``TTY_INTERACTIVE`` prevents
        that.

        Args:
            envs: Local rank to variables of the rank.
            prefixes: Local rank to prefix of each rank that is shown.
        """
        if not self.live:
            return
        size = os.get_terminal_size(self._fd)
        color = {"FORCE_COLOR": "1", "TTY_INTERACTIVE": "0"} if self.rank_color else {}
        for rank, prefix in prefixes.items():
            found = dict(color)
            if size.columns and size.lines:
                found |= {
                    "COLUMNS": str(max(size.columns - width_of(prefix.replace(TIME, "15:04:05.678")), 1)),
                    "LINES": str(size.lines),
                }
            envs[rank] = {name: value for name, value in found.items() if name not in os.environ} | envs[rank]

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
        except (OSError, ValueError):  # stderr is closed: write nothing more
            self._fd, self._pending = -1, b""


def _terminal_of_rows(out_fd: int, err_fd: int) -> int:
    """Return the descriptor of the terminal that may have rows below the lines; -1 if there is none.

    If stdout is a pipe, its reader, such as ``tee``, may write over the rows on the terminal of stderr.
    """
    if out_fd >= 0 and os.isatty(out_fd):
        same = os.isatty(err_fd) and os.fstat(err_fd).st_rdev == os.fstat(out_fd).st_rdev
        return err_fd if same else out_fd
    piped = out_fd >= 0 and stat.S_ISFIFO(os.fstat(out_fd).st_mode)
    return err_fd if os.isatty(err_fd) and not piped else -1


class LibraryLog(logging.NullHandler):
    """A logging handler that shows warnings of the library, but not its events.

    The class is a `logging.NullHandler`: if a logger has only such handlers, the library emits no events to it. The
    gang's thread and the Tails also log. A stderr that blocks must not delay them, so only the main thread writes.
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
