"""Launches one rank's binary."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from supervise._process import launch
from supervise._process.function import Launched

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from supervise._process.lifeline import Lifeline


@dataclass(slots=True, kw_only=True)
class ProgramLauncher:
    """Launches one rank's program; `launch` runs on the loop."""

    argv: Sequence[str]
    env: Mapping[bytes, bytes] = field(repr=False)
    cwd: str | None
    streams: launch.Streams
    line: Lifeline
    reset: frozenset[int]
    """Signals that this process ignores and the program must not."""
    stdin: int | None = None
    enter: str | None = None
    """As for `launch.run_program`."""

    def launch(self) -> Launched:
        """Start the process.

        Raises:
            OSError: It could not be started; nothing of it is left.
        """
        read_end = self.line.read_end()
        try:
            process = launch.run_program(
                self.argv,
                env=self.env,
                cwd=self.cwd,
                streams=self.streams,
                read_end=read_end,
                reset=self.reset,
                stdin=self.line.empty if self.stdin is None else self.stdin,
                enter=self.enter,
            )
        finally:
            launch.close(read_end)
        self.line.hold(process.pid)
        return Launched(process=process)
