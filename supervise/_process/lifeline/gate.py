"""Gate: a program starts only after its lifeline is armed, so the program never outlives the host.

The gate is a pipe. A shell waits for a line on it and then becomes the program. If the host dies first, the
shell reads EOF and exits.
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
    """The gate of one program. The caller that has made the gate closes it."""

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
        """Wait until the host opens the gate or dies. For a forked child, which has closed the write end."""
        os.read(self.read_end, 1)
        os.close(self.read_end)

    def close(self) -> None:
        """Close the pipe. A shell that still waits at the gate exits."""
        lifeline.close_private(self._write)
        os.close(self.read_end)


@contextmanager
def gate_if(wanted: bool) -> Iterator[Gate | None]:
    """Yield a gate; None if it is not `wanted`.

    The gate is opened after the block has succeeded, and closed in any case.

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
