"""Launches one rank's binary."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from supervise._process.launch import dispositions, program
from supervise._process.launch.function import Launched
from supervise._process.lifeline.gate import gate_if

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from supervise._process.exits.handle import Process
    from supervise._process.lifeline.gate import Gate
    from supervise._process.lifeline.lifeline import Lifeline


@dataclass(slots=True, kw_only=True)
class ProgramLauncher:
    """Launches one rank's program; `launch` runs on the loop."""

    argv: Sequence[str]
    env: Mapping[bytes, bytes] = field(repr=False)
    cwd: str | None
    streams: program.Streams
    line: Lifeline
    reset: frozenset[int]
    """Signals that this process ignores and the program must not."""
    enter: str | None = None
    """As for `program.run_program`."""
    gated: bool = False
    """Whether it waits until its lifeline is armed."""

    def launch(self) -> Launched:
        """Start the process.

        Raises:
            OSError: It could not be started; nothing of it is left.
        """
        read_end = self.line.read_end()
        try:
            # Where the kernel reaps, it tells how a program has ended only if it was held before
            with gate_if(self.gated or dispositions.kernel_reaps()) as gate:
                process = self._run(read_end, gate)
        except BaseException:
            program.close(read_end)
            raise
        return Launched(process=process, line=self.line, read_end=self.line.keep(read_end))

    def _run(self, read_end: int, gate: Gate | None) -> Process:
        return program.run_program(
            self.argv,
            env=self.env,
            cwd=self.cwd,
            streams=self.streams,
            read_end=read_end,
            reset=self.reset,
            stdin=self.line.empty,
            enter=self.enter,
            gate=gate,
        )
