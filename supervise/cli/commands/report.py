"""``supervise report RUN``: a page about a run, and a trace, from the files of the run alone."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from supervise._printable import one_line
from supervise.cli import version
from supervise.cli.commands.runs import RunParser, program_of
from supervise.cli.run import directory
from supervise.cli.streams import complaint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervise._views.recorded_run import RecordedRun


_PAGE = "report.html"


def report(words: Sequence[str]) -> int:
    """Write the page; return the exit code.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    made = RunParser("report")
    found = made.read(words)
    if [found.output, found.trace, "-" if found.json else None].count("-") > 1:
        made.error("only one of the page, the trace and --json can go to stdout")
    if found.json and found.output is not None:
        made.error("--json writes no page, so that --output has no effect; leave out one of them")
    run: RecordedRun = found.run
    from supervise._views.report import history, page

    told = history.History(run)
    try:
        if found.trace is not None:
            _write(found.trace, json.dumps(history.trace(told, name=run.name), separators=(",", ":")) + "\n")
        if found.json:
            print(json.dumps(history.record(run, told)))
        else:
            content = page.page(run, told, program=program_of(run), version=version())
            if found.output is None:
                path = os.path.join(run.path, _PAGE)
                directory.write(path, content.encode(errors="replace"))  # a rank may have put a link there
            else:
                path = found.output
                _write(path, content)
            if path != "-" and not _is_stdout(path):
                print(one_line(path) if sys.stdout.isatty() else path)
    except OSError as error:
        if error.filename is None:  # of stdout
            raise
        print(f"supervise report: {complaint(error)}", file=sys.stderr)
        return 1
    return 0


def _is_stdout(path: str) -> bool:
    """Return whether a path leads to stdout: the page is its only content then."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(sys.stdout.fileno()))
    except OSError:
        return False


def _write(path: str, content: str) -> None:
    """Write to a path that the user has given, or to stdout."""
    data = content.encode(errors="replace")
    if path == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
    else:
        directory.write_output(path, data, mode=0o600)
