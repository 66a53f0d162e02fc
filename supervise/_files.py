"""Safe creation, opening and reading of files and folders that another user or process may replace."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from supervise.destinations import LogsDest


@contextlib.contextmanager
def closing(fd: int) -> Iterator[int]:
    """Close a descriptor at the end of the block."""
    try:
        yield fd
    finally:
        os.close(fd)


# Creation and opening of log folders, safe against another user who owns a folder above them
#
# The owner of a folder can rename its entries and replace them by symbolic links at any moment. A process that
# follows such a link would create or write files elsewhere.


_PRIVATE = 0o700
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", 0)
MOST_LINKS = 40


def accessible(path: str, mode: int) -> bool:
    """Return whether this process may access a path. As in the kernel's own check, the effective user counts.

    If it is the real user, the call is the older one, because some sandboxes refuse faccessat2.
    """
    same = (os.getuid(), os.getgid()) == (os.geteuid(), os.getegid())
    return os.access(path, mode) if same else os.access(path, mode, effective_ids=True)


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
    if links > MOST_LINKS:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    if not is_own(owner):
        raise OSError(
            errno.ELOOP,
            f"{name!r} in it is a symbolic link of another user (number {owner}), which is not followed",
            path,
        )


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


def make_private(name: str, at: int | None = None) -> None:
    """Make a folder with mode 0700, also if the umask takes permissions from the owner. `at` is a `dir_fd`.

    Raises:
        OSError: As `os.mkdir`.
    """
    os.mkdir(name, _PRIVATE, dir_fd=at)
    if os.lstat(name, dir_fd=at).st_mode & _PRIVATE != _PRIVATE:
        with closing(os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=at)) as fd:
            os.chmod(f"/proc/self/fd/{fd}", _PRIVATE)  # not by its name, which another user may have replaced by a link


def make_new_folder(prefix: str, at: int, base: str) -> str:
    """Make a private folder with a new name in the folder `at`, and return the name."""
    while True:
        name = f"{prefix}{os.urandom(4).hex()}"
        try:
            make_private(name, at)
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
    with closing(open_folder(parent)) as at:
        for name in names:
            _make_folder(f"{parent}/{name}", name, at, made)  # a call of `os.path.join` takes seven others


def _make_folder(path: str, name: str, at: int, made: dict[str, tuple[int, int]]) -> None:
    try:
        make_private(name, at)
    except FileExistsError as e:
        found = os.lstat(name, dir_fd=at)
        if not stat.S_ISDIR(found.st_mode):
            raise not_a_folder(path) from e
        # A network file system may map root to another uid, so device and inode also identify a folder made earlier
        if not is_own(found.st_uid) and made.get(path) != (found.st_dev, found.st_ino):
            raise PermissionError(
                e.errno, f"it is a folder of another user (number {found.st_uid}), which is not used for logs", path
            ) from e
    except OSError as e:
        raise OSError(e.errno, e.strerror, path) from e
    else:
        found = os.lstat(name, dir_fd=at)
        made[path] = found.st_dev, found.st_ino


def temporary_folder() -> str:
    """Return the system's folder for temporary files, as `tempfile.gettempdir`.

    Raises:
        FileNotFoundError: No such folder can be written to, as in a container with a read-only file system.
    """
    import tempfile  # lazy: it takes a thirtieth of the time of the first gang

    try:
        return tempfile.gettempdir()
    except FileNotFoundError as error:
        why = f"{error.strerror}; set TMPDIR to a folder that can be written to"
        raise FileNotFoundError(error.errno, why) from None


def not_a_folder(path: str) -> NotADirectoryError:
    if not os.path.islink(path):
        return NotADirectoryError(f"log_dir: {path} is a file")
    where = "in place of a folder of supervise" if os.path.exists(path) else "that cannot be resolved"
    return NotADirectoryError(f"log_dir: {path} is a symbolic link {where}")


# Files opened for appending: private to the user, and never reached through another user's symbolic link


_STREAMS = ("/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/")
"""Links of the system to open descriptors of this process."""


def open_to_append(path: str) -> int:
    """Open `path` for appending; a new file is private to the user. Return the descriptor.

    A symbolic link to a file is refused, because another user may have planted it so that this process
    writes to another file. A link to a device is followed, and also a link of the system, such as ``/dev/stdout``. A
    named pipe without a reader is refused, because the open would wait for a reader.

    Raises:
        OSError: The path cannot be opened, is a named pipe without a reader, or is a link to a file, existing or
            not; no file was made. ``filename`` is the path.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
    if path.startswith(_STREAMS):
        return os.open(path, flags)
    flags |= os.O_NONBLOCK | os.O_NOCTTY
    folder, name = os.path.split(path)
    try:
        at = open_folder(folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    try:
        fd = os.open(name, flags | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=at)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise _pipe_error(path) from error
        if error.errno != errno.ELOOP:
            raise OSError(error.errno, error.strerror, path) from error
        return _follow(path, os.readlink(name, dir_fd=at), flags)
    finally:
        os.close(at)
    return _writable(fd, path, stat.S_ISREG, stat.S_ISCHR, stat.S_ISFIFO)


def _follow(path: str, target: str, flags: int) -> int:
    """Open the target of a link unless it is a file."""
    if target.startswith(_STREAMS):
        return os.open(path, flags & ~os.O_NONBLOCK)
    if leads_to_file(path):
        raise link_error(path)
    try:
        fd = os.open(path, flags)
    except OSError as error:
        raise _pipe_error(path) if error.errno == errno.ENXIO else error from error
    if stat.S_ISREG(os.fstat(fd).st_mode):  # the link was changed in between
        os.close(fd)
        raise link_error(path)
    return _writable(fd, path, stat.S_ISCHR)


def _writable(fd: int, path: str, *kinds: Callable[[int], bool]) -> int:
    """Return `fd`, made blocking, if its file is of one of `kinds`; otherwise close it and raise."""
    mode = os.fstat(fd).st_mode
    if not any(is_kind(mode) for is_kind in kinds):
        os.close(fd)
        raise _pipe_error(path)
    os.set_blocking(fd, True)
    return fd


def _pipe_error(path: str) -> OSError:
    return OSError(
        errno.EINVAL,
        "a log cannot be written to a socket, a disk or a pipe without a reader",
        path,
    )


_readers: dict[str, Callable[[int], object]] = {}


def tell_of_open(path: str, reader: Callable[[int], object]) -> None:
    """Call `reader` with a copy of each descriptor that is opened for a worker's `path`; the reader closes the copy.

    The copy shares its file position, the end of the worker's last write, with the worker's descriptor. A new
    reader of a path replaces the earlier one; that one may still be reading the file of a past life at the same path.
    """
    _readers[path] = reader


def forget_reader(path: str, reader: Callable[[int], object]) -> None:
    """Undo `tell_of_open`. Idempotent."""
    if _readers.get(path) == reader:
        _readers.pop(path, None)


def tell_reader(path: str, fd: int) -> None:
    """Pass a copy of `fd` to the reader of `path`, unless no descriptor is left."""
    reader = _readers.get(path)
    if reader is not None:
        with contextlib.suppress(OSError):
            reader(os.dup(fd))


def leads_to_file(link: str) -> bool:
    """Whether a write through `link` would change or make a file."""
    try:
        return stat.S_ISREG(os.stat(link).st_mode)
    except FileNotFoundError:
        return True


def link_error(path: str) -> OSError:
    """Return the error for a symbolic link in the place of a log."""
    return OSError(errno.ELOOP, "it is a symbolic link to another file, which supervise does not write to", path)


# Safe reading of files that another process may have replaced by a pipe, a link or a huge file


def open_regular(path: str, *, follow: bool = False) -> int:
    """Open a regular file for reading and return the descriptor. Never blocks, even if `path` is a named pipe.

    The file type is checked after the open, since another process can replace the file between a check and an open.

    Args:
        path: The file.
        follow: Whether `path` may be a symbolic link.

    Raises:
        OSError: The file cannot be opened, is a symbolic link, or is not a regular file; ``filename`` names it.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    fd = os.open(path, flags if follow else flags | os.O_NOFOLLOW)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "not a regular file", path)


def data_begin(fd: int, place: int) -> int | None:
    """Return where the data of a file begins, from a place on; None if a hole up to the end follows, or nothing.

    A hole may have terabytes. The call moves the position of the descriptor.
    """
    try:
        return os.lseek(fd, place, os.SEEK_DATA)
    except OSError as error:
        return None if error.errno == errno.ENXIO else place  # the file system does not report holes


def read_regular(path: str, limit_bytes: int) -> tuple[bytes, int]:
    """Return the content of a regular file, and its modification time in nanoseconds.

    Args:
        path: The file.
        limit_bytes: The largest size that is read.

    Raises:
        OSError: As for `open_regular`, or the file cannot be read.
        ValueError: The file is larger than the limit.
    """
    with closing(open_regular(path)) as fd:
        found = os.fstat(fd)
        parts, left = [], limit_bytes + 1 if found.st_size <= limit_bytes else 0
        while left and (part := os.read(fd, left)):
            parts.append(part)
            left -= len(part)
        if not left:
            raise ValueError(f"it has more than {limit_bytes >> 20} MiB")
        return b"".join(parts), os.fstat(fd).st_mtime_ns


def is_mark(found: os.stat_result) -> bool:
    """Return whether a file marks an exception whose text could not be written because the disk was full.

    The file is empty, so it needs no block of the disk; its modification time is that of the exception. The sticky bit
    distinguishes it from an empty file that user code or another recorder made.
    """
    return not found.st_size and bool(found.st_mode & stat.S_ISVTX)


# The end of a log, and the room on its disk

_TAIL_BYTES = 16 * 1024
_NAMELESS = getattr(os, "O_TMPFILE", 0)
_PAGE = bytes(4096)
_BEFORE_CRASH = 4
_OF_A_DUMP = ("  ", "Thread 0x", "Current thread", "Extension modules: ", "<")
"""The beginnings of the lines of a dump of `faulthandler`, below the first one."""


def last_lines(path: str, count: int = 20) -> str:
    """Return the last lines of a log, at most 16 KiB; "" if the log cannot be read.

    If the log ends in a long dump of `faulthandler`, return the reason, the first frames of the thread that crashed,
    and what precedes the dump.
    """
    if not path or path == os.devnull:
        return ""
    try:
        with open(open_regular(path), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""
    rows = _rows(text.strip("\0").rstrip())  # a hole in a file reads as NUL
    crash = max((at for at, row in enumerate(rows) if row.startswith("Fatal Python error: ")), default=len(rows))
    if len(rows) - crash > count and all(not row or row.startswith(_OF_A_DUMP) for row in rows[crash + 1 :]):
        thread = next((at for at, row in enumerate(rows) if at > crash and row.startswith("Current thread 0x")), crash)
        rows = [*rows[max(0, crash - _BEFORE_CRASH) : crash + 1], "", *rows[thread:]][:count]
    return "\n".join(rows[-count:])


def _rows(text: str) -> list[str]:
    """Return the lines of a text. If it moves the cursor up, as nested progress bars do, later text replaces rows."""
    if "\x1b[" not in text:
        return text.split("\n")
    import re  # lazy: a rank imports this module

    rows, at, begins = [""], 0, False
    for part in re.split(r"(\n|\x1b\[[0-9]{0,9}[ABEF])", text):
        if part == "\n" or re.fullmatch(r"\x1b\[.*[BE]", part):
            at, begins = at + int(part[2:-1] or 1), True
            rows += [""] * (min(at, len(rows)) + 1 - len(rows))
            at = min(at, len(rows) - 1)
        elif re.fullmatch(r"\x1b\[.*[AF]", part):
            at, begins = max(0, at - int(part[2:-1] or 1)), True
        elif part:
            rows[at], begins = part if begins else rows[at] + part, False
    return [row for row in rows if row.strip() or "\r" not in row]  # a bar may clear its row


def no_room(path: str) -> OSError | None:
    """Return the error ENOSPC or EDQUOT if a write to the disk of `path` fails with it; None otherwise.

    The function writes to a file without a name, then drops the file. The count of free blocks would not do, because it
    ignores quotas and reserves.
    """
    try:
        with closing(os.open(os.path.dirname(path), _NAMELESS | os.O_WRONLY | os.O_CLOEXEC, 0o600)) as fd:
            os.write(fd, _PAGE)
    except OSError as failed:
        if failed.errno in (errno.ENOSPC, errno.EDQUOT):
            return OSError(failed.errno, failed.strerror, path)
        if failed.errno == errno.EOPNOTSUPP and _is_full(path):  # a network file system
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    return None


def _is_full(path: str) -> bool:
    try:
        disk = os.statvfs(path)
    except OSError:
        return False
    free = disk.f_bfree if os.geteuid() == 0 else disk.f_bavail
    return bool(disk.f_blocks) and free == 0


# The log files of an attempt, which are prepared before the ranks start


def make_ready(dest: LogsDest) -> None:
    """Move the files of an earlier run aside (``.1``, ``.2``, ...), and create empty private log files.

    Raises:
        OSError: A file cannot be created, or its path is a symbolic link to another file. ``filename`` is the path.
    """
    logs = [path for paths in (dest.stdouts, dest.stderrs) for path in paths.values()]
    for path in dict.fromkeys(_real(logs)):
        move_aside(path)
    for path in dict.fromkeys(_real(dest.error_files.values())):
        # The rank, which writes this file, would follow the link
        if move_aside(path) and os.path.islink(path) and leads_to_file(path):
            raise link_error(path)
    for path in dict.fromkeys(_real(logs)):
        os.close(open_to_append(path))


def move_aside(path: str) -> bool:
    """Rename an earlier regular file, unless it is empty; return whether there was a file at `path`.

    Raises:
        OSError: The file cannot be renamed; ``filename`` is its path.
    """
    try:
        os.lstat(path)  # almost always, there is no file
    except FileNotFoundError:
        return False
    except OSError:  # `open_folder` raises it
        pass
    folder, name = os.path.split(path)
    with closing(open_folder(folder)) as at:
        try:
            found = os.lstat(name, dir_fd=at)
            if not stat.S_ISREG(found.st_mode) or not (found.st_size or is_mark(found)):
                return True
            number = 1
            while _exists(f"{name}.{number}", at):
                number += 1
            os.rename(name, f"{name}.{number}", src_dir_fd=at, dst_dir_fd=at)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error
    return True


def _exists(name: str, at: int) -> bool:
    try:
        os.lstat(name, dir_fd=at)
    except FileNotFoundError:
        return False
    return True


def _real(paths: Iterable[str]) -> Iterable[str]:
    return (path for path in paths if path and path != os.devnull)


def size_of(path: str) -> int | None:
    """Return the size of a log in bytes; None if there is no log."""
    try:
        return os.stat(path).st_size
    except OSError:
        return None
