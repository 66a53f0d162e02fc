"""Programs started by the C library's own `posix_spawn`, which resets signals and costs less than `Popen`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

from supervise._process.dispositions import RESTORED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CLOSE_FROM: int | None = getattr(os, "POSIX_SPAWN_CLOSEFROM", None)
SHUTS = _CLOSE_FROM is not None
"""Whether every descriptor but those given can be closed in the child at one stroke: since Python 3.13, glibc 2.34."""


def spawn(
    argv: Sequence[str],
    env: Mapping[str, str] | Mapping[bytes, bytes],
    stdio: tuple[int | None, int | None, int | None],
    fds: tuple[int, ...],
    *,
    reset: frozenset[int],
) -> int:
    """Start a program in a session of its own, in this process's folder, with an empty signal mask; return its pid.

    Args:
        argv: As for `launch.run_program`.
        env: As for `launch.run_program`.
        stdio: Descriptors for its stdin (None: empty), stdout and stderr (None: the host's).
        fds: What else to leave open: a single one under any number, several under their own.
        reset: Signals to be set to their default, beside `RESTORED`.

    Raises:
        OSError: It could not be started; names the program.
    """
    program = argv[0]
    path = program if os.path.dirname(program) else find(program, env, None)
    try:
        return os.posix_spawn(
            path,
            list(argv),
            env,
            file_actions=_actions(stdio, fds),
            setsid=True,
            setsigmask=(),
            setsigdef=RESTORED | reset,
        )
    except OSError as error:
        if error.filename is not None:
            error.filename = program  # as it was given, not where it was found
        raise


def _actions(stdio: tuple[int | None, int | None, int | None], fds: tuple[int, ...]) -> list[tuple[Any, ...]]:
    """Return what the child does with its descriptors. dup2 onto itself clears the close-on-exec flag."""
    actions: list[tuple[Any, ...]] = []
    if stdio[0] is None:
        actions.append((os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0))
    for target, source in enumerate(stdio):
        if source is not None:
            actions.append((os.POSIX_SPAWN_DUP2, source, target))
    if _CLOSE_FROM is not None and len(fds) == 1:
        return [*actions, (os.POSIX_SPAWN_DUP2, fds[0], 3), (_CLOSE_FROM, 4)]
    actions += [(os.POSIX_SPAWN_CLOSE, fd) for fd in _inheritable_fds() - set(fds)]
    return [*actions, *((os.POSIX_SPAWN_DUP2, fd, fd) for fd in fds)]


def find(program: str, env: Mapping[str, str] | Mapping[bytes, bytes], cwd: str | None) -> str:
    """Return the path that `program` means, looked up as `subprocess` does.

    Raises:
        OSError: It does not exist, or cannot be executed.
    """
    if os.path.dirname(program):
        candidates = [program]
    else:
        candidates = [os.path.join(d, program) for d in os.get_exec_path(cast("dict[str, str]", dict(env)))]
    denied = False
    for candidate in candidates:
        full = os.path.join(cwd or "", candidate)
        if os.path.isfile(full) and may_execute(full):
            return candidate
        denied = denied or os.path.exists(full)
    if denied:
        raise PermissionError(13, "Permission denied", program)
    raise FileNotFoundError(2, "No such file or directory", program)


def may_execute(path: str) -> bool:
    """Whether this process may, by its effective user, as the kernel asks."""
    return os.access(path, os.X_OK, effective_ids=os.access in os.supports_effective_ids)


def _inheritable_fds() -> set[int]:
    """Descriptors above 2 that an exec would leave open."""
    found = set()
    for name in os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"):
        fd = int(name)
        try:
            if fd > 2 and os.get_inheritable(fd):
                found.add(fd)
        except OSError:  # the one that listed the directory
            continue
    return found
