"""``supervise clean``: remove the directories of runs that are over."""

from __future__ import annotations

import os
import re
import stat
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from supervise._printable import one_line
from supervise._story.wording import counted, size
from supervise._views.recorded_run import runs_in
from supervise.cli.commands.runs import open_runs_dir, parser
from supervise.cli.options import values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervise._views.recorded_run import RecordedRun
    from supervise.cli.commands.runs import RunParser


_LOG = r"std(?:out|err)\.log"
_WRITTEN = re.compile(
    r"(?:(?:run|result)\.json|(?:events|samples)\.jsonl|report\.html|stacks-\d+\.txt|control\.sock)(?:\.[^/]*)?"
    rf"|attempt_\d+(?:/filtered_{_LOG}(?:\.\d+)?|/\d+(?:/(?:{_LOG}|error\.json)(?:\.\d+)?|/\.error\.[^/]*)?)?"
)
"""The paths of files and folders that a run writes."""


def options() -> RunParser:
    """Return the parser."""
    made = parser("clean", "Remove the directories of runs that are over, from the default folder.", run=False)
    made.add_argument(
        "--older-than", metavar="DUR", type=values.seconds, default=0.0, help="only runs that began so long ago"
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
    try:
        folder, at = open_runs_dir()
    except FileNotFoundError:
        print("0 runs removed, 0 B")
        return 0
    try:
        return _clean(runs_in(folder, at), at, before, keep_failed=found.keep_failed)
    finally:
        os.close(at)


def _clean(runs: Sequence[RecordedRun], at: int, before: datetime, *, keep_failed: bool) -> int:
    removed, freed_bytes, code = 0, 0, 0
    output = _Output()
    for run in runs:
        young = run.started is None or run.started > before
        if young or run.state == "running" or (keep_failed and run.state != "succeeded"):
            continue
        if run.state == "unknown":
            host = one_line(str(run.info.get("host_name")))
            output.line(
                f"kept {one_line(run.name)}: it may still run on host {host}; use supervise clean there, or rm -r"
            )
            continue
        state = run.state
        try:
            used_bytes, kept = remove(run.name, at)
        except OSError as error:
            print(f"supervise clean: {one_line(run.name)}: {error.strerror}", file=sys.stderr)
            code = 1
            continue
        more = f"; kept {one_line(os.path.join(run.path, kept))}, which no run has written" if kept else ""
        output.line(f"removed {one_line(run.name)} ({state}, {size(used_bytes)}){more}")
        removed, freed_bytes = removed + 1, freed_bytes + used_bytes
    output.line(f"{counted(removed, 'run')} removed, {size(freed_bytes)}")
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


def remove(name: str, at: int) -> tuple[int, str]:
    """Remove links, the files of a run that a run writes, and the folders that are empty then. Follow no link.

    Args:
        name: The directory of the run.
        at: A descriptor of the folder of runs.

    Returns:
        The bytes that the removed files took on the disk, and the path of a file that stays, because no run writes such
        a file; "" if there is none.

    Raises:
        OSError: The directory cannot be read or removed.
    """
    used_bytes, kept = 0, ""
    top = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    try:
        for path, folders, files, fd in os.fwalk(".", topdown=False, dir_fd=top):
            for each in (*files, *folders):
                found, full = (
                    os.stat(each, dir_fd=fd, follow_symlinks=False),
                    os.path.normpath(os.path.join(path, each)),
                )
                if not (_WRITTEN.fullmatch(full) or stat.S_ISLNK(found.st_mode)):
                    kept = full
                elif not stat.S_ISDIR(found.st_mode):
                    os.unlink(each, dir_fd=fd)
                    used_bytes += found.st_blocks * 512
                elif not os.path.dirname(kept).startswith(full):
                    with suppress(OSError):  # a file was made in it in the meantime
                        os.rmdir(each, dir_fd=fd)
    finally:
        os.close(top)
    if not kept:
        os.rmdir(name, dir_fd=at)
    return used_bytes, kept
