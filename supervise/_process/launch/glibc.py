"""glibc's `posix_spawn`. Unlike `os.posix_spawn`, it can change the folder and close all descriptors.

The lifeline is armed and the pidfd is opened before another thread can run Python code. Such code might fork, which
takes long, or might reap any child in a handler of SIGCHLD.

The import of this module fails if the C library lacks these two features or Python has no `ctypes`.
"""

from __future__ import annotations

import ctypes
import operator
import os
from functools import cache, partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


CLOSE_FROM: int = getattr(os, "POSIX_SPAWN_CLOSEFROM", 3)
"""The kind of file action. Python 3.13 and later have the same constant in `os`."""
_SETPGROUP, _SETSIGDEF, _SETSIGMASK, _SETSID = 0x02, 0x04, 0x08, 0x80
_Room = ctypes.c_char * 1024
"""Buffer for any of the structures. The largest of them, the attributes, takes 336 bytes."""
_SIGNALS_BYTES = 128
_INT_BYTES = ctypes.sizeof(ctypes.c_int)

_F_SETOWN_EX, _F_OWNER_PGRP = 15, 2

_LIBC = ctypes.PyDLL(None)  # a PyDLL keeps the GIL during a call
_PIDFD_OPEN = getattr(_LIBC, "pidfd_open", None)  # glibc 2.36
_ADD = {
    os.POSIX_SPAWN_OPEN: _LIBC.posix_spawn_file_actions_addopen,
    os.POSIX_SPAWN_CLOSE: _LIBC.posix_spawn_file_actions_addclose,
    os.POSIX_SPAWN_DUP2: _LIBC.posix_spawn_file_actions_adddup2,
    CLOSE_FROM: _LIBC.posix_spawn_file_actions_addclosefrom_np,  # glibc 2.34
}
_CHANGE_FOLDER = _LIBC.posix_spawn_file_actions_addchdir_np  # glibc 2.29


def posix_spawn(
    path: bytes,
    argv: bytes,
    env: bytes,
    *,
    cwd: bytes | None,
    file_actions: Iterable[tuple[Any, ...]],
    setsigdef: frozenset[int],
    arm: int | None,
    hold: bool,
    session: bool = True,
) -> tuple[int, int]:
    """Start a program with an empty signal mask, in a session of its own; return its pid and its pidfd.

    Args:
        path: Path of the program; the kernel resolves it from `cwd`.
        argv: A null-terminated array of pointers to its arguments.
        env: The same for its whole environment.
        cwd: Its working directory; None for that of this process.
        file_actions: As of `os.posix_spawn`.
        setsigdef: Signals to reset to their default.
        arm: A prepared read end of a lifeline, which the call arms for the program's group; None if there is none.
        hold: Whether to open a pidfd. If not, or if no pidfd is available, the returned pidfd is -1.
        session: Whether the program gets a session of its own. Otherwise it gets only a process group of its own.

    Raises:
        OSError: The program could not be started; ``filename`` is None.
    """
    actions, owner = _Room(), (ctypes.c_int * 2)(_F_OWNER_PGRP, 0)
    pid = ctypes.c_int.from_buffer(owner, _INT_BYTES)
    failed = _LIBC.posix_spawn_file_actions_init(actions)
    try:
        if cwd is not None:
            failed = failed or _CHANGE_FOLDER(actions, cwd)
        for kind, *words in file_actions:
            failed = failed or _ADD[kind](actions, *words)
        if failed:  # without a call, as each rank takes this path; so below
            _check(failed)
        attributes = _attributes(setsigdef, session)
        steps = [partial(_LIBC.posix_spawn, ctypes.byref(pid), path, actions, attributes, argv, env)]
        if arm is not None:
            steps.append(partial(_LIBC.fcntl, arm, _F_SETOWN_EX, owner))
        if hold and _PIDFD_OPEN is not None:
            steps.append(partial(_PIDFD_OPEN, pid, 0))
        # `map` loops in C. In a loop of bytecode, the interpreter may pass the GIL to another thread
        error, *others = map(operator.call, steps)
    finally:
        _LIBC.posix_spawn_file_actions_destroy(actions)
    if error:
        _check(error)
    return pid.value, others[-1] if hold and _PIDFD_OPEN is not None else -1


@cache
def _attributes(setsigdef: frozenset[int], session: bool) -> Any:
    """Return the spawn attributes. The process group is new.

    glibc only reads the attributes, so all starts share them.
    """
    made = _Room()
    _check(_LIBC.posix_spawnattr_init(made))
    signals = ctypes.create_string_buffer(_SIGNALS_BYTES)
    _LIBC.sigemptyset(signals)
    _check(_LIBC.posix_spawnattr_setsigmask(made, signals))
    for number in setsigdef:
        _LIBC.sigaddset(signals, number)
    _check(_LIBC.posix_spawnattr_setsigdefault(made, signals))
    flags = _SETSIGDEF | _SETSIGMASK | (_SETSID if session else _SETPGROUP)
    _check(_LIBC.posix_spawnattr_setflags(made, ctypes.c_short(flags)))
    return made


def _check(error: int) -> None:
    if error:
        raise OSError(error, os.strerror(error))
