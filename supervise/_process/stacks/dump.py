"""Stacks that a rank writes itself, by `faulthandler`, when it gets the signal of `launch.stack_signal`."""

from __future__ import annotations

import os
import re
import signal
import stat
from typing import TYPE_CHECKING

from supervise._process.launch.stack_signal import PREFIX
from supervise._process.stacks.threads import SignalState, signal_state
from supervise.stacks import StackFrame, ThreadStack

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_BYTES = 1 << 20
"""Limit on the bytes to read of one dump. faulthandler itself writes at most 100 threads of 100 frames."""
_MOST_THREADS = 100
_THREAD = re.compile(r"(?:(?:Current thread|Thread) 0x[0-9a-f]+ (?:\[(.*)\] )?|Stack )\(most recent call first\):")
"""The header of a thread. Since Python 3.14 it gives the name of the thread.

Without a GIL, a dump has the stack of only one thread.
"""
_FRAME = re.compile(r'  File "(.*)", line (\d{1,9}|\?\?\?) in (.*)')
_LINK = re.compile(rf"/memfd:{PREFIX}(\d+)-(\d+) \(deleted\)")


class Dump:
    """One dump of one process. The steps are `find`, `prepare`, the signal, and `read` once `is_complete` is true."""

    def __init__(self, pid: int, number: int, fd: int) -> None:
        """Take over an open memory file; see `find`."""
        self.pid = pid
        self.number = number
        """The signal at which the process writes its stacks."""
        self._fd = fd
        self._start = 0
        self._before = frozenset[int]()

    @classmethod
    def find(cls, pid: int) -> Dump | str:
        """Open the memory file of a process; return the reason if that is not possible."""
        try:
            for name in os.listdir(f"/proc/{pid}/fd"):
                path = f"/proc/{pid}/fd/{name}"
                if (number := _number(path, pid)) is not None:
                    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
                    # The process may have replaced the descriptor, so check that no other file is truncated
                    if stat.S_ISREG(os.fstat(fd).st_mode) and _number(f"/proc/self/fd/{fd}", pid) == number:
                        return cls(pid, number, fd)
                    os.close(fd)
        except OSError as error:
            return f"the descriptors of the process cannot be read: {error.strerror}"
        return "the process has not called supervise.enable_stacks"

    def prepare(self) -> str | None:
        """Empty the file; return the reason if the process must not get the signal."""
        found = signal_state(self.pid, self.number)
        if found is None:
            return "the process has exited"
        if len(found.blocking) == found.threads:
            return f"every thread blocks signal {self.number}"
        self._before = found.blocking
        try:
            os.ftruncate(self._fd, 0)
        except OSError:  # the process has sealed the file
            self._start = os.fstat(self._fd).st_size
        return None

    def is_complete(self) -> bool:
        """Return whether the handler has run or the process has exited."""
        found = signal_state(self.pid, self.number)
        return found is None or (self._written() and self._is_handled(found))

    def _written(self) -> bool:
        return os.fstat(self._fd).st_size > self._start

    def _is_handled(self, found: SignalState) -> bool:
        return not found.pending and found.blocking <= self._before  # a thread blocks the signal while it handles it

    def read(self) -> list[ThreadStack]:
        """Return the threads in the dump, the main thread first; empty if there is none."""
        text = os.pread(self._fd, _MOST_BYTES, self._start).decode("utf-8", "replace")
        return parsed(text, self.pid)

    def close(self) -> None:
        """Close the file. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _number(path: str, pid: int) -> int | None:
    """Return the number of the signal in the name of a memory file; None if the file is not one of `stack_signal`.

    Raises:
        PermissionError: The kernel does not permit the host to read the descriptors of the process.
    """
    try:
        found = _LINK.fullmatch(os.readlink(path))
    except FileNotFoundError:  # closed meanwhile
        return None
    if found is None or int(found[2]) != pid:  # inherited at a fork of another process
        return None
    number = int(found[1])
    return number if signal.SIGRTMIN <= number <= signal.SIGRTMAX else None


def parsed(text: str, pid: int) -> list[ThreadStack]:
    """Return the threads in the output of `faulthandler`, the main thread first.

    faulthandler lists the threads from the newest to the oldest, so the main thread is the last.

    Args:
        text: The output; anything that is not understood is skipped.
        pid: Pid of the process, which is the tid of its main thread.
    """
    threads: list[tuple[str, list[StackFrame]]] = []
    for line in text.splitlines():
        if (found := _THREAD.fullmatch(line)) is not None:
            threads.append((found[1] or "", []))
        elif threads and (found := _FRAME.fullmatch(line)) is not None:
            number = int(found[2]) if found[2].isdigit() else 0
            threads[-1][1].append(StackFrame(function=found[3], file=found[1], line=number))
    if not threads:
        return []
    (_, frames), *others = threads[::-1]
    main = ThreadStack(name="MainThread", tid=pid, frames=tuple(frames))
    rest = [ThreadStack(name=name, frames=tuple(frames)) for name, frames in others[:_MOST_THREADS]]
    return [main, *rest]


def with_states(python: list[ThreadStack], kernel: Mapping[int, ThreadStack]) -> tuple[ThreadStack, ...]:
    """Return the Python threads with their states, then the threads of the process that run no Python code."""
    from dataclasses import replace

    joined = []
    rest = dict(kernel)
    for thread in python:
        seen = rest.pop(thread.tid, None) if thread.tid is not None else None
        if seen is not None:
            thread = replace(thread, state=seen.state, wchan=seen.wchan, syscall=seen.syscall)  # noqa: PLW2901
        joined.append(thread)
    return (*joined, *rest.values())
