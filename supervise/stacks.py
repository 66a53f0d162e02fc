"""The stacks of ranks, the reply to `Stacks`, and their summary as text."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from supervise._printable import one_line, ranks_as_text
from supervise._record import record

if TYPE_CHECKING:
    from collections.abc import Mapping

_LIBRARIES = ("/lib/python3", "/site-packages/", "/dist-packages/", "<frozen ")
"""Parts of the paths of files that are not the user's code."""


@record
class StackFrame:
    """One call of a Python function."""

    function: str
    """Name of the function; py-spy also gives the class, as in ``Thread.run``."""
    file: str
    """Path of the source file, as Python has it."""
    line: int
    """Line number; 0 if it is unknown."""


@record
class ThreadStack:
    """One thread of a rank. A text that the source does not give is ""; a number is None."""

    name: str = ""
    """Name of the Python thread if the source gives it, otherwise the kernel's name of the thread."""
    tid: int | None = None
    """The kernel's number of the thread. faulthandler gives it only for the main thread, whose number is the pid."""
    frames: tuple[StackFrame, ...] = ()
    """Calls, the innermost first; empty for a thread without Python code."""
    state: str = ""
    """The kernel's letter: R running, S sleeping, D uninterruptible, T suspended by a signal, t traced."""
    wchan: str = ""
    """The function of the kernel in which the thread sleeps; needs the permission to trace the process."""
    syscall: str = ""
    """The system call that the thread executes, by name or number; needs the permission to trace the process."""


@record
class RankStacks:
    """The threads of one rank, the main thread first."""

    pid: int
    source: Literal["py-spy", "faulthandler", "kernel"]
    """Origin of the Python frames; ``kernel`` if there are none."""
    threads: tuple[ThreadStack, ...] = ()
    """At most 100 Python threads and 64 threads of the kernel."""
    notes: tuple[str, ...] = ()
    """Why each better source gave no stack, the best source first."""


def group_stacks(stacks: Mapping[int, RankStacks]) -> list[str]:
    """Return one line for each different stack of the main threads, with its ranks. Lines with fewer ranks come first.

    ``rank 3: load_batch (data.py:41)`` or ``ranks 0-2, 4-7: all_reduce (train.py:88)``. A line names the innermost
    call of user code, outside of Python's library and of installed packages. The innermost call overall follows if it
    differs. Two stacks are equal if these calls and all outer calls of user code are equal. If stacks differ only
    in outer calls, each line has one of these: ``rank 3: all_reduce (train.py:88), called by validate (train.py:41)``.

    Args:
        stacks: Local rank to stacks.
    """
    groups: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    paths: dict[str, set[tuple[str, ...]]] = {}
    for rank in sorted(stacks):
        place, callers = place_of(stacks[rank]), _callers(stacks[rank])
        groups.setdefault((place, callers), []).append(rank)
        paths.setdefault(place, set()).add(callers)
    ordered = sorted(groups.items(), key=lambda group: (len(group[1]), group[1]))
    return [
        f"{ranks_as_text(ranks)}: {one_line(place + _difference(callers, paths[place] - {callers}))}"
        for (place, callers), ranks in ordered
    ]


def main_thread(stacks: RankStacks) -> ThreadStack:
    """Return the main thread of a rank; an empty one if no thread is known."""
    main = next((thread for thread in stacks.threads if thread.tid == stacks.pid), None)
    return main or next(iter(stacks.threads), ThreadStack())


def is_own(frame: StackFrame) -> bool:
    """Return whether a call is one of user code, outside of Python's library and of installed packages."""
    return not any(part in frame.file for part in _LIBRARIES)


def _callers(stacks: RankStacks) -> tuple[str, ...]:
    """Return the calls of the user's code that enclose the call of `place_of`, the inner ones first."""
    return tuple(_call(frame) for frame in main_thread(stacks).frames if is_own(frame))[1:]


def _difference(callers: tuple[str, ...], others: set[tuple[str, ...]]) -> str:
    """Return text about the first outer call that distinguishes a stack from the others; "" if there are no others."""
    if not others:
        return ""
    for index, caller in enumerate(callers):
        if all(other[index : index + 1] != (caller,) for other in others):
            return f", called by {caller}"
    return f", called by {callers[-1]}" if callers else ", the outermost call"


def place_of(stacks: RankStacks) -> str:
    """Return where the main thread of a rank is: ``load_batch (data.py:41), in wait (threading.py:320)``."""
    main = main_thread(stacks)
    suspended = ", suspended" if main.state in ("T", "t") else ""
    if not main.frames:
        where = ", ".join(part for part in (main.syscall, main.wchan) if part) or "unknown"
        return f"no Python frames; the kernel: {where} (state {main.state or 'unknown'}){suspended}"
    inner = main.frames[0]
    own = next(filter(is_own, main.frames), inner)
    return _call(own) + ("" if own is inner else f", in {_call(inner)}") + suspended


def _call(frame: StackFrame) -> str:
    return f"{frame.function.rpartition('.')[2]} ({os.path.basename(frame.file)}:{frame.line})"
