"""What reads a driver's stdout, and what it sees there."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tests.benchmarks.job import NAME
from tests.benchmarks.work import BLOCK_LINES

if TYPE_CHECKING:
    from tests.benchmarks.job import Figures
    from tests.benchmarks.scenarios import Reader as Kind

_TICK = re.compile(rb"\[" + NAME.encode() + rb"\d+\]:(\d+)\r?$")
_LINE = re.compile(rb"\[" + NAME.encode() + rb"(\d+)\]:(\d\d) (\d{8}) x{87}\n")
_GO = "go"


class Reader(Protocol):
    """The other end of a driver's stdout."""

    target: int
    """The descriptor for the driver."""

    def started(self) -> None:
        """The driver has it: let go of ours."""

    def ended(self) -> Figures:
        """The driver is gone; return what was seen."""


def make(kind: Kind, folder: str) -> Reader:
    """Return a reader, which may use `folder`."""
    if kind in ("checked", "stalled"):
        return _Checker(Path(folder), stalled=kind == "stalled")
    if kind in ("pipe", "terminal"):
        return _Clock(*(pty.openpty() if kind == "terminal" else os.pipe()))
    return _Nobody()


def go(folder: str) -> None:
    """Make the stalled reader that uses `folder` read."""
    with (Path(folder) / _GO).open("w", encoding="ascii") as fifo:
        fifo.write("\n")


class _Nobody:
    def __init__(self) -> None:
        self.target = os.open(os.devnull, os.O_WRONLY)

    def started(self) -> None:
        os.close(self.target)

    def ended(self) -> Figures:
        return {}


class _Checker:
    """A pipe into `cat`, so that reading costs little; what it kept is checked afterwards.

    A stalled one begins to read when `go` is called, or the driver has ended.
    """

    def __init__(self, folder: Path, *, stalled: bool) -> None:
        self._path, self._go = folder / "shown", folder / _GO
        os.mkfifo(self._go)
        argv = ["/bin/sh", "-c", 'read _ < "$1"; exec cat', "sh", str(self._go)] if stalled else ["/bin/cat"]
        read, self.target = os.pipe()
        with self._path.open("wb") as file:
            self._cat = subprocess.Popen(argv, stdin=read, stdout=file)
        os.close(read)

    def started(self) -> None:
        os.close(self.target)

    def ended(self) -> Figures:
        with contextlib.suppress(OSError):  # it reads already, and nobody waits at the other end
            os.close(os.open(self._go, os.O_WRONLY | os.O_NONBLOCK))
        self._cat.wait(60)
        counts: Counter[bytes] = Counter()
        with self._path.open("rb") as file:
            while lines := file.readlines(1 << 20):
                counts.update(lines)
        self._path.unlink()
        good = sum(count for line, count in counts.items() if _whole(line))
        return {"good_lines": good, "torn_lines": sum(counts.values()) - good}


def _whole(line: bytes) -> bool:
    """Whether a line is one that was written, behind the prefix of the rank that wrote it."""
    found = _LINE.fullmatch(line)
    return found is not None and int(found[1]) == int(found[2]) and int(found[3]) < BLOCK_LINES


class _Clock:
    """Notes when each line arrives; lines hold the time at which they were written."""

    def __init__(self, read: int, target: int) -> None:
        self.target = target
        self._read = read
        self._ms: list[float] = []
        self._torn = 0
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def started(self) -> None:
        os.close(self.target)
        self._thread.start()

    def _follow(self) -> None:
        rest = b""
        while True:
            try:
                chunk = os.read(self._read, 1 << 16)
            except OSError:  # a terminal whose other end was closed
                return
            now_ns = time.monotonic_ns()
            if not chunk:
                return
            *lines, rest = (rest + chunk).split(b"\n")
            found = [tick for line in lines if (tick := _TICK.match(line)) is not None]
            self._ms += [(now_ns - int(tick[1])) / 1e6 for tick in found]
            self._torn += len(lines) - len(found)

    def ended(self) -> Figures:
        self._thread.join(10)
        os.close(self._read)
        ordered = sorted(self._ms)
        if not ordered:
            return {"good_lines": 0, "torn_lines": self._torn}
        p50, p99 = (ordered[int(len(ordered) * part)] for part in (0.5, 0.99))
        return {"good_lines": len(ordered), "torn_lines": self._torn, "shown_p50_ms": p50, "shown_p99_ms": p99}
