"""The report of `supervise run` on a gang that did not start. `_story.failure_report` reports on a gang that failed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from supervise._files import last_lines
from supervise._printable import one_line
from supervise._story.failure_report import WHY_LINES, clean_output, plain
from supervise._views.recorded_run import RecordedRun
from supervise.cli.run import program
from supervise.errors import SpawnError

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise._story.failure_report import Story
    from supervise.cli.options.parts import Part


def not_started(error: BaseException, who: str, part: Part) -> str:
    """Format the error of a start: ``cannot start rank 0: nope.py: No such file or directory``.

    Args:
        error: The error.
        who: The rank, such as ``rank 0``; empty if it is not known.
        part: Its program.
    """
    if isinstance(error, OSError) and not who and error.filename is None and error.strerror:
        return f"cannot start: {error.strerror}"
    if isinstance(error, OSError) and error.errno is not None:
        file = part.program if error.filename is None else os.fsdecode(error.filename)
        why = program.complaint(error.errno, part) if file == part.program else None
        return f"cannot start{who and f' {who}'}: {why or f'{file}: {os.strerror(error.errno)}'}"
    late = isinstance(error, SpawnError) and part.settings.get("ready") == "notify" and not error.exitcode
    hint = "; call supervise.notify(ready=True) in it, or systemd-notify --ready, or leave out --ready" if late else ""
    if isinstance(error, SpawnError) and error.what == "did not start":
        return f"cannot start {str(error).replace(f' {error.what}', '', 1)}{hint}"
    return f"cannot start: {error}{hint}"


def unready(error: BaseException, story: Story, paint: Callable[[str, str], str] = plain) -> list[str]:
    """Return the last output of a rank that ended, or was not ready in time, before the gang had started."""
    rank = error.local_rank if isinstance(error, SpawnError) else None
    if rank is None or story.directory is None:
        return []
    shown: list[str] = []
    for log in reversed(RecordedRun(story.directory).logs().get(rank, [])):
        rows = clean_output(last_lines(log, WHY_LINES))
        if any(rows) and not (story.nproc == 1 and story.stderr_shown):
            stream = os.path.basename(log).partition(".")[0]
            shown = ["", f"  the end of its {stream}:", *(f"    {one_line(row)}".rstrip() for row in rows), ""]
            break
    return [*shown, f"  {paint('logs:', '1')} {one_line(story.directory)}"]
