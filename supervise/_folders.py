"""Creation and opening of log folders, safe against another user who owns a folder above them.

The owner of a folder can rename its entries and replace them by symbolic links at any moment. A process that follows
such a link would create or write files elsewhere.
"""

# A worker imports this module: only `os` and built-in modules.

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_PRIVATE = 0o700
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", 0)
_MOST_LINKS = 40


def open_folder(path: str) -> int:
    """Open a folder for calls that take a `dir_fd`; return the descriptor.

    A symbolic link on the path is followed only if it belongs to this user or to the system. Another user may plant a
    link so that this process creates files where that user has no permission.

    Raises:
        OSError: The folder does not exist, or a link of another user is on the path; ``filename`` is the path.
    """
    path = path or "."
    fd = os.open(path, _FOLDER)
    try:
        if os.readlink(f"/proc/self/fd/{fd}") == path:  # no link on the path
            return fd
    except OSError:  # no /proc
        pass
    os.close(fd)
    return _walk(path)


def is_own(owner: int) -> bool:
    """Return whether `owner` is trusted: this user, root, or the owner of ``/``."""
    return owner in (os.geteuid(), 0) or owner == os.stat("/").st_uid  # in a user namespace, root may have no uid


def _check_link(path: str, name: str, owner: int, links: int) -> None:
    if links > _MOST_LINKS:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    if not is_own(owner):
        msg = f"{name!r} in it is a symbolic link of another user (number {owner}), which is not followed"
        raise OSError(errno.ELOOP, msg, path)


def _walk(path: str) -> int:
    """Open a folder component by component."""
    at, steps, links = os.open("/" if path.startswith("/") else ".", _FOLDER), path.split("/")[::-1], 0
    try:
        while steps:
            name = steps.pop()
            if name in ("", "."):
                continue
            found = os.lstat(name, dir_fd=at)
            if stat.S_ISLNK(found.st_mode):
                links += 1
                _check_link(path, name, found.st_uid, links)
                target = os.readlink(name, dir_fd=at)
                steps += target.split("/")[::-1]
                name = "/" if target.startswith("/") else "."
            # O_NOFOLLOW: a link that replaces the folder after the lstat is not followed
            step = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = step
    except BaseException as error:
        os.close(at)
        if isinstance(error, OSError) and error.filename != path:
            raise OSError(error.errno, error.strerror, path) from error
        raise
    return at


def make_new_folder(prefix: str, at: int, base: str) -> str:
    """Make a private folder with a new name in the folder `at`, and return the name."""
    while True:
        name = f"{prefix}{os.urandom(4).hex()}"
        try:
            os.mkdir(name, _PRIVATE, dir_fd=at)
        except FileExistsError:
            continue
        except PermissionError as e:
            raise PermissionError(e.errno, e.strerror, base) from e
        except OSError as e:
            raise OSError(e.errno, e.strerror, os.path.join(base, name)) from e
        return name


def make_folders(parent: str, names: Iterable[str], made: dict[str, tuple[int, int]]) -> None:
    """Make private folders in `parent`; accept folders that an earlier call made.

    Args:
        parent: The folder above; symbolic links of other users on its path are not followed.
        names: Names of the folders.
        made: Path to device and inode of each folder that was made; updated for the next call.

    Raises:
        NotADirectoryError: A link or a file already has the name.
        PermissionError: A folder of another user already has the name.
        OSError: A folder cannot be made; ``filename`` is its path.
    """
    at = open_folder(parent)
    try:
        for name in names:
            _make_folder(os.path.join(parent, name), name, at, made)
    finally:
        os.close(at)


def _make_folder(path: str, name: str, at: int, made: dict[str, tuple[int, int]]) -> None:
    try:
        os.mkdir(name, _PRIVATE, dir_fd=at)
    except FileExistsError as e:
        found = os.lstat(name, dir_fd=at)
        if not stat.S_ISDIR(found.st_mode):
            raise not_a_folder(path) from e
        # A network file system may map root to another uid, so device and inode also identify a folder made earlier
        if not is_own(found.st_uid) and made.get(path) != (found.st_dev, found.st_ino):
            why = f"it is a folder of another user (number {found.st_uid}), which is not used for logs"
            raise PermissionError(e.errno, why, path) from e
    except OSError as e:
        raise OSError(e.errno, e.strerror, path) from e
    else:
        found = os.lstat(name, dir_fd=at)
        made[path] = found.st_dev, found.st_ino


def not_a_folder(path: str) -> NotADirectoryError:
    if not os.path.islink(path):
        return NotADirectoryError(f"log_dir: {path} is a file")
    where = "in place of a folder of supervise" if os.path.exists(path) else "that cannot be resolved"
    return NotADirectoryError(f"log_dir: {path} is a symbolic link {where}")
