"""Start one program: in its own session, with an empty stdin, default signals and an empty mask."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from typing import TYPE_CHECKING

from supervise._process import platform
from supervise._process.exits.handle import Process
from supervise._process.files import close
from supervise._process.launch import dispositions, posix_spawn, shell
from supervise._process.lifeline import lifeline
from supervise._process.lifeline.gate import gate_if

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervise._process.launch.launch_spec import LaunchSpec

_REAP_S = 5.0
"""How long a child that could not be held, and was killed, is waited for."""
_LOOK_S = 0.01


def run_program(argv: Sequence[str], how: LaunchSpec, read_end: int, pass_fds: Sequence[int] = ()) -> Process:
    """Start `argv` with an empty stdin, and arm its lifeline.

    Args:
        argv: The program and its arguments.
        how: All the rest that the rank is launched with.
        read_end: Of the gang's lifeline, for this process alone; the caller closes it. Left open in the process under
            any number.
        pass_fds: Further descriptors to leave open under their numbers.

    Raises:
        OSError: It could not be started; nothing of it is left.
    """
    env, cwd = how.env, how.cwd
    # Where the kernel reaps, it tells how a program has ended only if it was held before
    with gate_if(how.gate or dispositions.kernel_reaps()) as gate:
        if gate is not None or how.enter is not None or not (cwd is None or posix_spawn.CHANGES_FOLDER):
            argv, env, cwd = shell.becoming(argv, how, gated=gate is not None)
        out, err = how.streams.open()
        try:
            pid, pidfd = posix_spawn.spawn(
                argv,
                env,
                (how.line.empty if gate is None else gate.read_end, out, err),
                (*pass_fds, read_end),
                reset=how.reset,
                cwd=cwd,
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
