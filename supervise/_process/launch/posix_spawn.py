"""Start of programs by `posix_spawn`, which resets signals and returns after the `exec`.

`subprocess.Popen` waits for EOF on a pipe. If another thread forks meanwhile, the child of that fork keeps the pipe
open.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import sys
from typing import TYPE_CHECKING, Any, Literal, cast

from supervise import _platform as platform
from supervise._files import accessible
from supervise._process.launch.dispositions import ALL_BUT_HANGUP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType


# The environment of a program, as the C library takes it
#
# The ranks of a gang share most of their variables, so these are encoded once for a gang, not at each launch.


_TEXT = bytes.__basicsize__ - 1
"""Offset of the characters in a bytes object. The address of the object is its `id`."""


def encoded(env: Mapping[str, str]) -> dict[bytes, bytes]:
    """Return an environment as the kernel takes it."""
    return {name.encode(*platform.FILE_SYSTEM): value.encode(*platform.FILE_SYSTEM) for name, value in env.items()}


def _array(texts: list[bytes]) -> bytes:
    """Return an array of pointers to `texts`, which a null pointer ends. The caller keeps a reference to the texts.

    Such an array takes less time to make than one of `c_char_p`.
    """
    return struct.pack(f"{len(texts)}PP", *map(_TEXT.__add__, map(id, texts)), 0)


def _word(text: str) -> bytes:
    """Return a text as bytes. Refuse a NUL, because C would end the text there."""
    coded = text.encode(*platform.FILE_SYSTEM)
    if b"\0" in coded:
        raise ValueError("embedded null byte")
    return coded


# The start


FoundPrograms = dict[tuple[str, bytes | None, str | None], str]
"""Program, PATH and working directory to the path of the program."""

glibc: ModuleType | None = None
if platform.GLIBC:
    try:
        from supervise._process.launch import glibc
    except (ImportError, AttributeError):  # no ctypes, another C library, or glibc before 2.34
        glibc = None

CLOSE_FROM: int | None = getattr(os, "POSIX_SPAWN_CLOSEFROM", None) if glibc is None else glibc.CLOSE_FROM
"""File action that closes all descriptors from a number on. None if neither `glibc` nor Python (since 3.13) has it."""
_BUILTIN: type = type(os.getpid)
_NULL_DEVICE = os.devnull.encode()
UNARMED = -2
"""The pidfd of a program whose lifeline the caller must arm."""
_LIFELINE = 20
"""Number of the only descriptor that a program has beside its streams.

Scripts use 3 to 9, and shells use free numbers from 10 on.
"""
CLEAR_OF_SOCKETS = _LIFELINE + 1
"""The lowest number of each other descriptor of a process with sockets, whose numbers begin at 3."""
CHANGES_FOLDER = glibc is not None
"""Whether `spawn` can start a program in another folder. If so, it also arms the lifeline and opens the pidfd."""


def spawn(
    argv: Sequence[str],
    env: Mapping[str, str] | Mapping[bytes, bytes],
    stdio: tuple[int | None, int | None, int | None],
    fds: Sequence[int],
    *,
    cwd: str | None = None,
    arm: int | None = None,
    hold: bool = False,
    session: bool = True,
    found: FoundPrograms | None = None,
    listen: Sequence[int] = (),
) -> tuple[int, int]:
    """Start a program in a session of its own, with default signals and an empty mask; return its pid and its pidfd.

    The program inherits an ignored SIGHUP.

    Args:
        argv: The program and its arguments.
        env: Its whole environment.
        stdio: Descriptors for its stdin (None: the null device), stdout and stderr (None: the host's).
        fds: Further descriptors to leave open. A single one may get another number; several keep their own.
        cwd: Its working directory; None for that of this process. Must be None unless `CHANGES_FOLDER` is set.
        arm: A prepared read end of a lifeline; None if there is none. With glibc, the call arms it for the program's
            group.
        hold: Whether to open a pidfd. The returned pidfd is -1 if that was not possible, and `UNARMED` if the call has
            not armed the lifeline: without glibc, or if a debugger has replaced Python's ways to start.
        session: Whether the program gets a session of its own. Otherwise it gets only a process group of its own.
        found: Programs that were found before, to which the call adds this one; None: search for the program.
        listen: Descriptors that the program gets under the numbers from 3 on. With them, the numbers of `listen` and
            `fds` are at least `CLEAR_OF_SOCKETS`, and the start does not go through what a debugger has replaced:
            `subprocess` cannot place descriptors, and the program is a shell, which no debugger follows.

    Raises:
        OSError: The program could not be started; ``filename`` is the program or `cwd`.
    """
    program = argv[0]
    env = _coded(env)
    try:
        path = program if "/" in program else _found(program, env, cwd, {} if found is None else found)
        replaced = _replaced() if not listen else ""
        if replaced == "subprocess" or (replaced and cwd is not None):
            return _by_subprocess(path, argv, env, stdio, fds, cwd=cwd, session=session), UNARMED
        if glibc is not None and not replaced:
            sys.audit("os.posix_spawn", path, argv, env)
            words = [_word(word) for word in argv]  # kept here until the start, as the texts of the environment
            texts = [name + b"=" + value for name, value in env.items()]
            started: tuple[int, int] = glibc.posix_spawn(
                words[0] if path == program else _word(path),
                _array(words),
                _array(texts),
                cwd=None if cwd is None else _word(cwd),
                file_actions=_actions(stdio, fds, CLOSE_FROM, listen),
                setsigdef=ALL_BUT_HANGUP,
                arm=arm,
                hold=hold,
                session=session,
            )
            return started
        pid = os.posix_spawn(
            path,
            list(argv),
            env,
            file_actions=_actions(stdio, fds, getattr(os, "POSIX_SPAWN_CLOSEFROM", None), listen),
            **({"setsid": True} if session else {"setpgroup": 0}),
            setsigmask=(),
            setsigdef=ALL_BUT_HANGUP,
        )
    except OSError as error:
        if cwd is not None:
            check_folder(cwd)
        if error.errno == errno.EAGAIN:  # no process is available, for any program
            raise OSError(error.errno, error.strerror) from None
        if error.errno is not None:  # None: an audit hook has raised the error
            error.filename = program  # the caller's name, not the path in PATH
        raise
    return pid, UNARMED


def _found(program: str, env: Mapping[bytes, bytes], cwd: str | None, found: FoundPrograms) -> str:
    key = program, env.get(b"PATH"), cwd
    if key not in found:
        found[key] = find(program, env, cwd)
    return found[key]


def _replaced() -> Literal["subprocess", "posix_spawn", ""]:
    """Return which of Python's ways to start a program was replaced; "" if none.

    Debuggers and tracers replace them, to follow the started programs, so a start must go through the replacement.
    """
    subprocess = sys.modules.get("subprocess")
    popen = getattr(subprocess, "Popen", None)  # missing while another thread is importing the module
    if popen is not None:
        forks = getattr(subprocess, "_fork_exec", sys.modules["_posixsubprocess"].fork_exec)
        if type(forks) is not _BUILTIN or popen.__module__.partition(".")[0] not in ("subprocess", "gevent"):
            return "subprocess"
    return "posix_spawn" if type(os.posix_spawn) is not _BUILTIN else ""


def _by_subprocess(
    path: str,
    argv: Sequence[str],
    env: Mapping[bytes, bytes],
    stdio: tuple[int | None, int | None, int | None],
    fds: Sequence[int],
    *,
    cwd: str | None,
    session: bool,
) -> int:
    """Start a program by `subprocess.Popen`; return its pid.

    The empty signal mask is that of this thread. A signal that this process ignores stays ignored in the program.
    """
    import signal
    import subprocess

    stdin, out, err = stdio
    mask = signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        process = subprocess.Popen(
            list(argv),
            executable=path,
            env=dict(env),
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=out,
            stderr=err,
            pass_fds=fds,
            cwd=cwd,
            start_new_session=session,
            process_group=None if session else 0,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    process.returncode = 0  # the caller reaps the program
    return process.pid


def _actions(
    stdio: tuple[int | None, int | None, int | None],
    fds: Sequence[int],
    close_from: int | None,
    listen: Sequence[int] = (),
) -> list[tuple[Any, ...]]:
    """Return the file actions of the child.

    A dup2 of a descriptor onto itself clears the close-on-exec flag of the descriptor. `close_from` is the kind of the
    action that closes all descriptors from a number on; None if there is none.
    """
    actions: list[tuple[Any, ...]] = [
        (os.POSIX_SPAWN_DUP2, source, target) for target, source in enumerate(stdio) if source is not None
    ]
    null = (os.POSIX_SPAWN_OPEN, 0, _NULL_DEVICE, os.O_RDONLY, 0)
    limit = os.sysconf("SC_OPEN_MAX")
    number = _LIFELINE if not 0 <= limit <= _LIFELINE else 3
    first = 3 + len(listen)
    placed = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate(listen, 3)]
    if stdio[0] is None:
        if close_from is not None and len(fds) == 1:  # `fds[0]` has the number of stdin while all others are closed
            move, back = (os.POSIX_SPAWN_DUP2, fds[0], 0), (os.POSIX_SPAWN_DUP2, 0, number)
            return [*actions, move, *placed, (close_from, first), back, null]
        actions.append(null)
    if close_from is None:
        actions += [(os.POSIX_SPAWN_CLOSE, fd) for fd in _inheritable_fds() - set(fds)]
        return [*actions, *placed, *((os.POSIX_SPAWN_DUP2, fd, fd) for fd in fds)]
    if len(fds) == 1:
        actions.append((os.POSIX_SPAWN_DUP2, fds[0], number))
        fds = (number,)
    actions += placed
    end = max(fds, default=2) + 1
    # All numbers, because another thread may open one in the meantime. The close of a closed number is not an error.
    actions += [(os.POSIX_SPAWN_CLOSE, fd) for fd in set(range(first, end)).difference(fds)]
    actions += [(os.POSIX_SPAWN_DUP2, fd, fd) for fd in fds]
    if not 0 <= limit <= end:  # glibc refuses numbers from this limit on
        actions.append((close_from, end))
    return actions


def check_folder(cwd: str) -> None:
    """Refuse a working directory that a process cannot enter.

    Raises:
        OSError: As from `chdir`; ``filename`` is `cwd`.
    """
    try:
        os.stat(os.path.join(cwd, "."))
    except OSError as error:
        error.filename = cwd
        raise


def find(program: str, env: Mapping[str, str] | Mapping[bytes, bytes], cwd: str | None) -> str:
    """Return the path of `program`. The search in PATH is that of `subprocess`.

    Raises:
        OSError: The program does not exist or cannot be executed.
    """
    if "/" in program:
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
        if stat.S_ISREG(mode) and accessible(full, os.X_OK):
            return candidate
        denied = True
    if denied:
        raise PermissionError(13, "Permission denied", program)
    raise FileNotFoundError(2, "No such file or directory", program)


def _coded(env: Mapping[str, str] | Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
    """Return an environment as bytes."""
    if isinstance(next(iter(env), b""), bytes):
        return cast("Mapping[bytes, bytes]", env)
    return encoded(cast("Mapping[str, str]", env))


def _inheritable_fds() -> set[int]:
    """Return the descriptors above 2 that an exec would leave open."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        try:
            if fd > 2 and os.get_inheritable(fd):
                found.add(fd)
        except OSError:  # the descriptor that listed the directory
            continue
    return found
