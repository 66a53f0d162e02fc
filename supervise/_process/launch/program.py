"""Start one program: in its own session, with an empty stdin, default signals and an empty mask."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervise._process import platform
from supervise._process.append import open_to_append, tell_reader
from supervise._process.exits.child import Child
from supervise._process.files import clear_of_stdio
from supervise._process.launch import posix_spawn, shell
from supervise._process.lifeline import lifeline

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from supervise._process.lifeline.gate import Gate


class UnreapedError(Exception):
    """A child was started, but cannot be supervised. It got SIGKILL and is not reaped yet."""

    def __init__(self, pid: int, error: OSError) -> None:
        """Describe the child.

        Args:
            pid: The child's.
            error: Why there can be no handle.
        """
        super().__init__(pid, error)
        self.pid = pid
        self.error = error

    def is_reaped(self) -> bool:
        """Reap the child if it is dead by now; tell whether nothing of it is left. Never blocks."""
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
        except ChildProcessError:  # reaped by other code of this program, or by the kernel (SIGCHLD is ignored)
            return True


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
    fd = clear_of_stdio(open_to_append(path))
    tell_reader(path, fd)
    return fd


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
    reset: frozenset[int],
    pass_fds: Sequence[int] = (),
    stdin: int | None = None,
    enter: str | None = None,
    gate: Gate | None = None,
) -> Child:
    """Start `argv` and arm its lifeline.

    Args:
        argv: The program and its arguments.
        env: Its whole environment.
        cwd: Its working directory; None is the host's.
        streams: Where its output goes.
        read_end: Of the gang's lifeline, for this process alone; the caller closes it. Left open in the process under
            any number.
        reset: Signals that this process ignores and the worker must not, from `dispositions.to_reset`.
        pass_fds: Further descriptors to leave open under their numbers.
        stdin: Descriptor for its stdin; None is empty.
        enter: The ``cgroup.procs`` in which it must be before it runs; None is where this process is.
        gate: What it waits for, before it runs; its stdin is then empty. None: it runs at once.

    Raises:
        OSError: It could not be started; nothing of it is left.
        UnreapedError: It was started, and killed, because it cannot be held.
    """
    go_there = cwd is not None and not posix_spawn.CHANGES_FOLDER
    if enter is not None or gate is not None or go_there:
        argv, env = shell.becoming(argv, env, cwd, go_there=go_there, enter=enter, gated=gate is not None)
    stdin = stdin if gate is None else gate.read_end
    out, err = streams.open()
    try:
        pid, pidfd = posix_spawn.spawn(
            argv,
            env,
            (stdin, out, err),
            (*pass_fds, read_end),
            reset=reset,
            cwd=None if go_there else cwd,
            arm=read_end,
            hold=platform.PIDFD,
        )
        if not posix_spawn.ARMS:
            _arm(read_end, pid)
        return hold(pid, pidfd=pidfd)
    finally:
        close(out, err)


def _arm(read_end: int, pid: int) -> None:
    """Arm the lifeline, before anything else: until then the process would outlive us."""
    with contextlib.suppress(ProcessLookupError):  # dead, and reaped by somebody else already
        lifeline.arm(read_end, pid)


def hold(pid: int, keep: object = None, *, execs: bool = True, pidfd: int = -1) -> Child:
    """Return the handle of a child that was just started; where there can be none, the child is killed.

    Args:
        pid: The child.
        keep: As for `Child`.
        execs: As for `Child`.
        pidfd: As for `Child`.

    Raises:
        UnreapedError: There can be no handle, because descriptors are exhausted, for example.
    """
    try:
        return Child(pid, keep=keep, execs=execs, pidfd=pidfd)
    except OSError as error:
        with contextlib.suppress(ProcessLookupError):  # dead, and reaped by other code of this program
            os.kill(pid, signal.SIGKILL)
        raise UnreapedError(pid, error) from error
