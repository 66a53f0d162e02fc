"""The folder that holds the run directories of ``supervise run``."""

from __future__ import annotations

import os
import stat

_PRIVATE = 0o700


def runs_dir() -> str:
    """Return the path: ``$SUPERVISE_RUNS_DIR``, or else a folder below the user's state, or else below ``$TMPDIR``."""
    if given := os.environ.get("SUPERVISE_RUNS_DIR"):
        return os.path.abspath(given)
    state = os.environ.get("XDG_STATE_HOME") or ""
    home = os.environ.get("HOME") or ""
    if not os.path.isabs(state) and os.path.isabs(home):  # the XDG specification ignores relative paths
        state = os.path.join(home, ".local", "state")
    if os.path.isabs(state) and _can_make(state):
        return os.path.join(state, "supervise", "runs")
    import tempfile  # lazy: few users have no home, and the import is slow

    return os.path.join(tempfile.gettempdir(), f"supervise-{os.geteuid()}")


def make_runs_dir() -> str:
    """Create the folder if it is missing, for this user only, and return its path.

    Raises:
        OSError: The folder cannot be created, or belongs to another user; ``filename`` is its path.
    """
    path = runs_dir()
    os.makedirs(os.path.dirname(path), mode=_PRIVATE, exist_ok=True)
    try:
        os.mkdir(path, _PRIVATE)
    except FileExistsError:
        found = os.stat(path) if os.environ.get("SUPERVISE_RUNS_DIR") else os.lstat(path)
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(20, "is not a folder; set SUPERVISE_RUNS_DIR to one", path) from None
        if found.st_uid != os.geteuid():
            raise PermissionError(
                1, "belongs to another user; set SUPERVISE_RUNS_DIR to a folder of yours", path
            ) from None
    return path


def _can_make(path: str) -> bool:
    """Return whether a folder exists and can be written to, or can be created."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)
