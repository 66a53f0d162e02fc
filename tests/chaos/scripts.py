"""What the ranks of a chaos run do: each script as a shell program and as a function, and how it may end by itself."""

import contextlib
import os
import signal
import sys
import threading
from dataclasses import dataclass
from typing import Any

from supervise import notify

ENDLESS = frozenset({"sleep", "deaf", "flood", "unready"})
"""Scripts that end only by somebody else's doing."""
CALM = frozenset({"sleep", "deaf", "flood", "write"})
"""Scripts that fail only if something is done to the rank."""
_FLOOD_BYTES = 600_000
UNREADY = frozenset({"unready"})
"""Scripts of gangs whose ranks report that they are ready."""
READY = (
    f"{sys.executable} -S -E -c 'import _socket, os\n"
    "s = _socket.socket(1, 2)\n"
    's.connect("\\0" + os.environ["NOTIFY_SOCKET"][1:])\n'
    's.send(b"READY=1")\'\n'
)
"""Reports from a shell that the rank is ready."""

SHELL = {
    "sleep": "exec sleep 1000",
    "deaf": "trap '' TERM INT HUP USR1 USR2; while :; do sleep 1000; done",
    "flood": f"yes rank | head -c {_FLOOD_BYTES}; exec sleep 1000",
    "exit": "exit {n}",
    "late": "sleep 0.0{n}; exit {n}",
    "write": "exec seq 1 {n}",
    "write_fail": "seq 1 {n}; exit 5",
    "orphan": "sleep 1000 & exit {n}",
    "deaf_orphan": "(trap '' TERM; exec sleep 1000) & exit {n}",
    "busy_orphan": "(trap '' TERM; while :; do echo more; sleep 0.01; done) & exit {n}",
    "runaway": "setsid sleep 1000 & exit {n}",
    "crash": "ulimit -c 0; kill -{n} $$; exec sleep 1000",
    "stop_self": "kill -STOP $$; exit 0",
    "raise": "echo raised >&2; exit 1",
    "unready": "exec sleep 1000",
}
WITH_CHILDREN = frozenset({"deaf", "flood", "late", "write_fail", "orphan", "deaf_orphan", "busy_orphan", "runaway"})
"""Scripts whose shell has a child process for a while."""
NUMBERS = {
    "exit": (0, 0, 1, 3, 77),
    "late": (0, 0, 1, 3),
    "write": (10, 3000, 30_000),
    "write_fail": (10, 3000),
    "orphan": (0, 0, 3),
    "deaf_orphan": (0, 0, 3),
    "busy_orphan": (0, 3),
    "runaway": (0, 3),
    "crash": (9, 11, 15),
}
"""The numbers that a script takes; the others take none."""


@dataclass(frozen=True)
class Script:
    """What one rank does."""

    name: str
    n: int = 0

    def shell(self, *, notifies: bool = False) -> str:
        ready = READY if notifies and self.name not in UNREADY else ""
        return ready + SHELL[self.name].format(n=self.n)

    def codes(self, *, function: bool) -> set[int]:
        """How it may end when nobody else does anything to it."""
        match self.name:
            case "sleep" | "deaf" | "flood" | "unready":
                return set()
            case "exit" | "late" | "orphan" | "deaf_orphan" | "busy_orphan" | "runaway":
                return {self.n}
            case "write_fail":
                return {5}
            case "crash":
                return {-self.n}
            case "raise":
                return {1}
            case _:
                return {0}

    def output(self) -> bytes | None:
        """What its stdout holds when it has ended by itself; None: anything."""
        if self.name in ("write", "write_fail"):
            return b"".join(b"%d\n" % number for number in range(1, self.n + 1))
        return None if self.name in ("flood", "busy_orphan") else b""

    def value(self) -> Any:
        """What it returns as a function, when it succeeds."""
        return None if self.name in ("exit", "late") else [self.name, self.n]


def run(name: str, n: int, notifies: bool = False) -> Any:  # noqa: C901, PLR0912 - one line a script
    """Do as the script of this name, as a function; it ends with the same code."""
    if notifies and name not in UNREADY:
        notify(ready=True)
    match name:
        case "sleep" | "unready":
            _pause()
        case "deaf":
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
                signal.signal(number, signal.SIG_IGN)
            _pause()
        case "flood":
            with contextlib.suppress(OSError):
                for _ in range(_FLOOD_BYTES // 5000):
                    _write(b"rank\n" * 1000)
            _pause()
        case "exit":
            sys.exit(n)
        case "late":
            threading.Event().wait(n / 100)
            sys.exit(n)
        case "write" | "write_fail":
            _write(Script(name, n).output() or b"")
            if name == "write_fail":
                sys.exit(5)
        case "orphan" | "deaf_orphan" | "busy_orphan" | "runaway":
            child = SHELL[name].format(n=n).rpartition("&")[0]
            os.posix_spawn("/bin/sh", ["sh", "-c", child], os.environ)
            if n:
                sys.exit(n)
        case "crash":
            import resource

            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.kill(os.getpid(), n)
            _pause()
        case "stop_self":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "raise":
            raise ValueError("raised")
    return Script(name, n).value()


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def _pause() -> None:
    while True:
        signal.pause()
