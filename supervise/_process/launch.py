"""Start one program: in its own session, with an empty stdin, default signals and an empty mask."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from supervise._process import lifeline
from supervise._process.handle import Process
from supervise._process.memory import clear_of_stdio

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_PASSED_ON = {signal.SIGHUP}
"""An ignored SIGHUP is what nohup means; the worker inherits it."""
_RESTORED_BY_POPEN = {signal.SIGPIPE, signal.SIGXFSZ}
_UNCHANGEABLE = {signal.SIGKILL, signal.SIGSTOP}


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Where a worker's output goes: paths of files to append to, or "" for the host's own stream."""

    stdout: str = ""
    stderr: str = ""

    def open(self) -> tuple[int | None, int | None]:
        """Return descriptors for stdout and stderr; None is the host's own. The caller closes them.

        Where the host has none (it was started with it closed), the worker's is the null device.
        """
        out = append_to(self.stdout or _host_stream(sys.__stdout__, 1))
        try:
            return out, append_to(self.stderr or _host_stream(sys.__stderr__, 2))
        except BaseException:
            close(out)
            raise


def _host_stream(stream: object, number: int) -> str:
    """Return "" where descriptor `number` is the host's stream, else the null device: it may be anything by now."""
    try:
        os.fstat(number)
    except OSError:
        return os.devnull
    return os.devnull if stream is None else ""


def append_to(path: str) -> int | None:
    """Open `path` for a worker's output, made private to the user; "" is None."""
    if not path:
        return None
    return clear_of_stdio(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))


def close(*fds: int | None) -> None:
    """Close those that are not None."""
    for fd in fds:
        if fd is not None:
            os.close(fd)


def run_program(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | Mapping[bytes, bytes],
    cwd: str | None,
    streams: Streams,
    read_end: int,
    reset: frozenset[signal.Signals],
    pass_fds: Iterable[int] = (),
    stdin: int | None = None,
) -> Process:
    """Start `argv` and arm its lifeline.

    Args:
        argv: The program and its arguments.
        env: Its whole environment.
        cwd: Its working directory; None is the host's.
        streams: Where its output goes.
        read_end: Of the gang's lifeline, for this process alone; the caller closes it.
        reset: Signals that this process ignores and the worker must not, from `to_reset`.
        pass_fds: Further descriptors to leave open under their numbers.
        stdin: Descriptor for its stdin; None is empty.

    Raises:
        OSError: It could not be started; nothing of it is left.
    """
    out, err = streams.open()
    try:
        if reset or signal.pthread_sigmask(signal.SIG_BLOCK, ()):
            process = _posix_spawn(argv, env, cwd, (stdin, out, err), (*pass_fds, read_end), reset=reset)
        else:
            process = _popen(argv, env, cwd, (stdin, out, err), (*pass_fds, read_end))
    finally:
        close(out, err)
    with contextlib.suppress(ProcessLookupError):  # dead, and reaped by somebody else already
        lifeline.arm(read_end, process.pid)
    return process


def to_reset() -> frozenset[signal.Signals]:
    """Signals that this process ignores and a worker must not; found once a gang, since it takes 50 us."""
    signals = _NAMED - _UNCHANGEABLE - _PASSED_ON - _RESTORED_BY_POPEN
    return frozenset(s for s in signals if signal.getsignal(s) == signal.SIG_IGN)


_NAMED = frozenset(signal.Signals)


def _popen(
    argv: Sequence[str],
    env: Mapping[str, str] | Mapping[bytes, bytes],
    cwd: str | None,
    stdio: tuple[int | None, int | None, int | None],
    fds: tuple[int, ...],
) -> Process:
    stdin, out, err = stdio
    popen = subprocess.Popen(
        argv,
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL if stdin is None else stdin,
        stdout=out,
        stderr=err,
        pass_fds=fds,
        start_new_session=True,
    )
    return hold(popen.pid, keep=popen)


def _posix_spawn(
    argv: Sequence[str],
    env: Mapping[str, str] | Mapping[bytes, bytes],
    cwd: str | None,
    stdio: tuple[int | None, int | None, int | None],
    fds: tuple[int, ...],
    *,
    reset: frozenset[signal.Signals],
) -> Process:
    """Start with signals reset, which Popen cannot do: the host ignores or blocks some."""
    stdin, out, err = stdio
    path = _find(argv[0], env, cwd)
    if cwd is not None:
        os.stat(os.path.join(cwd, "."))
        argv = ["/bin/sh", "-c", 'cd -- "$1" && shift && exec "$@"', "sh", os.path.abspath(cwd), path, *argv[1:]]
        path = argv[0]
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = []
    if stdin is None:
        actions.append((os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0))
    for source, target in ((stdin, 0), (out, 1), (err, 2)):
        if source is not None:
            actions.append((os.POSIX_SPAWN_DUP2, source, target))
    actions += [(os.POSIX_SPAWN_CLOSE, fd) for fd in _inheritable_fds() - set(fds)]
    # dup2 onto itself is how a descriptor is passed on: it clears the close-on-exec flag
    actions += [(os.POSIX_SPAWN_DUP2, fd, fd) for fd in fds]
    pid = os.posix_spawn(
        path,
        list(argv),
        dict(env),
        file_actions=actions,
        setsid=True,
        setsigmask=(),
        setsigdef=sorted(reset | _RESTORED_BY_POPEN),
    )
    return hold(pid)


def hold(pid: int, keep: object = None) -> Process:
    """Return the handle of a child that was just started; where there can be none, the child is ended first.

    Args:
        pid: The child.
        keep: As for `Process`.

    Raises:
        OSError: Descriptors are exhausted, for one; nothing of the child is left.
    """
    try:
        return Process(pid, keep=keep)
    except OSError:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # reaped by somebody else
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        if keep is not None:
            keep.returncode = -signal.SIGKILL  # type: ignore[attr-defined]
        raise


def _find(program: str, env: Mapping[str, str] | Mapping[bytes, bytes], cwd: str | None) -> str:
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
        if os.path.isfile(full) and os.access(full, os.X_OK):
            return candidate
        denied = denied or os.path.exists(full)
    if denied:
        raise PermissionError(13, "Permission denied", program)
    raise FileNotFoundError(2, "No such file or directory", program)


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
