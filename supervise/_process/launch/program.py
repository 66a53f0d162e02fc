"""Start of one program, as leader of a process group, with default signals and an empty mask."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

from supervise import _platform as platform
from supervise._process.exits.child import Child
from supervise._process.files import close
from supervise._process.launch import dispositions, posix_spawn
from supervise._process.lifeline import lifeline
from supervise._process.lifeline.gate import gate_if

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervise._process.launch.launch_spec import LaunchSpec


class UnreapedError(Exception):
    """A child was started, but the host has no handle of it. The child got SIGKILL and is not reaped yet."""

    def __init__(self, pid: int, error: OSError) -> None:
        """Describe the child.

        Args:
            pid: Pid of the child.
            error: Cause of the missing handle.
        """
        super().__init__(pid, error)
        self.pid = pid
        self.error = error

    def is_reaped(self) -> bool:
        """Reap the child if it is dead; return whether it is reaped. Never blocks."""
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
        except ChildProcessError:  # reaped by other code of this program, or by the kernel (SIGCHLD is ignored)
            return True


def run_program(argv: Sequence[str], how: LaunchSpec, read_end: int, pass_fds: Sequence[int] = ()) -> Child:
    """Start `argv`, and arm its lifeline.

    Args:
        argv: The program and its arguments.
        how: The other settings of the launch.
        read_end: A read end of the gang's lifeline, for this process alone. The caller closes it. In the process, the
            descriptor may have another number.
        pass_fds: Further descriptors to leave open. They keep their numbers.

    Raises:
        OSError: The program could not be started; no process is left.
        UnreapedError: The process was started, then killed because the host has no handle of it.
    """
    env, cwd = how.env, how.cwd
    # If the kernel reaps, only a pidfd that was opened before the exit still gives the exit status
    with gate_if(how.gate or dispositions.kernel_reaps()) as gate:
        if gate is not None or how.enter is not None or not (cwd is None or posix_spawn.CHANGES_FOLDER):
            from supervise._process.launch import shell  # few launches need it

            argv, env, cwd = shell.becoming(argv, how, gated=gate is not None)
        stdin = None if how.stdin is None else how.stdin.fd
        out, err = how.streams.open()
        try:
            pid, pidfd = posix_spawn.spawn(
                argv,
                env,
                (stdin if gate is None else gate.read_end, out, err),
                (*pass_fds, read_end),
                cwd=cwd,
                arm=read_end,
                hold=platform.PIDFD,
                session=how.stdin is None or not how.stdin.foreground,
                found=how.found,
            )
            if not posix_spawn.ARMS:
                _arm(read_end, pid)
            return hold(pid, pidfd=pidfd)
        finally:
            close(out, err)


def _arm(read_end: int, pid: int) -> None:
    """Arm the lifeline as the first step. Until this step, the process would outlive the host."""
    with contextlib.suppress(ProcessLookupError):  # reaped by other code already
        lifeline.arm(read_end, pid)


def hold(pid: int, keep: object = None, *, execs: bool = True, pidfd: int = -1) -> Child:
    """Return the handle of a child that was just started; kill the child if that fails.

    Args:
        pid: The child.
        keep: As for `Child`.
        execs: As for `Child`.
        pidfd: As for `Child`.

    Raises:
        UnreapedError: The host cannot make a handle, for example because no descriptor is left.
    """
    try:
        return Child(pid, keep=keep, execs=execs, pidfd=pidfd)
    except OSError as error:
        with contextlib.suppress(ProcessLookupError):  # reaped by other code of this program already
            os.kill(pid, signal.SIGKILL)
        raise UnreapedError(pid, error) from error
