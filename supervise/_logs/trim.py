"""Bounds on the size of logs on disk.

The oldest part of a file that has grown too large is given back to the file system.

The part becomes a hole. The size of the file and all offsets in it stay the same, so the rank that appends to the file
and the readers of the file notice nothing.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from typing import TYPE_CHECKING, Protocol

from supervise._files import closing, open_folder
from supervise._logs.watch import Watch, watch

if TYPE_CHECKING:
    from collections.abc import Callable


_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02
_BLOCK_BYTES = 4096
_COMPARED_BYTES = 4096
"""Number of shown bytes that stay in the file, because readers compare them with a copy."""
_HEADROOM = 8
"""One part in this many of the bound is removed at once.

So a flood of output costs only few calls.
"""


class Shown(Protocol):
    """A reader of a log. The trimmer removes only bytes that the reader has shown."""

    shown_bytes: int


class LogTrimmer:
    """The bound of one log. Thread-safe."""

    def __init__(self, path: str, max_bytes: int, report: Callable[[str, OSError | None], object]) -> None:
        """Prepare for the file at `path`, which exists. `begin` starts the bound.

        Args:
            path: The file.
            max_bytes: Number of bytes of the file that stay on the disk.
            report: Function that is called once: with None when a part was removed for the first time, or with the
                error if the removal failed. The call is on the thread that watches files or on that of a reader. The
                function must not block.

        Raises:
            OSError: The file cannot be inspected.
        """
        self.path = path
        self.trimmed_bytes = 0
        """The end of the part that is removed, or that is about to be removed."""
        self._max = max_bytes
        self._report = report
        self._file = os.stat(path)
        self._lock = threading.Lock()
        self._readers: set[Shown] = set()
        self._watch: Watch = Watch()
        self._told = self._over = False

    def begin(self) -> None:
        """Trim the file whenever it grows.

        Raises:
            OSError: The file cannot be watched.
        """
        self._watch = watch(self.path, self.trim)

    def end(self, *, readers_too: bool = True) -> None:
        """Stop. Without `readers_too`, continue to trim while readers show the remaining lines. Idempotent."""
        self._over = self._over or readers_too
        watching, self._watch = self._watch, Watch()  # no cycle: the watch refers to this object
        watching.cancel()

    def add(self, reader: Shown) -> None:
        """Remove only bytes that this reader has shown, from now on."""
        with self._lock:
            self._readers.add(reader)

    def remove(self, reader: Shown) -> None:
        """Ignore a reader from now on, because it is closed. Idempotent."""
        with self._lock:
            self._readers.discard(reader)
        self.trim()

    def trim(self, report: Callable[[str, OSError | None], object] | None = None) -> None:
        """Remove the oldest part of the file if it is too large.

        Args:
            report: Function that is called at once, instead of the `report` of the constructor.
        """
        with self._lock:
            if self._over:
                return
            try:
                size_bytes = os.stat(self.path).st_size
                if size_bytes < self.trimmed_bytes:  # truncated by the rank
                    self.trimmed_bytes = 0
                if size_bytes - self.trimmed_bytes <= self._max or not self._remove_up_to(self._target(size_bytes)):
                    return
                told, self._told, error = self._told, True, None
            except FileNotFoundError:  # removed by another program
                return
            except OSError as failed:
                told, self._over, error = False, True, failed
        if not told:
            (report or self._report)(self.path, error)

    def _target(self, size_bytes: int) -> int:
        end = size_bytes - self._max + self._max // _HEADROOM
        shown = min((reader.shown_bytes for reader in self._readers), default=size_bytes)
        return min(end, shown - _COMPARED_BYTES) // _BLOCK_BYTES * _BLOCK_BYTES

    def _remove_up_to(self, end: int) -> bool:
        """Make a hole up to `end`.

        Return whether the file is the expected one and has a part before `end` that is not removed.
        """
        start = self.trimmed_bytes
        if end <= start:
            return False
        folder, name = os.path.split(self.path)
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        with closing(open_folder(folder)) as at, closing(os.open(name, flags, dir_fd=at)) as fd:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or not os.path.samestat(found, self._file):
                return False
            self.trimmed_bytes = end  # set before the hole exists, so that a reader that finds the hole knows its cause
            try:
                punch_hole(fd, start, end - start)
            except OSError:
                self.trimmed_bytes = start
                raise
        return True


def punch_hole(fd: int, start: int, length: int) -> None:
    """Give a part of a file back to the file system. From then on, the part reads as NUL.

    Raises:
        OSError: The file system or the C library cannot do this.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    call = getattr(libc, "fallocate64", None) or getattr(libc, "fallocate", None)  # musl has the second only
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if call(fd, _PUNCH_HOLE | _KEEP_SIZE, start, length):
        raise OSError(ctypes.get_errno(), f"fallocate: {os.strerror(ctypes.get_errno())}")


class Trimming:
    """The bounds of the logs of one gang. Used on its loop, except for `of`."""

    def __init__(
        self,
        max_bytes: int,
        report: Callable[[str, OSError | None], object],
        tell: Callable[[str, OSError | None], object],
    ) -> None:
        """Keep `max_bytes` of each log.

        `report` is that of `LogTrimmer`; `tell` does the same, but is called on the loop.
        """
        self._max = max_bytes
        self._report = report
        self._tell = tell
        self._trimmers: dict[str, LogTrimmer] = {}

    def begin(self, path: str) -> None:
        """Bound a new log. Its file exists."""
        try:
            self._trimmers[path] = trimmer = LogTrimmer(path, self._max, self._report)
            trimmer.begin()
        except OSError as error:
            self._report(path, error)

    def of(self, path: str) -> LogTrimmer | None:
        """Return the bound of a log."""
        return self._trimmers.get(path)

    def trim_all(self) -> None:
        """Trim the logs of ranks that have ended.

        The thread that watches files may not have seen the last writes.
        """
        for trimmer in self._trimmers.values():
            trimmer.trim(self._tell)

    def end(self, path: str) -> None:
        """Stop bounding the log of a past life, but not before its rest is shown. Idempotent."""
        if (trimmer := self._trimmers.pop(path, None)) is not None:
            trimmer.trim(self._tell)
            trimmer.end(readers_too=False)

    def end_all(self) -> None:
        """Stop bounding all logs. Idempotent."""
        while self._trimmers:
            self._trimmers.popitem()[1].end()
