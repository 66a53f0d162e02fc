"""`SubprocessHandler`: one program with its log files, by itself, without a gang."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import weakref
from typing import TYPE_CHECKING, Any, TextIO

from supervise._gang.validation import argv_of, as_tuple
from supervise._logs.files import make_ready
from supervise._process import platform
from supervise._process.launch import numa, program
from supervise._process.launch.launch_spec import Streams
from supervise.destinations import LogsDest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from supervise._process.exits.handle import Process


class SubprocessHandler:
    """Starts a program in a session of its own, and signals its whole process group.

    Unlike a gang's, the program is not ended with this process, and whoever made the handler waits for it.

    Args:
        entrypoint: Name or path of the program.
        args: Its arguments; they become strings.
        env: What is added to this process's environment; values become strings.
        stdout: Path of its stdout, an earlier file being moved aside; empty or None is this process's own.
        stderr: The same of stderr.
        local_rank_id: Its rank.
        numa_options: Which CPUs it is bound to (`NumaOptions`); None binds it to none.

    Raises:
        OSError: It could not be started; nothing of it is left.
        SpecError: It cannot be bound, or an argument cannot be passed.
    """

    local_rank_id: int
    """Its rank."""
    proc: subprocess.Popen[bytes]
    """The process."""
    _stdout: TextIO | None = None
    """For `_popen`: the file of its stdout; None is this process's own."""
    _stderr: TextIO | None = None
    """The same of stderr."""
    _group: Process | None = None
    """None where a subclass has started the process without us."""

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
        cpus = numa.cpus_of_ranks([local_rank_id], numa_options).get(local_rank_id)
        whole_env = {**os.environ, **{str(key): str(value) for key, value in env.items()}}
        make_ready(LogsDest({local_rank_id: stdout or ""}, {local_rank_id: stderr or ""}))
        with contextlib.ExitStack() as stack:
            fds = Streams(stdout=stdout or "", stderr=stderr or "").open()
            files = [None if fd is None else stack.enter_context(open(fd, "w", encoding="utf-8")) for fd in fds]
            self._stdout, self._stderr = files
            with numa.bound_thread(cpus):
                self.proc = self._popen(tuple(argv), whole_env)
            if getattr(self._popen, "__func__", None) is not _OUR_POPEN:  # it may write to the files later on
                weakref.finalize(self, stack.pop_all().close)
        try:
            self._group = program.hold(self.proc.pid, keep=self.proc)
        except program.UnreapedError as unreaped:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.proc.wait(_REAP_S)
            raise unreaped.error from None
        weakref.finalize(self, self._group.close)

    def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start the program. A subclass may start it in its own way.

        Args:
            args: The program and its arguments.
            env: Its whole environment.
        """
        return subprocess.Popen(
            args, env=env, stdin=subprocess.DEVNULL, stdout=self._stdout, stderr=self._stderr, start_new_session=True
        )

    def close(self, death_sig: signal.Signals | None = None) -> None:
        """Send a signal to the program's process group, SIGTERM unless told otherwise. Does not wait.

        Args:
            death_sig: The signal. Harmless where nobody is left.
        """
        sig = death_sig or signal.SIGTERM
        if self._group is None:
            if self.proc.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.proc.pid, sig)
            return
        # Reaped by whoever waited for it, its number may be a stranger's by now; unreaped, it is still its own
        if self.proc.returncode is None or platform.GROUP_BY_PIDFD:
            self._group.signal_group(sig)


_REAP_S = 5.0
"""How long a killed program is waited for that could not be held."""
_OUR_POPEN = SubprocessHandler._popen  # noqa: SLF001 - to notice another in its place


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
