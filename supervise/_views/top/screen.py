"""The terminal of the live table: its modes, its size, its input, and writes that never block."""

from __future__ import annotations

import os
import select
import termios
import time
from contextlib import suppress

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""The alternate screen, without a cursor and without line wrap, so that the last column can be written."""
_LEAVE = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_PIECE_BYTES = 4096
_COLUMNS, _ROWS = 80, 24
"""The size of a terminal that reports 0 x 0."""
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
        self._entered = False

    @property
    def busy(self) -> bool:
        """Whether the terminal has not taken all output yet."""
        return bool(self._pending)

    def enter(self) -> None:
        """Switch to the alternate screen, and read keys one by one. Ctrl-C and Ctrl-Z still send signals.

        Raises:
            OSError: The terminal is lost.
            termios.error: The same.
        """
        modes = termios.tcgetattr(self.fd)
        modes[0] &= ~(termios.ICRNL | termios.INLCR)
        modes[3] &= ~(termios.ICANON | termios.ECHO)
        modes[6] = list(modes[6])
        modes[6][termios.VMIN], modes[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self.fd, termios.TCSANOW, modes)
        self._entered = True
        self._pending += _ENTER.encode()
        self.flush()

    def leave(self) -> None:
        """Restore the screen and the modes. Never raises; idempotent."""
        if not self._entered:
            return
        self._entered = False
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

    def size(self) -> tuple[int, int]:
        """Return columns and rows."""
        try:
            found = os.get_terminal_size(self.fd)
        except OSError:
            return _COLUMNS, _ROWS
        return found.columns or _COLUMNS, found.lines or _ROWS

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
