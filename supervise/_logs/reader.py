"""A Tail's view of one log file: the offset up to which it was read, and the part that was shown."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from typing import TYPE_CHECKING

from supervise._files import data_begin, forget_reader, open_regular, tell_of_open
from supervise._logs.watch import Watch, cancel_all, watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise._logs.lines import LineStream
    from supervise._logs.trim import LogTrimmer

CHUNK_BYTES = 64 * 1024
"""Number of bytes of one file to read before the next file is read."""

WRITTEN_OVER = (
    "the log was truncated or written over, and lines are lost"
    " (in a shell, write '>> /dev/stderr' for '> /dev/stderr' and 'tee -a' for 'tee')"
)
"""The report on a file whose content has changed after it was read."""

_COMPARED_BYTES = 1024
"""Number of bytes that are kept for comparison: at the start of the file, and before the offset."""


class LogReader:
    """A reader of one file for one destination. It continues to read after the file was unlinked or renamed."""

    def __init__(
        self,
        path: str,
        lines: LineStream,
        local_rank: int = 0,
        *,
        follows_writer: bool = False,
        trimmer: LogTrimmer | None = None,
    ) -> None:
        """Prepare. `open` opens the file.

        Args:
            path: The file.
            lines: The lines of the file.
            local_rank: The rank that writes the file.
            follows_writer: Whether to keep a duplicate of the rank's descriptor, whose position is that of the rank's
                last write.
            trimmer: The bound of the file, which from now on removes only parts that are shown; None if it has none.
        """
        self.path = path
        self.lines = lines
        self.local_rank = local_rank
        self.offset = 0
        """Position of the next read."""
        self.shown_bytes = 0
        """Number of bytes before the offset that were written to the destination or filtered out."""
        self.limit_bytes: int | None = None
        """The offset at which reading ends. None: reading ends at the end of the file."""
        self.changed = False
        """Whether the file may have been overwritten since the last comparison."""
        self.was_truncated = False
        """Whether the file was overwritten at an earlier time."""
        self.hole_bytes = 0
        """Number of bytes of holes that were skipped."""
        self.trimmer = trimmer
        """Removes the oldest part of the file once that part is shown. None: the file keeps all its bytes."""
        self._head = b""  # the first bytes of the file, as read
        self._before = b""  # the bytes before the offset, as read
        self._fd = -1
        self._expected: os.stat_result | None = None  # the file to open; None: any
        self._lock = threading.Lock()  # guards the next three attributes, because the loop sets the writer
        self._writer = -1  # a duplicate of the rank's descriptor, which shares its position
        self._closed = False
        self._last_end = 0  # the last position of the duplicate, which `writer_ended` has closed
        self._known_end = 0  # the writer's position when it was last beyond the end of the file
        self._watch: Watch | None = None
        if follows_writer:
            tell_of_open(path, self._take_writer)
        if trimmer is not None:
            trimmer.add(self)

    def open(self, changed: Callable[[], None]) -> None:
        """Open the file and watch it. The watching thread calls `changed` when the file grows or shrinks.

        Raises:
            OSError: The file cannot be opened, is not regular, or is not the expected one. Or the file can be read, but
                not watched.
        """
        fd = open_regular(self.path, follow=True)
        if self._expected is not None and not os.path.samestat(self._expected, os.fstat(fd)):
            os.close(fd)
            raise OSError(errno.ESTALE, "another file has this path now, and the log is not shown", self.path)
        self._fd = fd
        by_fd = f"/proc/self/fd/{fd}"  # leads to the open file, even if `path` leads to another one now
        self._watch = watch(by_fd if os.path.exists(by_fd) else self.path, changed)

    def expect_present_file(self) -> None:
        """Make `open` refuse every file but the present one.

        When `open` is called, a later life of the rank may have another file at this path.
        """
        with contextlib.suppress(OSError):
            self._expected = os.stat(self.path)

    def _take_writer(self, fd: int) -> None:
        """Store the duplicate of the descriptor. The loop calls this."""
        with self._lock:
            fd, self._writer = (fd, self._writer) if self._closed else (self._writer, fd)
        if fd >= 0:
            os.close(fd)

    def writer_ended(self) -> None:
        """Close the duplicate of the rank's descriptor. The loop calls this.

        The processes of the rank have ended, so the position of the duplicate no longer changes.
        """
        forget_reader(self.path, self._take_writer)
        with self._lock:
            fd, self._writer = self._writer, -1
            if fd >= 0:
                self._last_end = os.lseek(fd, 0, os.SEEK_CUR)
        if fd >= 0:
            os.close(fd)

    @property
    def is_open(self) -> bool:
        """Whether the file is open."""
        return self._fd >= 0

    def read(self) -> bytes:
        """Return the next chunk; a chunk shorter than `CHUNK_BYTES` ends at the present end of the file.

        Raises:
            OSError: The file cannot be read.
        """
        room = CHUNK_BYTES if self.limit_bytes is None else min(CHUNK_BYTES, self.limit_bytes - self.offset)
        if room <= 0:
            return b""
        chunk = os.pread(self._fd, room, self.offset)
        of_nul = chunk.startswith(b"\0") and (not self.offset or (len(chunk) == room and not chunk.strip(b"\0")))
        if of_nul and self._pass_by_hole():  # at offset 0 of any length, because the log may have been trimmed before
            return self.read()
        if self.offset < _COMPARED_BYTES:
            self._head = (self._head + chunk)[:_COMPARED_BYTES]
        last = chunk[-_COMPARED_BYTES:]  # first, because a copy of the whole chunk would take a tenth of the time
        self._before = (self._before + last)[-_COMPARED_BYTES:]
        self.offset += len(chunk)
        return chunk

    def _pass_by_hole(self) -> bool:
        """Skip the hole at the offset; return whether there is one."""
        size_bytes = self.size_bytes() if self.limit_bytes is None else self.limit_bytes
        begin = data_begin(self._fd, self.offset)
        end = size_bytes if begin is None else min(begin, size_bytes)
        passed = end - self.offset
        if passed > 0:
            self.offset, self._head, self._before = end, b"", b""
            self.hole_bytes += passed
        return passed > 0

    def end_at(self, size_bytes: int | None) -> None:
        """Stop reading at `size_bytes`, the size that the file at `path` had when the rank was reaped. None: unknown.

        After a rotation, `path` leads to another file. In this case, the limit of the open file is its present size. A
        file of unknown size that is not open has no limit.
        """
        if self.is_open and (size_bytes is None or not self._is_at_path()):
            size_bytes = self.size_bytes()
        self.limit_bytes = size_bytes

    def _is_at_path(self) -> bool:
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._fd))
        except OSError:
            return False

    def size_bytes(self) -> int:
        """Return the present size of the file; 0 if the file is not open."""
        with self._lock:  # so that `close` on another thread does not close the descriptor meanwhile
            return os.fstat(self._fd).st_size if self._fd >= 0 else 0

    def is_done(self) -> bool:
        """Return whether the whole file was read and shown. If it was, set the limit to the present offset."""
        if not self.is_open or self.lines.held_bytes or self.lines.continues or self.size_bytes() != self.offset:
            return False
        if self.was_written_over():
            return False
        self.limit_bytes = self.offset
        return True

    def was_written_over(self) -> bool:
        """Return whether the part that was read has changed, because the file was truncated or overwritten.

        If the file has grown past the offset again, two parts are compared: the bytes at its start, and the bytes
        before the offset. A change between these two places is not detected. A truncation of unread bytes is detected
        only until the rank writes again: until then, the position of the rank's descriptor is beyond the end of the
        file.
        """
        self.changed = False
        if not self.is_open:
            return False
        try:
            written = self._writers_end()  # before the size is read, because the file may grow in between
            size_bytes = self.size_bytes()
            if written > size_bytes and written != self._known_end:
                return True
            return size_bytes < self.offset or self._now() != (self._head, self._before)
        except OSError:  # the next read reports the error
            return False

    def _writers_end(self) -> int:
        with self._lock:
            return os.lseek(self._writer, 0, os.SEEK_CUR) if self._writer >= 0 else self._last_end

    def _now(self) -> tuple[bytes, bytes]:
        head = os.pread(self._fd, len(self._head), 0)
        if self.trimmer is not None and self.trimmer.trimmed_bytes:  # also if a removal is in progress
            head = self._head = b""
        return head, os.pread(self._fd, len(self._before), self.offset - len(self._before))

    def start_again(self) -> None:
        """Set the offset back in a file that was overwritten.

        Unchanged bytes are not read again. If the file is overwritten repeatedly and its start stays the same, reading
        continues at the first difference before the offset.
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
        """Return how many bytes up to the limit were not shown."""
        size_bytes = self.size_bytes() if self.limit_bytes is None else self.limit_bytes
        return max(0, size_bytes - self.shown_bytes)

    def let_go_of_watch(self) -> list[Watch]:
        """Return the watch, which the caller then ends; empty if the watch has already ended."""
        watching, self._watch = self._watch, None
        return [] if watching is None else [watching]

    def let_go_of_trimmer(self) -> None:
        """Unregister at the trimmer when this reader is finished. Idempotent."""
        if self.trimmer is not None:
            self.trimmer.remove(self)

    def close(self) -> None:
        """End the watch and close the file. Idempotent."""
        cancel_all(self.let_go_of_watch())
        self.let_go_of_trimmer()
        forget_reader(self.path, self._take_writer)
        with self._lock:
            self._closed = True
            fds, self._fd, self._writer = (self._fd, self._writer), -1, -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)
