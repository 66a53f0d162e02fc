"""The folder of a gang, and `rank_gather`: the values of all ranks, in every rank.

The folder has the files by which ranks and host communicate, and the FIFOs that wake the readers. Each rank appends one
line of JSON to its journal after each phase. A process that waits for a file reads its own FIFO; the writer of the file
then writes one byte to it. So no side polls, and both start methods work alike.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from supervise._printable import ranks_as_text
from supervise.recording import text_of

if TYPE_CHECKING:
    from pathlib import Path

    from supervise.pytest_plugin._coverage import Measurement

HOST = "host"
"""The name of the host among the owners of a FIFO; ranks have their numbers."""


class Unpatched:
    """Functions of Python that a test may have replaced while supervise needs them.

    `unittest.mock` replaces them in their own modules, freezegun in each module that has them, but not in this class.
    """

    access, close, fstat, getpid, open = os.access, os.close, os.fstat, os.getpid, os.open
    read, rename, stat, write = os.read, os.rename, os.stat, os.write
    dumps = json.dumps
    monotonic, monotonic_ns = time.monotonic, time.monotonic_ns


class Folder:
    """The paths below the folder of one gang."""

    def __init__(self, root: Path) -> None:
        """Name the paths, without making them."""
        self.root = root
        self._held: tuple[int, os.stat_result] | None = None
        """The open journal of this process's rank, as `hold` has found it."""
        self.shared = root / "shared"
        """The folder that the tests see as `gang_tmp_path`."""

    def make(self, world_size: int) -> None:
        """Make the folders and the FIFOs. In the host."""
        self.shared.mkdir(mode=0o700)
        for name in (HOST, *range(world_size)):
            os.mkfifo(self._bell(name), 0o600)

    def stream(self, rank: int, name: str) -> str:
        """Return the path of a rank's ``stdout`` or ``stderr``."""
        return str(self.root / f"{name}-{rank}.log")

    def own(self, rank: int) -> Path:
        """Return the base folder of a rank's own `tmp_path`."""
        return self.root / f"rank-{rank}"

    def value(self, call: int, rank: int) -> Path:
        """Return the file of the value that a rank gave in its gather number `call`."""
        return self.root / f"value-{call}-{rank}"

    def ended(self, rank: int) -> Path:
        """Return the file that exists once a rank's process has ended."""
        return self.root / f"ended-{rank}"

    def bell(self, name: object) -> Bell:
        """Open the FIFO of `name` for waiting."""
        return Bell(self._bell(name))

    def ring(self, name: object) -> None:
        """Wake the owner of a FIFO. A full FIFO wakes it, too."""
        flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC
        with contextlib.suppress(OSError), contextlib.ExitStack() as end:
            fd = Unpatched.open(self._bell(name), flags)
            end.callback(Unpatched.close, fd)
            Unpatched.write(fd, b"!")

    def hold(self, rank: int) -> None:
        """Open a rank's journal ahead of its test, which may use up the descriptors. In the rank."""
        fd = self._open(rank)
        self._held = fd, Unpatched.fstat(fd)

    def append(self, rank: int, entry: dict[str, Any]) -> None:
        """Append a line to a rank's journal, and wake the host. A value that JSON lacks becomes its text."""
        entry["report"]["user_properties"] = [
            (name, _plain(value)) for name, value in entry["report"]["user_properties"]
        ]
        held = self._held is not None and _is_open(*self._held)
        fd = self._held[0] if self._held is not None and held else self._open(rank)
        try:
            data = memoryview(Unpatched.dumps(entry, default=text_of).encode() + b"\n")
            while data:
                data = data[Unpatched.write(fd, data) :]
        finally:
            if not held:
                Unpatched.close(fd)
        self.ring(HOST)

    def _open(self, rank: int) -> int:
        return Unpatched.open(self._journal(rank), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def journal(self, rank: int) -> list[dict[str, Any]]:
        """Return the complete lines of a rank's journal."""
        try:
            content = self._journal(rank).read_bytes()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in content.split(b"\n")[:-1]]

    def clean(self, world_size: int) -> None:
        """Remove everything but the folders that tests see."""
        kept = {self.shared, *(self.own(rank) for rank in range(world_size))}
        for path in self.root.iterdir():
            if path not in kept:
                with contextlib.suppress(OSError):
                    path.unlink()

    def _bell(self, name: object) -> Path:
        return self.root / f"bell-{name}"

    def _journal(self, rank: int) -> Path:
        return self.root / f"journal-{rank}.jsonl"


def _plain(value: object) -> object:
    """Return a value, or its text if it contains itself, or a key that JSON lacks."""
    try:
        Unpatched.dumps(value, default=text_of)
    except (TypeError, ValueError, RecursionError):
        return text_of(value)
    return value


def _is_open(fd: int, opened: os.stat_result) -> bool:
    """Return whether a descriptor is still that of a file: the test may have closed it, and opened another."""
    try:
        return os.path.samestat(Unpatched.fstat(fd), opened)
    except OSError:
        return False


class Bell:
    """An open FIFO that wakes its only reader."""

    def __init__(self, path: Path) -> None:
        """Open the FIFO for both directions, so that it never reaches EOF."""
        self._fd = Unpatched.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    def wait(self, deadline_s: float | None) -> None:
        """Return after a ring, or at the deadline, a time of `time.monotonic`; None for no deadline."""
        __tracebackhide__ = True  # where a signal handler of another plugin may raise
        left_ms = None
        if deadline_s is not None:
            left_ms = min(max(0.0, deadline_s - Unpatched.monotonic()) * 1000 + 1, 2**31 - 1)
        if self._poll.poll(left_ms):
            with contextlib.suppress(BlockingIOError):
                Unpatched.read(self._fd, 65536)

    def close(self) -> None:
        """Close the descriptor."""
        Unpatched.close(self._fd)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The facts that all ranks of a test need."""

    folder: Folder
    world_size: int
    timeout_s: float | None
    """None for no limit."""
    debugged: int | None
    """The rank that gets the terminal."""
    terminal: int | None
    """Descriptor of the terminal."""
    measurement: Measurement | None


# `rank_gather`


_DEFAULT_S = 30.0
_SHARE = 0.8
"""The part of the test's timeout after which a gather ends with an error that names the missing rank."""


class RankGatherError(Exception):
    """A rank did not give its value: it has ended, or it did not call in time."""


class RankGather:
    """A function that every rank calls the same number of times, in the same order; and the place of its rank."""

    def __init__(self, folder: Folder, rank: int, world_size: int, timeout_s: float | None) -> None:
        """Make it for one rank.

        Args:
            folder: The folder of the gang.
            rank: This rank.
            world_size: The number of ranks.
            timeout_s: The timeout of the test; None if it has none.
        """
        self.folder, self.rank, self.world_size = folder, rank, world_size
        self._timeout_s = _DEFAULT_S if timeout_s is None else timeout_s * _SHARE
        self._calls = 0
        self._last_complete = -1
        """The last call that had the values of all ranks."""

    def __call__(self, value: Any = None, *, timeout_s: float | None = None) -> list[Any]:
        """Return the values of all ranks, in the order of ranks. With None as the value, it is a barrier.

        Args:
            value: The value of this rank; it must be picklable.
            timeout_s: Seconds to wait for the others; None for 0.8 of the test's timeout, or 30 if it has none.

        Raises:
            RankGatherError: A rank has ended, or has not called in time; the text names it.
            ValueError: `timeout_s` is not a number of seconds.
            TypeError: The value cannot be pickled.
        """
        __tracebackhide__ = True
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        if not isinstance(timeout_s, (int, float)) or not timeout_s >= 0:
            raise ValueError(f"rank_gather: timeout_s is {timeout_s!r}; give a number of seconds")
        deadline_s = Unpatched.monotonic() + timeout_s
        call, self._calls = self._calls, self._calls + 1
        self._give(call, value)
        with contextlib.closing(self.folder.bell(self.rank)) as bell:
            while missing := self._missing(call):
                # Check the ends, then the values again: a rank gives its value before it ends
                gone = [rank for rank in missing if Unpatched.access(self.folder.ended(rank), os.F_OK)]
                gone = [rank for rank in gone if rank in self._missing(call)]
                if gone:
                    raise RankGatherError(f"rank_gather: {ranks_as_text(gone)} ended before call number {call + 1}")
                if Unpatched.monotonic() >= deadline_s:
                    raise RankGatherError(
                        f"rank_gather: {ranks_as_text(missing)} did not make call number {call + 1}"
                        f" within {timeout_s:g} s"
                    )
                bell.wait(deadline_s)
        self._last_complete = call
        values = [self.folder.value(call, rank).read_bytes() for rank in range(self.world_size)]
        return list(map(pickle.loads, values))

    def _give(self, call: int, value: Any) -> None:
        __tracebackhide__ = True
        try:
            data = pickle.dumps(value)
        except Exception as error:
            raise TypeError(f"rank_gather cannot pickle the value of rank {self.rank}: {text_of(error)}") from None
        path = self.folder.value(call, self.rank)
        new = path.with_suffix(".new")
        new.write_bytes(data)
        Unpatched.rename(new, path)
        for rank in range(self.world_size):
            if rank != self.rank:
                self.folder.ring(rank)
        if call > 1 and self._last_complete == call - 1:  # every rank has begun call - 1, and so has read call - 2
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.folder.value(call - 2, self.rank))

    def _missing(self, call: int) -> list[int]:
        return [rank for rank in range(self.world_size) if not Unpatched.access(self.folder.value(call, rank), os.F_OK)]


here: RankGather | None = None
"""The place of this process in a gang; None in the host, which is pytest itself."""
