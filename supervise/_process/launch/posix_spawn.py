"""Programs started by `posix_spawn`: it resets signals, and waits for nothing but the `exec` itself.

`subprocess.Popen` also waits for the end of a pipe, which a child that another thread forks meanwhile keeps open.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Any, cast

from supervise._process import platform
from supervise._process.launch.dispositions import RESTORED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

glibc: ModuleType | None = None
if platform.GLIBC:
    try:
        from supervise._process.launch import glibc
    except (ImportError, AttributeError):  # no ctypes, another C library, or glibc before 2.34
        glibc = None

CLOSE_FROM: int | None = getattr(os, "POSIX_SPAWN_CLOSEFROM", None) if glibc is None else glibc.CLOSE_FROM
"""Closes all descriptors from a number on: by `glibc`, or since Python 3.13."""
_LIFELINE = 20
"""The number of a single descriptor that is left open: shell scripts use 3 to 9, and shells take free ones from 10."""
CHANGES_FOLDER = glibc is not None
"""Whether `spawn` can start a program in another folder."""
ARMS = glibc is not None
"""Whether `spawn` arms the lifeline and opens the pidfd."""


def spawn(
    argv: Sequence[str],
    env: Mapping[str, str] | Mapping[bytes, bytes],
    stdio: tuple[int | None, int | None, int | None],
    fds: Sequence[int],
    *,
    reset: frozenset[int],
    cwd: str | None = None,
    arm: int | None = None,
    hold: bool = False,
) -> tuple[int, int]:
    """Start a program in a session of its own, with an empty signal mask; return its pid and its pidfd.

    Args:
        argv: The program and its arguments.
        env: Its whole environment.
        stdio: Descriptors for its stdin (None: empty), stdout and stderr (None: the host's).
        fds: What else to leave open: a single one under any number, several under their own.
        reset: Signals to be set to their default, beside `RESTORED`.
        cwd: Its working directory; None is this process's, and must be where `CHANGES_FOLDER` is not.
        arm: A prepared read end of a lifeline, to be armed for the program's group where `ARMS` says so; None is none.
        hold: Whether to open a pidfd. It is -1 where that was not possible, or `ARMS` is not.

    Raises:
        OSError: It could not be started; names the program, or `cwd`.
    """
    program, env = argv[0], _coded(env)
    try:
        path = program if os.path.dirname(program) else find(program, env, cwd)
        if glibc is not None:
            started: tuple[int, int] = glibc.posix_spawn(
                path,
                argv,
                [name + b"=" + value for name, value in env.items()],
                cwd=cwd,
                file_actions=_actions(stdio, fds),
                setsigdef=RESTORED | reset,
                arm=arm,
                hold=hold,
            )
            return started
        pid = os.posix_spawn(
            path,
            list(argv),
            env,
            file_actions=_actions(stdio, fds),
            setsid=True,
            setsigmask=(),
            setsigdef=RESTORED | reset,
        )
    except OSError as error:
        if cwd is not None:
            check_folder(cwd)
        if error.errno == errno.EAGAIN:  # no process to be had, whatever the program
            raise OSError(error.errno, error.strerror) from None
        error.filename = program  # as it was given, not where it was found
        raise
    return pid, -1


def _actions(stdio: tuple[int | None, int | None, int | None], fds: Sequence[int]) -> list[tuple[Any, ...]]:
    """Return what the child does with its descriptors. dup2 onto itself clears the close-on-exec flag."""
    actions: list[tuple[Any, ...]] = []
    if stdio[0] is None:
        actions.append((os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0))
    for target, source in enumerate(stdio):
        if source is not None:
            actions.append((os.POSIX_SPAWN_DUP2, source, target))
    if CLOSE_FROM is None:
        actions += [(os.POSIX_SPAWN_CLOSE, fd) for fd in _inheritable_fds() - set(fds)]
        return [*actions, *((os.POSIX_SPAWN_DUP2, fd, fd) for fd in fds)]
    limit = os.sysconf("SC_OPEN_MAX")
    if len(fds) == 1:
        number = _LIFELINE if not 0 <= limit <= _LIFELINE else 3
        actions.append((os.POSIX_SPAWN_DUP2, fds[0], number))
        fds = (number,)
    end = max(fds, default=2) + 1
    # All numbers, not only those that are open: another thread may open one meanwhile. It is no error if none does.
    actions += [(os.POSIX_SPAWN_CLOSE, fd) for fd in set(range(3, end)).difference(fds)]
    actions += [(os.POSIX_SPAWN_DUP2, fd, fd) for fd in fds]
    if not 0 <= limit <= end:  # glibc refuses numbers from this limit on
        actions.append((CLOSE_FROM, end))
    return actions


def check_folder(cwd: str) -> None:
    """Refuse a working directory that a process cannot enter.

    Raises:
        OSError: As from the `chdir`; names it.
    """
    try:
        os.stat(os.path.join(cwd, "."))
    except OSError as error:
        error.filename = cwd
        raise


def find(program: str, env: Mapping[str, str] | Mapping[bytes, bytes], cwd: str | None) -> str:
    """Return the path that `program` means, looked up as `subprocess` does.

    Raises:
        OSError: It does not exist, or cannot be executed.
    """
    if os.path.dirname(program):
        candidates = [program]
    else:
        path = os.fsdecode(_coded(env).get(b"PATH", os.defpath))
        candidates = [os.path.join(folder, program) for folder in path.split(os.pathsep)]
    denied = False
    for candidate in candidates:
        full = os.path.join(cwd or "", candidate)
        try:
            mode = os.stat(full).st_mode
        except OSError as error:
            denied = denied or error.errno == errno.EACCES
            continue
        if stat.S_ISREG(mode) and may_execute(full):
            return candidate
        denied = True
    if denied:
        raise PermissionError(13, "Permission denied", program)
    raise FileNotFoundError(2, "No such file or directory", program)


def _coded(env: Mapping[str, str] | Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
    """Return an environment as the kernel takes it, which that of a program is already."""
    if isinstance(next(iter(env), b""), bytes):
        return cast("Mapping[bytes, bytes]", env)
    return {os.fsencode(name): os.fsencode(value) for name, value in env.items()}


def may_execute(path: str) -> bool:
    """Whether this process may, by its effective user, as the kernel asks."""
    return os.access(path, os.X_OK, effective_ids=os.access in os.supports_effective_ids)


def _inheritable_fds() -> set[int]:
    """Descriptors above 2 that an exec would leave open."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        try:
            if fd > 2 and os.get_inheritable(fd):
                found.add(fd)
        except OSError:  # the one that listed the directory
            continue
    return found
