"""The kernel's view of the threads of a process, from procfs."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import NamedTuple

from supervise._printable import one_line
from supervise._process.stacks import syscalls
from supervise.stacks import ThreadStack

MOST_THREADS = 64
"""Limit on the number of threads to read of one process."""
_DEAD = frozenset("ZXx")
_SUSPENDED = frozenset("Tt")


class KernelView(NamedTuple):
    """Reading of the threads of a process."""

    threads: dict[int, ThreadStack]
    """Tid to each thread, the main thread first."""
    suspended: bool
    """Whether a signal or a tracer has suspended the main thread."""


class SignalState(NamedTuple):
    """State of one signal in a process. A set of tids has at most `MOST_THREADS` members."""

    pending: bool
    """Whether the signal is sent and not handled yet."""
    blocking: frozenset[int]
    """Tids of threads that block the signal. A thread also blocks it while the thread runs the handler."""
    threads: int
    """Number of threads that were read."""


def kernel_view(pid: int) -> KernelView | None:
    """Read the threads of a process; None if the process has exited. A zombie has exited."""
    threads: dict[int, ThreadStack] = {}
    for tid in _tids(pid):
        status = _status(pid, tid)
        state = status.get("State", "")[:1]
        if tid == pid and (not state or state in _DEAD):
            return None
        if state:
            threads[tid] = ThreadStack(name=status.get("Name", ""), tid=tid, state=state)
    if not threads:
        return None
    for tid, thread in threads.items():
        wchan = _text(f"/proc/{pid}/task/{tid}/wchan").strip("\0\n ")
        call = syscalls.name_of(_text(f"/proc/{pid}/task/{tid}/syscall"))
        threads[tid] = replace(thread, wchan="" if wchan == "0" else wchan, syscall=call)
    return KernelView(threads, threads[pid].state in _SUSPENDED if pid in threads else False)


def foreign_program(pid: int) -> str | None:
    """Return the name of the program that a process runs, if the process has mapped no file of Python.

    None if the process may run Python.
    """
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            mapped = file.read().lower()
    except OSError:  # the process has exited, or belongs to another user
        return None
    if not mapped or any(name in mapped for name in (b"python", b"pypy", b"graalpy")):
        return None
    return one_line(_text(f"/proc/{pid}/comm").strip())


def signal_state(pid: int, number: int) -> SignalState | None:
    """Read the state of a signal in a process; None if the process has exited."""
    bit = 1 << (number - 1)
    pending = False
    blocking = set()
    tids = _tids(pid)
    for tid in tids:
        status = _status(pid, tid)
        if tid == pid and status.get("State", "Z")[:1] in _DEAD:
            return None
        pending = pending or _has(status, "SigPnd", bit) or _has(status, "ShdPnd", bit)
        if _has(status, "SigBlk", bit):
            blocking.add(tid)
    return SignalState(pending, frozenset(blocking), len(tids)) if tids else None


def refusal(pid: int, number: int) -> str | None:
    """Return why the process must not get the signal now; None if it has a handler and is not suspended."""
    status = _status(pid, pid)
    if status.get("State", "Z")[:1] in _DEAD:
        return "the process has exited"
    if status["State"][:1] in _SUSPENDED:
        return "the process is suspended"
    if not _has(status, "SigCgt", 1 << (number - 1)):
        return f"the process has no handler for signal {number} any more"
    return None


def _has(status: dict[str, str], name: str, bit: int) -> bool:
    return bool(int(status.get(name, "0"), 16) & bit)


def _tids(pid: int) -> list[int]:
    try:
        found = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return []
    return [pid, *(tid for tid in found if tid != pid)][:MOST_THREADS] if pid in found else found[:MOST_THREADS]


def _status(pid: int, tid: int) -> dict[str, str]:
    lines = (line.partition(":") for line in _text(f"/proc/{pid}/task/{tid}/status").splitlines())
    return {name: value.strip() for name, _, value in lines}


def _text(path: str) -> str:
    """Return the content of a file; "" if the thread has exited or this process has no permission."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
