"""The terminal that controls supervise: its modes, and which process group has the foreground."""

from __future__ import annotations

import os
import signal
import stat
import sys
import termios
from contextlib import suppress
from typing import TYPE_CHECKING

from supervise._process.files import clear_of_stdio, close
from supervise._process.launch.program import Stdin

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise.cli.options.groups import Choice
    from supervise.cli.options.options import Options
    from supervise.cli.run.stdin_copies import StdinCopies


class Terminal:
    """The controlling terminal, on a descriptor. Used on the main thread.

    SIGTTOU is ignored from the start on. Otherwise, while a rank has the foreground, the kernel would suspend supervise
    when supervise writes to the terminal or takes the foreground back.
    """

    def __init__(self, fd: int) -> None:
        """Save the modes of the terminal.

        Raises:
            OSError: The descriptor is not the controlling terminal.
            termios.error: The terminal has no modes.
        """
        self._fd = fd
        self.holder: int | None = None
        """The process group to which supervise gave the foreground; None before, and after supervise has it back."""
        self.in_front()
        self._modes = termios.tcgetattr(fd)
        self._before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)

    def in_front(self) -> bool:
        """Return whether the process group of supervise has the foreground."""
        return os.tcgetpgrp(self._fd) == os.getpgrp()

    def give(self, group: int) -> bool:
        """Give the foreground to a process group of this session; return whether that was possible.

        It is not possible if supervise itself runs in the background, or if the group is empty.
        """
        try:
            if self.holder is None and not self.in_front():
                return False
            os.tcsetpgrp(self._fd, group)
        except OSError:
            return False
        self.holder = group
        return True

    def forget(self) -> int | None:
        """Note that the shell has taken the foreground; return the group that had it."""
        group, self.holder = self.holder, None
        return group

    def take(self) -> None:
        """Take the foreground back and restore the modes, unless supervise runs in the background. Idempotent."""
        with suppress(OSError, termios.error):  # the terminal has hung up
            if self.holder is not None:
                self.holder = None
                os.tcsetpgrp(self._fd, os.getpgrp())
            if self.in_front() and termios.tcgetattr(self._fd) != self._modes:
                termios.tcsetattr(self._fd, termios.TCSANOW, self._modes)

    def close(self, *, restore: bool) -> None:
        """Take the foreground back, and restore the modes; with `restore`, also restore the disposition of SIGTTOU."""
        self.take()
        if restore:
            signal.signal(signal.SIGTTOU, self._before)


def controlling(fd: int) -> Terminal | None:
    """Return the terminal on a descriptor if it controls this process, and job control is possible; otherwise None.

    If the process group of this process belongs to another PID namespace, the group has no number here. Then
    supervise could not take the foreground back.
    """
    if not os.isatty(fd) or not os.getpgrp():
        return None
    try:
        return Terminal(fd)
    except (OSError, termios.error):
        return None


# The stdin of the ranks: which rank reads the stdin of supervise, and the kind of that stdin


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
        self.terminal: Terminal | None = None
        """The terminal, if it controls supervise and a rank reads it."""
        kind = _kind()
        chosen = _chosen(options) if kind else "none"
        self._may_drop = options.stdin is None and chosen == "none" and kind in (stat.S_IFIFO, stat.S_IFREG)
        if isinstance(chosen, int):
            self.rank = chosen
            self.terminal = controlling(_FD)
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
            from supervise.cli.run.stdin_copies import StdinCopies

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
    """Return the choice. By default it is the rank whose role says so, or the only rank, unless it has a gate."""
    if options.stdin is not None:
        return options.stdin
    kinds = [part.settings.get("stdin") for part in options.parts for _ in range(part.count)]
    if "inherit" in kinds:
        return kinds.index("inherit")
    return 0 if kinds == [None] and not options.settings["gate"] else "none"


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
        from supervise._process.exits.thread import bytes_in  # lazy: few runs have input that no rank reads

        return bytes_in(_FD) > 0
    return False
