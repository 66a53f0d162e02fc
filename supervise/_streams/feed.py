"""A file that a worker writes, as its Tail sees it: how far it was read, and how far it was shown."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from supervise._streams.watch import cancel_all, watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise._streams.lines import LineStream
    from supervise._streams.watch import Watch

CHUNK_BYTES = 64 * 1024
"""How much is read of one file before the next has its turn."""


class Feed:
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
        self.was_truncated = False
        """Whether it was ever started again."""
        self._fd = -1
        self._watch: Watch | None = None

    def open(self, changed: Callable[[], None]) -> None:
        """Open the file and have `changed` called, on the watching thread, when it grows or is cut short.

        Raises:
            OSError: It cannot be opened, or not be watched; in the latter case it can be read.
        """
        self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        self._watch = watch(self._same_file(), changed)

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
        self.offset += len(chunk)
        return chunk

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
        self.limit_bytes = self.offset
        return True

    def was_cut_short(self) -> bool:
        """Whether the file is smaller than what was read of it: it was truncated.

        One that was truncated and has grown past that again, between two looks, does not tell.
        """
        return self.is_open and self.size_bytes() < self.offset

    def start_again(self) -> None:
        """Go back to the beginning of a file that was truncated."""
        self.was_truncated = True
        self.offset = self.shown_bytes = 0

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
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
