"""Copies of the stdin of supervise, one for each rank. An unnamed file holds the input that a rank has yet to read."""

from __future__ import annotations

import os
import select
import tempfile
import threading
from typing import TYPE_CHECKING

from supervise._files import temporary_folder
from supervise._process.files import clear_of_stdio, close
from supervise._runtime.wakeup import WakeFd

if TYPE_CHECKING:
    from collections.abc import Callable


CHUNK_BYTES = 64 * 1024
_END_S = 1.0
MOST_BYTES = 1 << 30
"""The size of the file, a ring. While a rank has not read so many bytes, no more input is read."""


class StdinCopies:
    """A thread that copies a descriptor to a pipe for each rank. A rank that does not read delays no other rank."""

    def __init__(self, source: int, count: int, complain: Callable[[str], object]) -> None:
        """Make the pipes and start the thread.

        Args:
            source: The descriptor to read.
            count: The number of ranks.
            complain: Called on the thread if input is lost.

        Raises:
            OSError: There are too few descriptors, or no temporary file can be made.
        """
        self._source = source
        self._complain = complain
        self.read_ends: list[int] = []
        """The read end of each rank's pipe, by rank; the caller closes these descriptors."""
        self._sent: dict[int, int] = {}  # write end to the number of bytes that were written to it
        self._size = 0  # the number of bytes that were read
        self._at_end = False
        self._wake = WakeFd()
        self._file = tempfile.TemporaryFile(buffering=0, dir=temporary_folder())  # noqa: SIM115 - `_run` closes it
        try:
            for _ in range(count):
                read, write = os.pipe2(os.O_CLOEXEC)
                self.read_ends.append(clear_of_stdio(read))
                os.set_blocking(write, False)
                self._sent[write] = 0
            self._thread = threading.Thread(target=self._run, name="supervise-stdin", daemon=True)
            self._thread.start()
        except BaseException:
            close(*self.read_ends)
            self._release()
            raise

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._wake.set()
        self._thread.join(_END_S)  # with a time limit: a read blocks if another process has read the input first

    def _run(self) -> None:
        try:
            while self._sent and self._step():
                pass
        except OSError as error:
            self._complain(f"the copies of stdin end here: {error.strerror}")
        finally:
            self._release()

    def _step(self) -> bool:
        """Wait, read and write once; return False after `close`."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if not self._at_end and self._room():
            poll.register(self._source, select.POLLIN)
        for fd, sent in self._sent.items():
            poll.register(fd, select.POLLOUT if sent < self._size else 0)  # an error is reported in any case
        for fd, what in poll.poll():
            if fd == self._wake.fileno():
                return False
            if fd == self._source:
                self._read()
            elif what & select.POLLERR:  # no process can read from the pipe
                self._drop(fd)
            else:
                self._write(fd)
        for fd in [fd for fd, sent in self._sent.items() if self._at_end and sent == self._size]:
            self._drop(fd)
        if self._size and self._sent and min(self._sent.values()) == self._size:
            self._size = 0
            self._sent = dict.fromkeys(self._sent, 0)
            self._file.truncate(0)
        return True

    def _room(self) -> int:
        return MOST_BYTES - (self._size - min(self._sent.values()))

    def _read(self) -> None:
        at = self._size % MOST_BYTES
        try:
            chunk = os.read(self._source, min(CHUNK_BYTES, self._room(), MOST_BYTES - at))
        except BlockingIOError:
            return
        self._at_end = not chunk
        while chunk:
            written = os.pwrite(self._file.fileno(), chunk, at)
            self._size, at, chunk = self._size + written, at + written, chunk[written:]

    def _write(self, fd: int) -> None:
        at = self._sent[fd] % MOST_BYTES
        length = min(CHUNK_BYTES, self._size - self._sent[fd], MOST_BYTES - at)
        chunk = os.pread(self._file.fileno(), length, at)
        try:
            self._sent[fd] += os.write(fd, chunk)
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._drop(fd)

    def _drop(self, fd: int) -> None:
        del self._sent[fd]
        os.close(fd)

    def _release(self) -> None:
        """Close all descriptors except the read ends. The ranks then read to the end of their input."""
        for fd in list(self._sent):
            self._drop(fd)
        self._file.close()
        self._wake.close()
