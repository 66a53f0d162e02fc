"""``supervise ls``: the runs of the default folder, the newest first."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from supervise._printable import one_line
from supervise._views.recorded_run import runs_in
from supervise.cli.run_commands import as_object, parser, program_of, shown_duration
from supervise.cli.runs_dir import runs_dir

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervise._views.recorded_run import RecordedRun
    from supervise.cli.run_commands import RunParser

_COLUMNS = ("NAME", "STATE", "EXIT", "STARTED", "TIME", "RANKS", "PROGRAM")
_LONGEST = 60


def options() -> RunParser:
    """Return the parser."""
    made = parser("ls", "List the runs, the newest first.", run=False)
    made.add_argument("--json", action="store_true", help="print one JSON object a line")
    return made


def ls(words: Sequence[str]) -> int:
    """Print the runs; return the exit code.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    found = options().parse_args(words)
    runs = runs_in(runs_dir())
    if found.json:
        for run in runs:
            print(json.dumps(as_object(run)))
        return 0
    if not runs:
        print(f"no runs in {one_line(runs_dir())}")
        return 0
    rows = [_COLUMNS, *map(_row, runs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _row(run: RecordedRun) -> tuple[str, ...]:
    code = run.result.get("exit_code")
    started = run.started
    program = program_of(run)
    return (
        one_line(run.name),
        one_line(run.state),
        "-" if code is None else one_line(str(code)),
        "-" if started is None else started.astimezone().strftime("%Y-%m-%d %H:%M:%S"),
        shown_duration(run.duration),
        one_line(str(run.info.get("world_size"))),
        program if len(program) <= _LONGEST else f"{program[: _LONGEST - 4]} ...",
    )
