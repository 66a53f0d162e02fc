"""``supervise ls``: the runs of the default folder, the newest first."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from supervise._printable import one_line
from supervise._story.wording import columns, shortened
from supervise.cli.commands.runs import (
    RunParser,
    as_object,
    program_of,
    recorded_runs,
    shown_duration,
    shown_start,
)
from supervise.cli.run.console import Console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervise._views.recorded_run import RecordedRun


_COLUMNS = ("NAME", "STATE", "EXIT", "STARTED", "TIME", "RANKS", "PROGRAM")
_LEFT_OUT = ("RANKS", "STARTED", "TIME", "EXIT")
"""The columns that a narrow terminal lacks, the first to go first."""
_LONGEST = 60
"""Characters of PROGRAM that a pipe or a file gets."""
_LEAST = 16
"""Characters of PROGRAM for which other columns are left out."""
_SHORTEST = 5
_TERMINAL_COLUMNS = 80
"""The width of a terminal that reports 0."""
_STYLES = {"running": "32", "succeeded": "", "stopped": "33", "unknown": "33"}
"""State to its style (SGR numbers). The other states are failures."""
_FAILURE = "31"


def options() -> RunParser:
    """Return the parser."""
    made = RunParser("ls", "List the runs, the newest first.", run=False)
    made.add_argument("--running", action="store_true", help="only the runs that are running")
    made.add_argument("--json", action="store_true", help="print one JSON object a line")
    return made


def ls(words: Sequence[str]) -> int:
    """Print the runs; return the exit code.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    found = options().parsed(words)
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
    on_terminal = sys.stdout.isatty()
    room = (os.get_terminal_size(sys.stdout.fileno()).columns or _TERMINAL_COLUMNS) if on_terminal else sys.maxsize
    rows = [_COLUMNS, *(_row(run, brief=room <= _TERMINAL_COLUMNS) for run in runs)]
    heads = list(_COLUMNS)
    width = {head: max(map(len, column)) + 2 for head, column in zip(heads, zip(*rows, strict=True), strict=True)}
    left = _LONGEST
    if on_terminal:
        for head in _LEFT_OUT:
            if (left := room - sum(width[each] for each in heads[:-1])) < min(_LEAST, width["PROGRAM"] - 2):
                heads.remove(head)
        if (left := room - sum(width[each] for each in heads[:-1])) < _SHORTEST:
            heads.remove("PROGRAM")
            left = max(_SHORTEST, room - width["NAME"])
    used = [_COLUMNS.index(head) for head in heads]
    lines = columns([[shortened(row[at], left) if at == used[-1] else row[at] for at in used] for row in rows])
    if on_terminal and Console().rank_color:
        at = width["NAME"]
        for number, run in enumerate(runs, 1):
            end = at + len(one_line(run.state))
            style = _STYLES.get(run.state, _FAILURE)
            line = lines[number]
            lines[number] = f"{line[:at]}\x1b[{style}m{line[at:end]}\x1b[0m{line[end:]}" if style else line
    return lines


def _row(run: RecordedRun, *, brief: bool) -> tuple[str, ...]:
    code = run.result.get("exit_code")
    return (
        one_line(run.name),
        one_line(run.state) if brief else run.shown_state,
        "-" if code is None else one_line(str(code)),
        shown_start(run),
        shown_duration(run.duration),
        one_line(str(run.info.get("world_size"))),
        f"{program_of(run)}{f' ({run.counts})' if run.counts else ''}",
    )
