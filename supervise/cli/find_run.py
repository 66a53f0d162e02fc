"""The search for the run that a word on the command line names."""

from __future__ import annotations

import os

from supervise._printable import one_line
from supervise._views.recorded_run import RecordedRun, runs_in
from supervise.cli.runs_dir import runs_dir

_MOST_LISTED = 10


class NoSuchRunError(Exception):
    """No run, or more than one, has this name. The text is a message for the user."""


def find_run(word: str) -> RecordedRun:
    """Return a run by the path of its directory, or by the beginning of its name in the default folder.

    If runs with such a name are running, those that have ended do not count. Of several runs that have ended and whose
    run ID is the word, the newest counts. A folder that does not hold a run counts only if the word has a slash.

    Args:
        word: The path or the beginning of the name.

    Raises:
        NoSuchRunError: There is none, or more than one.
    """
    run = RecordedRun(os.path.abspath(word))
    is_folder = os.path.isdir(word)
    if (is_folder and run.is_run()) or os.sep in word:
        return _checked(run, word)
    folder = runs_dir()
    found = [run for run in runs_in(folder) if run.name.startswith(word)]  # the newest first
    exact = [run for run in found if run.name == word]
    if len(found) > 1:
        running = [run for run in found if run.state in ("running", "unknown")]
        found = running or [run for run in found if run.info.get("run_id") == word][:1] or found
    if len(found) == 1 or exact:
        return (exact or found)[0]
    if not found:
        if is_folder:
            return _checked(run, word)
        raise NoSuchRunError(f"no run in {one_line(folder)} is named {one_line(word)!r}; see: supervise ls")
    names = ", ".join(one_line(run.name) for run in found[:_MOST_LISTED])
    more = f" and {len(found) - _MOST_LISTED} more" if len(found) > _MOST_LISTED else ""
    raise NoSuchRunError(f"{len(found)} runs are named {one_line(word)!r}...: {names}{more}; give more of the name")


def _checked(run: RecordedRun, word: str) -> RecordedRun:
    if run.is_run():
        return run
    if _is_closed(run.path):
        raise NoSuchRunError(f"{one_line(word)} belongs to another user, and you may not read it")
    raise NoSuchRunError(f"{one_line(word)} is not the directory of a run: it has no readable run.json")


def _is_closed(path: str) -> bool:
    """Return whether a folder belongs to another user, and this user may not read it."""
    try:
        return os.stat(path).st_uid != os.geteuid() and not os.access(path, os.R_OK | os.X_OK, effective_ids=True)
    except PermissionError:
        return True
    except OSError:
        return False
