"""``supervise ls``: the runs of the default folder, the newest first."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from supervise._printable import one_line
from supervise._story.wording import columns, fitted
from supervise.cli.commands.runs import (
    RunParser,
    as_object,
    program_of,
    recorded_runs,
    shown_duration,
    shown_time,
    terminal_columns,
)
from supervise.cli.run.console import Console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervise._views.recorded_run import RecordedRun


_COLUMNS = ("NAME", "STATE", "EXIT", "STARTED", "TIME", "RANKS", "PROGRAM")
_LEFT_OUT = ("RANKS", "STARTED", "TIME", "EXIT")
"""The columns that a narrow terminal lacks, the first to go first."""
_NARROW = 80
"""In a terminal of up to so many columns, a state has no details."""
_STYLES = {"running": "32", "succeeded": "", "stopped": "33", "unknown": "33"}
"""State to its style (SGR numbers). The other states are failures."""
_FAILURE = "31"


def ls(words: Sequence[str]) -> int:
    """Print the runs; return the exit code.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    found = RunParser("ls").parsed(words)
    folder, runs = recorded_runs()
    if found.running:
        runs = [run for run in runs if run.state == "running"]
    if found.json:
        for run in runs:
            print(json.dumps(as_object(run)))
        return 0
    if not runs:
        print(f"no {'run is running' if found.running else 'runs'} in {one_line(folder)}")
        return 0
    print(*_table(runs), sep="\n")
    return 0


def _table(runs: Sequence[RecordedRun]) -> list[str]:
    """Return the table. On a terminal, the lines fit, and the states have colors."""
    room = terminal_columns()
    rows = [_COLUMNS, *(_row(run, brief=room is not None and room <= _NARROW) for run in runs)]
    cells = fitted(rows, room, _LEFT_OUT)
    if room is not None and Console().rank_color:
        at = cells[0].index("STATE")
        for run, row in zip(runs, cells[1:], strict=True):
            state = one_line(run.state)
            if row[at].startswith(state) and (style := _STYLES.get(run.state, _FAILURE)):
                row[at] = f"\x1b[{style}m{state}\x1b[0m{row[at].removeprefix(state)}"
    return columns(cells)


def _row(run: RecordedRun, *, brief: bool) -> tuple[str, ...]:
    code = run.result.get("exit_code")
    return (
        one_line(run.name),
        one_line(run.state) if brief else run.shown_state,
        "-" if code is None else one_line(str(code)),
        shown_time(run.started),
        shown_duration(run.duration),
        one_line(str(run.info.get("world_size"))),
        f"{program_of(run)}{f' ({run.counts})' if run.counts else ''}",
    )
