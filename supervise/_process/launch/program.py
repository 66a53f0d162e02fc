"""Start one program: in its own session, with an empty stdin, default signals and an empty mask."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervise._process import platform
from supervise._process.append import open_to_append, tell_reader
from supervise._process.exits.handle import Process
from supervise._process.files import clear_of_stdio
from supervise._process.launch import posix_spawn, shell
from supervise._process.lifeline import lifeline

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from supervise._process.lifeline.gate import Gate

_REAP_S = 5.0
"""How long a child that could not be held, and was killed, is waited for."""
_LOOK_S = 0.01


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
) -> Process:
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


def hold(pid: int, keep: object = None, *, execs: bool = True, pidfd: int = -1) -> Process:
    """Return the handle of a child that was just started; where there can be none, the child is ended first.

    Args:
        pid: The child.
        keep: As for `Process`.
        execs: As for `Process`.
        pidfd: As for `Process`.

    Raises:
        OSError: Descriptors are exhausted, for one; nothing of the child is left.
    """
    try:
        return Process(pid, keep=keep, execs=execs, pidfd=pidfd)
    except OSError:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # reaped by somebody else
            os.kill(pid, signal.SIGKILL)
            _reap_killed(pid)
        if keep is not None:
            keep.returncode = -signal.SIGKILL  # type: ignore[attr-defined]
        raise


def _reap_killed(pid: int) -> None:
    """Reap a child that was killed, in another thread: one that the kernel holds back must not hold up the gang."""

    def reap() -> None:
        with contextlib.suppress(ChildProcessError):  # reaped by somebody else
            os.waitpid(pid, 0)

    thread = threading.Thread(target=reap, name="supervise-reaper", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no more threads either: look, for as long
        deadline_s = time.monotonic() + _REAP_S
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < deadline_s:
                select.select([], [], [], _LOOK_S)
    else:
        thread.join(_REAP_S)
