"""A program waits until its lifeline is armed: from its first instruction on, it cannot outlive this process.

The gate is a pipe, and before the program there is a shell that waits at it. If this process dies first,
there is nobody left who could let it through: the shell reads the end of the file, and ends.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from supervise._process.files import clear_of_stdio
from supervise._process.lifeline import lifeline

if TYPE_CHECKING:
    from collections.abc import Iterator


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

    def wait(self) -> None:
        """In a forked child, whose hook has closed the write end: wait until it is opened, or this process has died."""
        os.read(self.read_end, 1)
        os.close(self.read_end)

    def close(self) -> None:
        """Give the pipe back. Who still waits at it ends."""
        lifeline.close_private(self._write)
        os.close(self.read_end)


@contextmanager
def gate_if(wanted: bool) -> Iterator[Gate | None]:
    """Give a gate that is open when the block has succeeded, and is closed at its end; None where none is wanted.

    Raises:
        OSError: There is no descriptor left.
    """
    gate = Gate() if wanted else None
    try:
        yield gate
        if gate is not None:
            gate.open()
    finally:
        if gate is not None:
            gate.close()
