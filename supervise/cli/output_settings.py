"""The settings of ``supervise run`` for output."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervise.cli.output_options import TEMPLATE_VARIABLE

if TYPE_CHECKING:
    import argparse


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OutputOptions:
    """The validated options about output, except those from which other code derives settings."""

    merge: bool = False
    """Whether the stderr of each rank goes to the file of its stdout."""
    log_max_bytes: int | None = None
    """How many bytes of each log stay on the disk; None: all."""
    line_prefix: str | None = None
    """Template of the prefix; None: the default prefix."""
    stdout_filters: tuple[str, ...] = ()
    """Texts; the lines that contain one of them are also written to one file."""
    stderr_filters: tuple[str, ...] = ()
    halt_on_broken_pipe: bool = False
    """Whether the run is stopped when the reader of stdout or stderr is gone."""

    def prefix(self, role: str, role_rank: int, *, rank: int, local_rank: int) -> str:
        """Return the prefix of a rank's lines."""
        if self.line_prefix is None:
            return f"[{role}{role_rank}]:"
        from string import Template

        return Template(self.line_prefix).safe_substitute(role_name=role, rank=rank, local_rank=local_rank)


def of(found: argparse.Namespace) -> OutputOptions:
    """Return the options of a checked command line."""
    template = found.log_line_prefix
    return OutputOptions(
        merge=found.merge,
        log_max_bytes=found.log_max_bytes,
        line_prefix=(os.environ.get(TEMPLATE_VARIABLE) or None) if template is None else template,
        stdout_filters=found.duplicate_stdout_filters,
        stderr_filters=found.duplicate_stderr_filters,
        halt_on_broken_pipe=found.halt_on_broken_pipe,
    )
