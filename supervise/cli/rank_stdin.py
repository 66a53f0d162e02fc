"""The stdin of the ranks: which rank reads the stdin of supervise, and the kind of that stdin."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from supervise._process.files import clear_of_stdio, close
from supervise._process.launch.launch_spec import Stdin
from supervise.cli import terminal

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise.cli.options import Options
    from supervise.cli.stdin_copies import StdinCopies
    from supervise.cli.stdin_options import Choice

_FD = 0


class RankStdin:
    """The stdin of each rank of a run. Made on the main thread before the ranks start."""

    def __init__(self, options: Options, complain: Callable[[str], object]) -> None:
        """Inspect stdin.

        Args:
            options: The validated options.
            complain: Called with a message if input is lost, on any thread; must not block.

        Raises:
            OSError: There are too few descriptors for all ranks.
        """
        self._complain = complain
        self._nproc = options.nproc
        self._fds: dict[int, int] = {}
        self._copies: StdinCopies | None = None
        self._keeps = options.restarts is not None
        self.rank: int | None = None
        """The rank that reads the stdin of supervise; None if no rank does, or all."""
        self.terminal: terminal.Terminal | None = None
        """The terminal, if it controls supervise and a rank reads it."""
        kind = _kind()
        chosen = _chosen(options) if kind else "none"
        self._may_drop = options.stdin is None and chosen == "none" and kind in (stat.S_IFIFO, stat.S_IFREG)
        if isinstance(chosen, int):
            self.rank = chosen
            self.terminal = terminal.controlling(_FD)
        elif chosen == "all":
            self._copy(kind)

    def of_ranks(self) -> dict[int, Stdin]:
        """Return rank to stdin; a rank without one has the null device."""
        if self.rank is not None:
            return {self.rank: Stdin(_FD, foreground=self.terminal is not None)}
        return {rank: Stdin(fd) for rank, fd in self._fds.items()}

    def _copy(self, kind: int) -> None:
        """Open a regular file once more for each rank; copy any other input to a pipe for each."""
        try:
            if kind == stat.S_IFREG and self._open_again():
                return
            from supervise.cli.stdin_copies import StdinCopies

            self._copies = StdinCopies(_FD, self._nproc, self._complain)
            self._fds = dict(enumerate(self._copies.read_ends))
        except BaseException:
            self.close_fds()
            raise

    def _open_again(self) -> bool:
        """Open the file for each rank; return False if this user may not open it."""
        position = os.lseek(_FD, 0, os.SEEK_CUR)
        for rank in range(self._nproc):
            try:
                self._fds[rank] = clear_of_stdio(os.open(f"/proc/self/fd/{_FD}", os.O_RDONLY | os.O_CLOEXEC))
            except PermissionError:  # another user has opened the file for supervise
                return False
            os.lseek(self._fds[rank], position, os.SEEK_SET)
        return True

    def warn_if_dropped(self) -> None:
        """Complain once if stdin has input that no rank reads."""
        if self._may_drop and _has_input():
            self._may_drop = False
            self._complain("stdin has input, but no rank reads it; --stdin RANK or --stdin all passes it on")

    def ended(self, rank: int) -> None:
        """Release the copy of a rank that has ended and does not restart, so that it delays no other rank."""
        if self._copies is not None and not self._keeps:
            close(self._fds.pop(rank, None))

    def close_fds(self) -> None:
        """Close the descriptors of the ranks."""
        close(*self._fds.values())
        self._fds.clear()

    def close(self, *, restore: bool) -> None:
        """Release all, and restore the terminal. Idempotent.

        Args:
            restore: Whether to restore the dispositions of signals, because this process continues afterwards.
        """
        self.close_fds()
        if self._copies is not None:
            self._copies.close()
        if self.terminal is not None:
            self.terminal.close(restore=restore)


def reads_terminal(options: Options) -> bool:
    """Return whether a rank reads the terminal of supervise. That terminal then has no rows for unfinished lines."""
    return isinstance(_chosen(options), int) and os.isatty(_FD)


def _chosen(options: Options) -> Choice:
    """Return the choice with its default: the only rank, unless it has a gate."""
    if options.stdin is None:
        return 0 if options.nproc == 1 and not options.gate else "none"
    return options.stdin


def _kind() -> int:
    """Return the kind of file that stdin is, as in `stat.S_IFMT`; 0 if it is closed."""
    if sys.__stdin__ is None:  # stdin was closed at the start, and another file may have its number
        return 0
    try:
        return stat.S_IFMT(os.fstat(_FD).st_mode)
    except OSError:
        return 0


def _has_input() -> bool:
    with suppress(OSError):
        found = os.fstat(_FD)
        if stat.S_ISREG(found.st_mode):
            return found.st_size > os.lseek(_FD, 0, os.SEEK_CUR)
        import array
        import fcntl
        import termios

        waiting = array.array("i", [0])
        fcntl.ioctl(_FD, termios.FIONREAD, waiting)
        return waiting[0] > 0
    return False
