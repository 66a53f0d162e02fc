"""A program waits until its lifeline is armed: from its first instruction on, it cannot outlive this process.

The gate is a pipe, and before the program there is a shell that waits at it. If this process dies first,
there is nobody left who could let it through: the shell reads the end of the file, and ends.
"""

from __future__ import annotations

import os

from supervise._process import lifeline
from supervise._process.memory import clear_of_stdio


class Gate:
    """One program's. Whoever made it closes it."""

    def __init__(self) -> None:
        """Make the pipe.

        Raises:
            OSError: There is no descriptor left.
        """
        read, self._write = lifeline.private_pipe()
        try:
            self.read_end = clear_of_stdio(read)
        except OSError:
            lifeline.close_private(self._write)
            raise

    def open(self) -> None:
        """Let the program run."""
        os.write(self._write, b"\n")

    def close(self) -> None:
        """Give the pipe back. Who still waits at it ends."""
        lifeline.close_private(self._write)
        os.close(self.read_end)
