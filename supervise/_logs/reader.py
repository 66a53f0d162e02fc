"""A file that a worker writes, as its Tail sees it: how far it was read, and how far it was shown."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from typing import TYPE_CHECKING

from supervise._logs.watch import cancel_all, watch
from supervise._opening import open_regular
from supervise._process.append import forget_reader, tell_of_open

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise._logs.lines import LineStream
    from supervise._logs.watch import Watch

CHUNK_BYTES = 64 * 1024
"""How much is read of one file before the next has its turn."""

WRITTEN_OVER = (
    "the log was truncated or written over, and lines are lost"
    " (in a shell, write '>> /dev/stderr' for '> /dev/stderr' and 'tee -a' for 'tee')"
)
"""What is said of a file that is no longer what was read."""

_COMPARED_BYTES = 1024
"""How much of what was read is kept, at the beginning and at the end, to be compared with what is there later."""


class LogReader:
    """One file on its way to one destination. Unlinked or renamed, it is read on; it is never written."""

    def __init__(self, path: str, lines: LineStream) -> None:
        """Nothing is opened yet."""
        self.path = path
        self.lines = lines
        self.offset = 0
        """What was read so far."""
        self.shown_bytes = 0
        """How much of that has reached the destination, or was not meant to."""
        self.limit_bytes: int | None = None
        """The size up to which the file counts; None: it counts as it is."""
        self.changed = False
        """Whether it may have been written over since it was last compared."""
        self.was_truncated = False
        """Whether it was ever started again."""
        self.hole_bytes = 0
        """How much was passed by where the file has a hole: nobody has written that."""
        self._head = b""  # the first bytes that were read
        self._before = b""  # those right before the offset
        self._fd = -1
        self._lock = threading.Lock()  # guards the next two: the loop gives the writer
        self._writer = -1  # shares its position with the worker's descriptor
        self._closed = False
        self._known_end = 0  # what that position was when it was last seen behind the end of the file
        self._watch: Watch | None = None

    def open(self, changed: Callable[[], None]) -> None:
        """Open the file and have `changed` called, on the watching thread, when it grows or is cut short.

        Raises:
            OSError: It cannot be opened or is not a regular file; or it cannot be watched, but can be read.
        """
        self._fd = open_regular(self.path, follow=True)
        self._watch = watch(self._same_file(), changed)

    def follow_writer(self) -> None:
        """Know from now on where its worker has written last. That holds one more descriptor."""
        tell_of_open(self.path, self._take_writer)

    def _take_writer(self, fd: int) -> None:
        """Keep a copy of the worker's descriptor. On the loop."""
        with self._lock:
            fd, self._writer = (fd, self._writer) if self._closed else (self._writer, fd)
        if fd >= 0:
            os.close(fd)

    def _same_file(self) -> str:
        """Return a path to the very file that is open, whatever has its name by now."""
        by_fd = f"/proc/self/fd/{self._fd}"
        return by_fd if os.path.exists(by_fd) else self.path

    @property
    def is_open(self) -> bool:
        """Whether it can be read."""
        return self._fd >= 0

    def read(self) -> bytes:
        """Return the next chunk; one shorter than `CHUNK_BYTES` means the end, for now or for good.

        Raises:
            OSError: The file cannot be read.
        """
        room = CHUNK_BYTES if self.limit_bytes is None else min(CHUNK_BYTES, self.limit_bytes - self.offset)
        if room <= 0:
            return b""
        chunk = os.pread(self._fd, room, self.offset)
        if len(chunk) == room and chunk.startswith(b"\0") and not chunk.strip(b"\0") and self._pass_by_hole():
            return self.read()
        if self.offset < _COMPARED_BYTES:
            self._head = (self._head + chunk)[:_COMPARED_BYTES]
        self._before = (self._before + chunk)[-_COMPARED_BYTES:]
        self.offset += len(chunk)
        return chunk

    def _pass_by_hole(self) -> bool:
        """Go on behind the hole that begins at the offset; tell whether there is one. It may have terabytes."""
        size_bytes = self.size_bytes() if self.limit_bytes is None else self.limit_bytes
        end = size_bytes
        try:
            end = min(end, os.lseek(self._fd, self.offset, os.SEEK_DATA))
        except OSError as error:
            if error.errno != errno.ENXIO:  # that is: a hole up to the end
                return False
        passed = end - self.offset
        if passed > 0:
            self.offset, self._head, self._before = end, b"", b""
            self.hole_bytes += passed
        return passed > 0

    def end_at(self, size_bytes: int | None) -> None:
        """Read no further than `size_bytes`, the size of what `path` led to when its writer ended; None: unknown.

        A log that was rotated is not what its path leads to any more: it ends where it ends now.
        """
        if size_bytes is None or (self.is_open and not self._is_at_path()):
            size_bytes = self.size_bytes()
        self.limit_bytes = size_bytes

    def _is_at_path(self) -> bool:
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._fd))
        except OSError:
            return False

    def size_bytes(self) -> int:
        """Return the file's size now; 0 when it is not open."""
        return os.fstat(self._fd).st_size if self.is_open else 0

    def is_done(self) -> bool:
        """Whether all that is in the file was read and shown; if so, it ends there."""
        if not self.is_open or self.lines.held_bytes or self.lines.reserved or self.size_bytes() != self.offset:
            return False
        if self.was_written_over():
            return False
        self.limit_bytes = self.offset
        return True

    def was_written_over(self) -> bool:
        """Whether what was read is not there any more: the file was truncated, or something was written into it.

        It may have grown past the offset since; then what stood at its beginning and right before the offset tells.
        What was written over between these two places does not tell. Nor does what was truncated before it was read,
        unless the worker has written nothing since: then it has written last behind the end of the file.
        """
        self.changed = False
        if not self.is_open:
            return False
        try:
            written = self._writers_end()  # before the size, which may grow meanwhile
            size_bytes = self.size_bytes()
            if written > size_bytes and written != self._known_end:
                return True
            return size_bytes < self.offset or self._now() != (self._head, self._before)
        except OSError:  # the next read says it
            return False

    def _writers_end(self) -> int:
        with self._lock:
            return os.lseek(self._writer, 0, os.SEEK_CUR) if self._writer >= 0 else 0

    def _now(self) -> tuple[bytes, bytes]:
        head = os.pread(self._fd, len(self._head), 0)
        return head, os.pread(self._fd, len(self._before), self.offset - len(self._before))

    def start_again(self) -> None:
        """Go back to the beginning of a file that was written over.

        What was read and is still there is not read again. If it happens again and again and the beginning stays, only
        what follows the first difference is new.
        """
        start = 0
        with contextlib.suppress(OSError):
            self._known_end = self._writers_end()
            head, before = self._now()
            unchanged = head == self._head and (before == self._before or self.was_truncated)
            if unchanged and self.size_bytes() >= self.offset:
                pairs = enumerate(zip(before, self._before, strict=False))
                same = next((index for index, (now, then) in pairs if now != then), len(before))
                start = self.offset - len(self._before) + same
        self._before = self._before[: len(self._before) - (self.offset - start)] if start else b""
        self._head = self._head if start else b""
        self.was_truncated = True
        self.offset = self.shown_bytes = start

    def remaining_bytes(self) -> int:
        """Return how much of what counts was not shown."""
        size_bytes = self.size_bytes() if self.limit_bytes is None else self.limit_bytes
        return max(0, size_bytes - self.shown_bytes)

    def let_go_of_watch(self) -> list[Watch]:
        """Return the watch, which whoever takes it ends; empty if there is none any more."""
        watching, self._watch = self._watch, None
        return [] if watching is None else [watching]

    def close(self) -> None:
        """End the watch and close the file; again is harmless."""
        cancel_all(self.let_go_of_watch())
        forget_reader(self.path, self._take_writer)
        with self._lock:
            self._closed = True
            fds, self._fd, self._writer = (self._fd, self._writer), -1, -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)
