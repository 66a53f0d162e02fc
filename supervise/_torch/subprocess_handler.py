"""`SubprocessHandler`: one program with its log files, without a gang."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import weakref
from typing import TYPE_CHECKING, Any, TextIO

from supervise import _platform as platform
from supervise._files import make_ready
from supervise._gang.validation import argv_of, as_tuple, check_argv
from supervise._process.launch import numa, program
from supervise._process.launch.program import Streams
from supervise.destinations import LogsDest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from supervise._process.exits.leader import Process


class SubprocessHandler:
    """Starts a program in a new session, and signals its process group.

    Unlike a rank of a gang, the program survives this process, and the owner of the handler must wait for it.

    Args:
        entrypoint: Name or path of the program.
        args: Its arguments; they become strings.
        env: Variables added to this process's environment; values become strings.
        stdout: Path of its stdout; an existing file is moved aside. Empty or None for this process's stdout.
        stderr: The same for stderr.
        local_rank_id: Its rank.
        numa_options: The CPUs to bind it to (`NumaOptions`); None does not bind it.

    Raises:
        OSError: The program could not be started; there is no process.
        SpecError: The program cannot be bound, or an argument cannot be passed.
    """

    local_rank_id: int
    """Its rank."""
    proc: subprocess.Popen[bytes]
    """The process."""
    _stdout: TextIO | None = None
    """For `_popen`: the file of the program's stdout; None for this process's stdout."""
    _stderr: TextIO | None = None
    """The same for stderr."""
    _group: Process | None = None
    """None if a subclass started the process itself."""

    def __init__(  # noqa: PLR0917 - PyTorch's order
        self,
        entrypoint: str,
        args: Sequence[Any],
        env: Mapping[str, Any],
        stdout: str | None,
        stderr: str | None,
        local_rank_id: int,
        numa_options: Any,
    ) -> None:
        self.local_rank_id = local_rank_id
        argv = argv_of(entrypoint, as_tuple(local_rank_id, args), local_rank_id)
        check_argv(argv, local_rank_id)
        cpus = numa.cpus_of_ranks([local_rank_id], numa_options).get(local_rank_id)
        whole_env = {**os.environ, **{str(key): str(value) for key, value in env.items()}}
        make_ready(LogsDest({local_rank_id: stdout or ""}, {local_rank_id: stderr or ""}))
        with contextlib.ExitStack() as stack:
            fds = Streams(stdout=stdout or "", stderr=stderr or "").open()
            files = [None if fd is None else stack.enter_context(open(fd, "w", encoding="utf-8")) for fd in fds]
            self._stdout, self._stderr = files
            with numa.bound_thread(cpus):
                self.proc = self._popen(tuple(argv), whole_env)
            if getattr(self._popen, "__func__", None) is not _OUR_POPEN:  # a subclass may write to the files later
                weakref.finalize(self, stack.pop_all().close)
        try:
            self._group = program.hold(self.proc.pid, keep=self.proc)
        except program.UnreapedError as unreaped:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.proc.wait(_REAP_S)
            raise unreaped.error from None
        weakref.finalize(self, self._group.close)

    def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start the program. A subclass may replace this method.

        Args:
            args: The program and its arguments.
            env: Its whole environment.
        """
        return subprocess.Popen(
            args, env=env, stdin=subprocess.DEVNULL, stdout=self._stdout, stderr=self._stderr, start_new_session=True
        )

    def close(self, death_sig: signal.Signals | None = None) -> None:
        """Send a signal, SIGTERM by default, to the program's process group. Does not wait.

        Args:
            death_sig: The signal. It has no effect on an empty group.
        """
        sig = death_sig or signal.SIGTERM
        if self._group is None:
            if self.proc.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.proc.pid, sig)
            return
        # If the owner of the handler has reaped the process, the kernel may reuse the pid
        if self.proc.returncode is None or platform.GROUP_BY_PIDFD:
            self._group.signal_group(sig)


_REAP_S = 5.0
"""How long to wait for a program that was killed because its exit could not be watched."""
_OUR_POPEN = SubprocessHandler._popen  # noqa: SLF001 - to detect a replacement


def get_subprocess_handler(  # noqa: PLR0917 - PyTorch's order
    entrypoint: str,
    args: Sequence[Any],
    env: Mapping[str, Any],
    stdout: str,
    stderr: str,
    local_rank_id: int,
    numa_options: Any = None,
) -> SubprocessHandler:
    """Start a program as `SubprocessHandler` does, and return its handler."""
    return SubprocessHandler(entrypoint, args, env, stdout, stderr, local_rank_id, numa_options)
