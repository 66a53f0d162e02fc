"""The folder that holds the run directories of ``supervise run``."""

from __future__ import annotations

import errno
import os
import stat

from supervise._files import make_private

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_ADVICE = "set SUPERVISE_RUNS_DIR to a folder of yours"


def runs_dir() -> str:
    """Return the path: ``$SUPERVISE_RUNS_DIR``, or else a folder below the user's state, or else below ``$TMPDIR``.

    Perhaps no folder can be written to, as in a container with a read-only file system. Then this path cannot be
    created.
    """
    if given := os.environ.get("SUPERVISE_RUNS_DIR"):
        return os.path.abspath(given)
    if (state := _state()) is not None:
        return os.path.join(state, "supervise", "runs")
    import tempfile  # lazy: few users have no home, and the import is slow

    try:
        parent = tempfile.gettempdir()
    except FileNotFoundError:
        parent = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - no folder is created there
    return os.path.join(parent, f"supervise-{os.geteuid()}")


def open_runs_dir(*, make: bool = False) -> tuple[str, int]:
    """Open the folder of runs; return its path, and a descriptor for calls that take a `dir_fd`.

    Any user can create a folder below ``$TMPDIR`` with this user's name, so that folder must belong to this user, must
    not be writable by others, and must not be a symbolic link.

    Args:
        make: Whether to create the folder if it is missing, for this user only. It must then belong to this user.

    Raises:
        FileNotFoundError: There is no folder, and `make` is False.
        OSError: The folder cannot be opened, created or written to, or belongs to another user; ``filename`` is its
            path.
    """
    path = runs_dir()
    if make:
        _make_folders(path)
    given = bool(os.environ.get("SUPERVISE_RUNS_DIR"))
    shared = not given and _state() is None
    try:
        at = os.open(path, FOLDER if given else FOLDER | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        raise NotADirectoryError(errno.ENOTDIR, "is not a folder; set SUPERVISE_RUNS_DIR to one", path) from None
    found = os.fstat(at)
    if found.st_uid != os.geteuid() and (make or shared):
        os.close(at)
        raise PermissionError(errno.EPERM, f"belongs to user {_user(found.st_uid)}; {_ADVICE}", path)
    if shared and stat.S_IMODE(found.st_mode) & (stat.S_IWGRP | stat.S_IWOTH):
        os.close(at)
        raise PermissionError(errno.EPERM, "other users may write to it; run chmod 700 on it", path)
    if make and not os.access(path, os.W_OK | os.X_OK):
        os.close(at)
        raise PermissionError(errno.EACCES, f"cannot be written to; {_ADVICE}, or give --log-dir", path)
    return path, at


def make_runs_dir() -> str:
    """Create the folder if it is missing, for this user only, and return its path.

    Raises:
        OSError: As for `open_runs_dir`.
    """
    path, at = open_runs_dir(make=True)
    os.close(at)
    return path


def _make_folders(path: str) -> None:
    """Create a folder and the missing folders above it, for this user only, whatever the umask is."""
    missing = []
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    for each in reversed(missing):
        try:
            make_private(each)
        except FileExistsError:  # another run has created it in the meantime
            continue
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror}; {_ADVICE}, or give --log-dir", each) from None


def _state() -> str | None:
    """Return the folder for the state of programs; None if this user has none."""
    state = os.environ.get("XDG_STATE_HOME") or ""
    home = os.environ.get("HOME") or ""
    if not os.path.isabs(state) and os.path.isabs(home) and not _is_of_another(home):  # XDG ignores relative paths
        state = os.path.join(home, ".local", "state")
    runs = os.path.join(state, "supervise", "runs")
    is_no_folder = os.path.lexists(runs) and not os.path.isdir(runs)  # an error: perhaps its disk is not mounted
    return state if os.path.isabs(state) and (is_no_folder or _can_make(runs)) else None


def _is_of_another(home: str) -> bool:
    """Return whether this is root with the home of another user, as after ``sudo -E``."""
    try:
        return os.geteuid() == 0 != os.stat(home).st_uid
    except OSError:
        return False


def _user(uid: int) -> str:
    import pwd

    try:
        return f"{pwd.getpwuid(uid).pw_name!r} ({uid})"
    except KeyError:
        return str(uid)


def _can_make(path: str) -> bool:
    """Return whether a folder exists and can be written to, or can be created."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)
