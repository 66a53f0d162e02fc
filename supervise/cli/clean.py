"""``supervise clean``: remove the directories of runs that are over."""

from __future__ import annotations

import os
import shutil
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from supervise._printable import one_line
from supervise._views.recorded_run import runs_in
from supervise._views.wording import size
from supervise.cli import option_values
from supervise.cli.run_commands import parser
from supervise.cli.runs_dir import runs_dir

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervise._views.recorded_run import RecordedRun
    from supervise.cli.run_commands import RunParser


def options() -> RunParser:
    """Return the parser."""
    made = parser("clean", "Remove the directories of runs that are over, from the default folder.", run=False)
    made.add_argument(
        "--older-than", metavar="DUR", type=option_values.seconds, default=0.0, help="only runs that began so long ago"
    )
    made.add_argument("--keep-failed", action="store_true", help="keep the runs that did not succeed")
    return made


def clean(words: Sequence[str]) -> int:
    """Remove runs; return the exit code: 1 if one could not be removed.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
        OSError: The runs were removed, but stdout takes no output.
    """
    found = options().parse_args(words)
    before = datetime.now(UTC) - timedelta(seconds=min(found.older_than, 1e9))
    removed, freed_bytes, code = 0, 0, 0
    output = _Output()
    for run in runs_in(runs_dir()):
        young = run.started is None or run.started > before
        if young or run.state == "running" or (found.keep_failed and run.state != "succeeded"):
            continue
        if run.state == "unknown":
            host = one_line(str(run.info.get("host_name")))
            output.line(
                f"kept {one_line(run.name)}: it may still run on host {host}; use supervise clean there, or rm -r"
            )
            continue
        used_bytes = _used_bytes(run)
        try:
            shutil.rmtree(run.path)  # follows no link
        except OSError as error:
            print(f"supervise clean: {one_line(run.name)}: {error.strerror}", file=sys.stderr)
            code = 1
            continue
        output.line(f"removed {one_line(run.name)} ({run.state}, {size(used_bytes)})")
        removed, freed_bytes = removed + 1, freed_bytes + used_bytes
    output.line(f"{removed} {'run' if removed == 1 else 'runs'} removed, {size(freed_bytes)}")
    output.end()
    return code


class _Output:
    """The output of the command. A stdout that fails does not end the removal: its disk may be the full one."""

    def __init__(self) -> None:
        """Begin."""
        self._error: OSError | None = None

    def line(self, text: str) -> None:
        """Print a line, unless an earlier one failed."""
        try:
            if self._error is None:
                print(text)
        except OSError as error:
            self._error = error

    def end(self) -> None:
        """Raise the first error.

        Raises:
            OSError: A line could not be printed.
        """
        if self._error is not None:
            raise self._error


def _used_bytes(run: RecordedRun) -> int:
    """Return the bytes that the files of a run take on the disk."""
    total = 0
    for folder, _, names in os.walk(run.path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except OSError:
                continue
    return total
