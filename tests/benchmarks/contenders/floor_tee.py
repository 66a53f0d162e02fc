"""The least that a tee has to do: wait for inotify, read chunks, put the prefix before each line, write."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import select
import shutil
import tempfile
import time
from typing import Any

from tests.benchmarks.job import NAME

_CHUNK_BYTES = 1 << 16
_PIPE_BYTES = 1 << 20
_APART_S = 0.002
"""Between two looks; a flood of small writes would otherwise wake us for each of them."""


class Tee:
    """One inotify instance for two files a rank; both are shown on our stdout, whole lines in one write."""

    def __init__(self, nprocs: int) -> None:
        with contextlib.suppress(OSError):  # not a pipe
            fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._next_s = 0.0
        self._folder = tempfile.mkdtemp(prefix="floor-")
        inotify: Any = importlib.import_module("inotify_simple")
        self._inotify = inotify.INotify()
        self._feeds: dict[int, _Feed] = {}
        self._paths: dict[int, tuple[str, str]] = {}
        for rank in range(nprocs):
            self._paths[rank] = f"{self._folder}/{rank}.out", f"{self._folder}/{rank}.err"
            for path in self._paths[rank]:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
                watch: int = self._inotify.add_watch(path, inotify.flags.MODIFY)
                self._feeds[watch] = _Feed(path, f"[{NAME}{rank}]:".encode())

    def files(self, rank: int) -> tuple[int, int]:
        """Return descriptors for a rank's stdout and stderr; the caller closes them."""
        out, err = (os.open(path, os.O_WRONLY | os.O_APPEND) for path in self._paths[rank])
        return out, err

    def fileno(self) -> int:
        """Return the descriptor that is readable when a file has grown."""
        fd: int = self._inotify.fileno()
        return fd

    def show(self) -> None:
        """Show what has been written to the files that have grown."""
        wait_s = self._next_s - time.monotonic()
        if wait_s > 0:
            select.select([], [], [], wait_s)
        for watch in {event.wd for event in self._inotify.read(timeout=0)}:
            self._feeds[watch].show()
        self._next_s = time.monotonic() + _APART_S

    def finish(self) -> None:
        """Show all the rest."""
        for feed in self._feeds.values():
            feed.show()

    def close(self) -> None:
        """Remove the files."""
        self._inotify.close()
        for feed in self._feeds.values():
            os.close(feed.fd)
        shutil.rmtree(self._folder)


class _Feed:
    """One file."""

    def __init__(self, path: str, prefix: bytes) -> None:
        self.fd = os.open(path, os.O_RDONLY)
        self._newline = b"\n" + prefix
        self._rest = prefix

    def show(self) -> None:
        """Show up to the end of its last whole line."""
        while chunk := os.read(self.fd, _CHUNK_BYTES):
            lines = chunk.replace(b"\n", self._newline)
            end = lines.rfind(b"\n") + 1
            if end:
                _write(self._rest, memoryview(lines)[:end])
                self._rest = lines[end:]
            else:
                self._rest += lines


def _write(rest: bytes, lines: memoryview) -> None:
    left = len(rest) + len(lines) - os.writev(1, (rest, lines))
    while left:
        left -= os.write(1, (rest + bytes(lines))[-left:])
