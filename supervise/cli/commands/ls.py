"""``supervise ls``: the runs of the default folder, the newest first."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from supervise._printable import one_line
from supervise._story.wording import columns, shortened
from supervise.cli.commands.runs import as_object, parser, program_of, recorded_runs, shown_duration, shown_start

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervise._views.recorded_run import RecordedRun
    from supervise.cli.commands.runs import RunParser


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
    folder, runs = recorded_runs()
    if found.json:
        for run in runs:
            print(json.dumps(as_object(run)))
        return 0
    if not runs:
        print(f"no runs in {one_line(folder)}")
        return 0
    print(*columns([_COLUMNS, *map(_row, runs)]), sep="\n")
    return 0


def _row(run: RecordedRun) -> tuple[str, ...]:
    code = run.result.get("exit_code")
    return (
        one_line(run.name),
        one_line(run.state),
        "-" if code is None else one_line(str(code)),
        shown_start(run),
        shown_duration(run.duration),
        one_line(str(run.info.get("world_size"))),
        shortened(program_of(run), _LONGEST),
    )
