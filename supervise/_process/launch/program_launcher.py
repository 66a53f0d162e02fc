"""Launcher of one rank's program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervise._process.files import close
from supervise._process.launch import program
from supervise._process.launch.launched import Launched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervise._process.launch.launch_spec import LaunchSpec


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ProgramLauncher:
    """Launcher of one rank's program. `launch` runs on the loop."""

    argv: Sequence[str]
    how: LaunchSpec

    def launch(self) -> Launched:
        """Start the process.

        Raises:
            OSError: The program could not be started; no process is left.
        """
        line = self.how.line
        read_end = line.read_end()
        try:
            process = program.run_program(self.argv, self.how, read_end)
        except BaseException:
            close(read_end)
            raise
        return Launched(process=process, line=line, read_end=line.keep(read_end))
