"""The terminal that controls supervise: its modes, and which process group has the foreground."""

from __future__ import annotations

import os
import signal
import termios
from contextlib import suppress


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
        self._holder: int | None = None
        self.in_front()
        self._modes = termios.tcgetattr(fd)
        self._before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)

    @property
    def holder(self) -> int | None:
        """The process group to which supervise gave the foreground; None before, and after supervise has it back."""
        return self._holder

    def in_front(self) -> bool:
        """Return whether the process group of supervise has the foreground."""
        return os.tcgetpgrp(self._fd) == os.getpgrp()

    def give(self, group: int) -> bool:
        """Give the foreground to a process group of this session; return whether that was possible.

        It is not possible if supervise itself runs in the background, or if the group is empty.
        """
        try:
            if self._holder is None and not self.in_front():
                return False
            os.tcsetpgrp(self._fd, group)
        except OSError:
            return False
        self._holder = group
        return True

    def forget(self) -> int | None:
        """Note that the shell has taken the foreground; return the group that had it."""
        group, self._holder = self._holder, None
        return group

    def take(self) -> None:
        """Take the foreground back and restore the modes, unless supervise runs in the background. Idempotent."""
        with suppress(OSError, termios.error):  # the terminal has hung up
            if self._holder is not None:
                self._holder = None
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
