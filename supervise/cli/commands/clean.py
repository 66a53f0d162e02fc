"""``supervise clean``: remove the directories of runs that are over."""

from __future__ import annotations

import os
import re
import stat
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from supervise._files import closing
from supervise._printable import one_line
from supervise._story.wording import counted, size
from supervise.cli.commands.runs import (
    NoSuchRunError,
    RunParser,
    find_run,
    recorded_runs,
)
from supervise.cli.runs_folder import FOLDER, open_runs_dir, runs_dir

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from supervise._views.recorded_run import RecordedRun


_LOG = r"std(?:out|err)\.log"
_WRITTEN = re.compile(
    r"(?:(?:run|result)\.json|(?:events|samples)\.jsonl|report\.html|stacks-\d+\.txt|control\.sock)(?:\.[^/]*)?"
    rf"|attempt_\d+(?:/filtered_{_LOG}(?:\.\d+)?|/\d+(?:/(?:{_LOG}|error\.json)(?:\.\d+)?|/\.error\.[^/]*)?)?"
)
"""The paths of files and folders that a run writes."""


def clean(words: Sequence[str]) -> int:
    """Remove runs; return the exit code: 1 if one could not be removed, 2 if it is not said which.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
        OSError: The runs were removed, but stdout takes no output.
    """
    made = RunParser("clean")
    found = made.parsed(words)
    if found.runs and found.all:
        made.error("RUN and --all exclude each other; omit one of them")
    try:
        named = {run.path: run for run in map(find_run, found.runs)}
    except NoSuchRunError as error:
        made.error(f"argument RUN: {error}")
    runs = list(named.values()) if found.runs else recorded_runs()[1]
    before = datetime.now(UTC) - timedelta(seconds=min(found.older_than or 0.0, 1e9))
    chosen = [run for run in runs if _is_chosen(run, before, found)]
    output = _Output()
    said = bool(found.runs or found.all or found.older_than is not None)
    if not said and not found.dry_run:
        if not (os.isatty(0) and sys.stdout.isatty()):
            made.error("say which runs to remove: RUN, --older-than DUR, or --all; --dry-run lists those of --all")
        if chosen and not _agrees(chosen, output):
            return 0
    code = _remove(chosen, output, dry_run=found.dry_run)
    if output.error is not None:
        raise output.error
    return code


def _agrees(runs: Sequence[RecordedRun], output: _Output) -> bool:
    """List runs on the terminal, and return whether the user agrees to their removal."""
    _remove(runs, output, dry_run=True)
    with suppress(EOFError):
        return input("Remove them? [y/N] ").strip().lower() in ("y", "yes")
    return False


def _is_chosen(run: RecordedRun, before: datetime, found: argparse.Namespace) -> bool:
    if found.keep_failed and run.state not in ("succeeded", "running", "unknown"):
        return False
    is_old = run.started is not None and run.started <= before
    return is_old or found.older_than is None if found.runs else is_old and run.state != "running"


def _remove(runs: Sequence[RecordedRun], output: _Output, *, dry_run: bool) -> int:
    """Remove runs, or tell what would be removed; return the exit code."""
    removed, freed_bytes, code = 0, 0, 0
    for run in runs:
        name, state = one_line(run.name), one_line(run.state)
        if state == "running":
            print(f"supervise clean: {name} is running; first: supervise stop {name}", file=sys.stderr)
            code = 1
            continue
        if state == "unknown":
            host = one_line(str(run.info.get("host_name")))
            output.line(f"kept {name}: it may still run on host {host}; use supervise clean there, or rm -r")
            continue
        try:
            used_bytes, kept = remove(run.path, dry_run=dry_run)
        except OSError as error:
            if not os.path.lexists(run.path):  # another `supervise clean` has removed it
                continue
            print(f"supervise clean: {name}: {error.strerror}", file=sys.stderr)
            code = 1
            continue
        more = f"; kept {one_line(os.path.join(run.path, kept))}, which no run has written" if kept else ""
        output.line(f"{'would remove' if dry_run else 'removed'} {name} ({state}, {size(used_bytes)}){more}")
        removed, freed_bytes = removed + 1, freed_bytes + used_bytes
    output.line(f"{counted(removed, 'run')} {'to remove' if dry_run else 'removed'}, {size(freed_bytes)}")
    return code


class _Output:
    """The output of the command. A stdout that fails does not end the removal: its disk may be the full one."""

    error: OSError | None = None
    """Why a line could not be printed; None if all were."""

    def line(self, text: str) -> None:
        """Print a line, unless an earlier one failed."""
        try:
            if self.error is None:
                print(text)
        except OSError as error:
            self.error = error


def remove(path: str, *, dry_run: bool) -> tuple[int, str]:
    """Remove links, the files of a run that a run writes, and the folders that are empty then. Follow no link.

    Args:
        path: The directory of the run.
        dry_run: Whether to remove nothing.

    Returns:
        The bytes that the removed files take on the disk, and the path of a file that stays, because no run writes such
        a file; "" if there is none.

    Raises:
        OSError: The directory cannot be read or removed.
    """
    folder, name = os.path.split(path)
    used_bytes, kept = 0, ""
    with (
        closing(open_runs_dir()[1] if folder == runs_dir() else os.open(folder, FOLDER)) as at,
        closing(os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=at)) as top,
    ):
        for below, folders, files, fd in os.fwalk(".", topdown=False, dir_fd=top):
            for each in (*files, *folders):
                full = os.path.normpath(os.path.join(below, each))
                with suppress(FileNotFoundError):  # another `supervise clean` has removed it
                    found = os.stat(each, dir_fd=fd, follow_symlinks=False)
                    if not (_WRITTEN.fullmatch(full) or stat.S_ISLNK(found.st_mode)):
                        kept = full
                    elif not stat.S_ISDIR(found.st_mode):
                        if not dry_run:
                            os.unlink(each, dir_fd=fd)
                        used_bytes += found.st_blocks * 512
                    elif not dry_run:
                        with suppress(OSError):  # a file stays, or was made in the meantime
                            os.rmdir(each, dir_fd=fd)
        if not kept and not dry_run:
            os.rmdir(name, dir_fd=at)  # it fails if another `supervise clean`, which counts the run, was faster
    return used_bytes, kept
