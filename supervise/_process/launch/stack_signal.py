"""The signal at which a rank writes the stacks of its threads into a memory file, by `faulthandler`.

The supervisor finds the memory file among the descriptors of the rank. The name of the file contains the number of the
signal. So the two sides need no agreement, and the supervisor does not signal a rank that has closed its descriptors or
has executed another program.

Every worker imports this module before user code, so this module imports only built-in modules.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # no stub: it is what `signal` wraps
import fcntl
import os
import sys

from supervise._runtime.descriptors import clear_of_stdio

PREFIX = "supervise-stacks-"
"""Beginning of the name of the memory file. The number of the signal and the pid follow."""
_FIRST = 61
"""SIGRTMAX - 3. If this signal has a handler, the next lower real-time signal is tried."""
SAFE = sys.version_info < (3, 12) or (3, 13, 10) <= sys.version_info < (3, 14) or sys.version_info >= (3, 14, 1)
"""Whether faulthandler can be used. In other versions of Python it may read a frame that the running thread has just
freed, which crashes the process (https://github.com/python/cpython/issues/140815): on 3.13.0, 12 of 22 programs."""
_enabled: tuple[int, int] | None = None
"""Pid and signal of the last call of `enable_stacks`. A forked process has those of the process that forked it."""


def enable_stacks() -> None:
    """Make the stacks of this process available to ``ask(Stacks())`` of its supervisor. Idempotent.

    A function of a gang does not need this call. A Python program makes it once, in its main thread. From then on, the
    process handles one signal: the highest free real-time signal below SIGRTMAX - 2. The handler writes the stacks into
    a memory file without running Python code, so it also works in an endless loop and while C code runs. At each
    request, a system call that the kernel does not restart, such as ``poll`` or ``epoll_wait`` of C code, fails once
    with EINTR. Python's own calls continue.

    The call has no effect on Python 3.12, 3.13 before 3.13.10, and 3.14.0: their faulthandler may crash the process.

    Raises:
        OSError: The memory file cannot be made, or every real-time signal is in use.
    """
    global _enabled  # noqa: PLW0603 - of the process
    if not SAFE:
        return
    import faulthandler

    pid = os.getpid()
    if _enabled is not None:
        if _enabled[0] == pid:
            return
        faulthandler.unregister(_enabled[1])  # inherited by a fork, whose child may have reset the handler
    free = (n for n in range(_FIRST, _signal.SIGRTMIN - 1, -1) if _signal.getsignal(n) in (0, 1))
    number = next(free, None)
    if number is None:
        raise OSError(0, "every real-time signal is in use")
    file = clear_of_stdio(os.memfd_create(f"{PREFIX}{number}-{pid}", os.MFD_CLOEXEC))
    try:
        # The supervisor truncates the file before each request, after which an append begins at its start
        fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)
        try:  # noqa: SIM105 - contextlib would be one more import
            _signal.signal(number, 1)  # ignored once Python exits, so that a late signal does not end the process
        except ValueError:  # not the main thread
            pass
        faulthandler.register(number, file=file, all_threads=True)
    except BaseException:
        os.close(file)
        raise
    _enabled = pid, number


def enable_if_possible() -> None:
    """Do the same as `enable_stacks` in a worker, but ignore errors: the worker can run without it."""
    try:  # noqa: SIM105 - contextlib would be one more import
        enable_stacks()
    except (ImportError, OSError, RuntimeError):  # another Python without faulthandler, or no descriptor is left
        pass
