"""What the ranks run: functions, and programs as command lines. Spawned workers import this, so it imports little."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing itself takes 3 ms
if TYPE_CHECKING:
    from typing import Any

    from tests.benchmarks.job import Job

LIFE_S = 100
"""What is meant to be stopped ends by itself after this many seconds."""
BLOCK_LINES = 10_000
"""A block of output: as many lines of 100 bytes, newline included."""

_GATED = """\
import os, sys, fcntl, time
ready, lock, stamps, code = sys.argv[1:5]
lock, stamps, ready = os.open(lock, os.O_RDONLY), os.open(stamps, os.O_WRONLY | os.O_APPEND), open(ready, "ab", 0)
ready.write(b".")
fcntl.flock(lock, fcntl.LOCK_SH)
os.write(stamps, b"%d\\n" % time.monotonic_ns())
os._exit(int(code))
"""
_WRITER = """\
import os, sys, time
rank, blocks, pause_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
block = memoryview("".join("%02d %08d " % (rank, n) + "x" * 87 + "\\n" for n in range(10000)).encode())
for _ in range(blocks):
    for at in range(0, len(block), 8192):  # a buffer of Python's; it ends within a line
        os.write(1, block[at : at + 8192])
        if pause_s:
            time.sleep(pause_s)
"""
_TICKER = """\
import os, sys, time
count, gap = int(sys.argv[1]), float(sys.argv[2])
time.sleep(0.5)
for _ in range(count):
    os.write(1, b"%d\\n" % time.monotonic_ns())
    time.sleep(gap)
"""
_FLOODER = """\
import os, sys, fcntl, time
rank, blocks, ready, lock, stamps, code = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:7]
block = memoryview("".join("%02d %08d " % (rank, n) + "x" * 87 + "\\n" for n in range(10000)).encode())
for _ in range(blocks):
    for at in range(0, len(block), 8192):
        os.write(1, block[at : at + 8192])
open(ready, "ab", 0).write(b".")
if not code:
    time.sleep(100)
fcntl.flock(os.open(lock, os.O_RDONLY), fcntl.LOCK_SH)
os.write(os.open(stamps, os.O_WRONLY | os.O_APPEND), b"%d\\n" % time.monotonic_ns())
os._exit(int(code))
"""
_PYTHON = (sys.executable, "-S", "-E", "-c")
_STUBBORN = f"trap '' TERM; echo >> \"$1\"; exec sleep {LIFE_S}"


def command(program: str) -> tuple[str, ...]:
    """Return the command line of a named program, to which its arguments are appended."""
    commands = {
        "true": ("/bin/true",),
        "sleep": ("/bin/sleep", str(LIFE_S)),
        "gated": (*_PYTHON, _GATED),
        "writer": (*_PYTHON, _WRITER),
        "flooder": (*_PYTHON, _FLOODER),
        "ticker": (*_PYTHON, _TICKER),
        "stubborn": ("/bin/sh", "-c", _STUBBORN, "sh"),
    }
    return commands[program]


def _append(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(fd, data)
    os.close(fd)


def nothing() -> None:
    """Return at once."""


def ready() -> None:
    """Report readiness and a heartbeat to the supervisor."""
    from supervise import notify

    notify(ready=True, heartbeat=True)


def gated(ready: str, lock: str, stamps: str, code: str) -> None:
    """Do as the program of this name does, but fail with an exception."""
    import fcntl
    import time

    _append(ready, b".")
    held = os.open(lock, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_SH)
    _append(stamps, b"%d\n" % time.monotonic_ns())
    if int(code):
        raise RuntimeError("as asked")


def linger(ready: str) -> None:
    """Run until a signal ends it."""
    import signal

    signal.alarm(LIFE_S)
    _append(ready, b".")
    while True:
        signal.pause()


def linger_or_fail(*args: str) -> None:
    """Linger if only told where to report, otherwise wait at the gate: one entrypoint for all ranks."""
    if len(args) == 1:
        linger(*args)
    else:
        gated(*args)


def many_bytes(size_bytes: int) -> bytes:
    """Return as many bytes, none of them a page of zeros."""
    return b"supervis" * (size_bytes // 8)


def many_numbers(size_bytes: int) -> Any:
    """Return an array of as many bytes."""
    import importlib

    numpy: Any = importlib.import_module("numpy")
    return numpy.arange(size_bytes // 8)


def send(function: Any, args: tuple[Any, ...], connection: Any) -> None:
    """Send what the function returns: plain multiprocessing has no return values."""
    connection.send(function(*args))


def command_line(job: Job, rank: int) -> list[str]:
    """Return what a rank of a program's gang runs."""
    return [job.program, *job.args[rank]]
