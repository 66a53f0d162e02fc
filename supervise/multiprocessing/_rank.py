"""The process object of `spawn`, with the interface of `multiprocessing.Process`."""

from __future__ import annotations

import contextlib
import os
import signal
import weakref
from typing import TYPE_CHECKING, Any

from supervise._runtime.wakeup import WakeFd

if TYPE_CHECKING:
    import pykka

_PROMPT_S = 5.0
"""Deadline for asks that the gang answers at once. If it expires, the gang is dead."""


LONGEST_WAIT_S = 2_000_000.0
"""23 days, since poll() takes at most 2**31 - 1 ms. A longer timeout is the same as None."""


def wait_for_any(sentinels: list[int], timeout: float | None) -> list[Any]:
    """Return the `sentinels` that become readable within `timeout` seconds; None waits forever."""
    from multiprocessing import connection

    return connection.wait(sentinels, None if timeout is not None and timeout > LONGEST_WAIT_S else timeout)


_made: weakref.WeakSet[RankProcess] = weakref.WeakSet()


def living() -> list[RankProcess]:
    """Return the processes that this process has started by `spawn` and that have not ended."""
    return [process for process in _made if process.is_ours and process.is_alive()]


class RankProcess:
    """A process of `spawn`, in place of a `multiprocessing.Process`. Its Supervisor starts and reaps it.

    The gang's loop sets its end once; any thread may wait for that.
    """

    def __init__(self, local_rank: int, *, name: str, daemon: bool) -> None:
        """Describe a process that will be started.

        Args:
            local_rank: Its index.
            name: Its name, which is the same inside the process.
            daemon: Whether this interpreter ends it at its exit instead of waiting for it.

        Raises:
            OSError: No descriptor is available.
        """
        self._local_rank = local_rank
        self.name = name
        self._daemon = daemon
        self.was_interrupted = False
        """Whether `interrupt_all` was called."""
        self._host_pid = os.getpid()
        self._wake_fd = WakeFd()
        self.sentinel: int = self._wake_fd.fileno()
        """A descriptor that becomes readable when the process has ended and `exitcode` is known."""
        self.exitcode: int | None = None
        """0 to 255, ``-N`` when killed by signal N, None while it runs."""
        self.trace: str | None = None
        """The traceback of the exception that its function raised; None if it raised none."""
        self.complaint: str | None = None
        """A failure that the exit code does not show: its status was lost, or its Supervisor crashed."""
        self.failed_ns: int | None = None
        """Monotonic ns of its failure: when an exception left its function, or else when its death was noticed."""
        _made.add(self)
        weakref.finalize(self, self._wake_fd.close).atexit = False  # the loop may still call `settle` at the exit

    def started(self, pid: int, gang: pykka.ActorRef[Any]) -> None:
        """Record the pid and the Supervisor of the process."""
        self._pid, self._gang = pid, gang

    def settle(self, exitcode: int, *, failed_ns: int, trace: str | None = None, complaint: str | None = None) -> None:
        """Set the end of the process. Later calls have no effect."""
        if self.exitcode is None:
            self.failed_ns, self.trace, self.complaint = failed_ns if exitcode else None, trace, complaint
            self.exitcode = exitcode
            self._wake_fd.set()

    @property
    def is_ours(self) -> bool:
        """Whether the caller is in the process that has started this one."""
        return self._host_pid == os.getpid() and hasattr(self, "_pid")

    @property
    def pid(self) -> int:
        """Its pid, also after its end."""
        return self._pid

    ident = pid

    @property
    def daemon(self) -> bool:
        """Whether this interpreter ends it at its exit instead of waiting for it."""
        return self._daemon

    def is_alive(self) -> bool:
        """Whether the process has not been reaped."""
        return self.exitcode is None

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended or the timeout has expired; `exitcode` shows which.

        Args:
            timeout: Seconds; None waits forever.

        Raises:
            AssertionError: The caller is in a forked child of the process that started it.
        """
        self.check_host()
        if self.exitcode is None:
            try:
                wait_for_any([self.sentinel], timeout)
            except KeyboardInterrupt:  # Ctrl-C does not reach the processes, which have their own sessions
                self.interrupt_all()
                raise

    def check_host(self) -> None:
        """Raise unless the caller is in the process that started this one. The error has the text of `multiprocessing`.

        Raises:
            AssertionError: The caller is in another process.
        """
        if self._host_pid != os.getpid():
            raise AssertionError("can only join a child process")

    def terminate(self) -> None:
        """Send SIGTERM to its process group; no effect after its end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to its process group; no effect after its end."""
        self._signal(signal.SIGKILL)

    def interrupt_all(self) -> None:
        """Send SIGINT to the process groups of all processes that were started with it, after Ctrl-C."""
        self.was_interrupted = True
        self._ask_for(signal.SIGINT, None)

    def close(self) -> None:
        """Check that the process has ended, as `multiprocessing.Process.close` does first. No other effect.

        Raises:
            ValueError: The process still runs.
        """
        if self.is_alive():
            raise ValueError(
                "Cannot close a process while it is still running. You should first call join() or terminate()."
            )

    def _signal(self, sig: signal.Signals) -> None:
        """Send a signal to its process group through its Supervisor; no effect after its end."""
        if self.is_alive():
            self._ask_for(sig, frozenset({self._local_rank}))

    def _ask_for(self, sig: signal.Signals, ranks: frozenset[int] | None) -> None:
        import pykka

        from supervise.messages import Signal

        with contextlib.suppress(pykka.ActorDeadError, pykka.Timeout):  # the gang has ended, and this process with it
            self._gang.ask(Signal(sig=sig, ranks=ranks, group=True), timeout=_PROMPT_S)

    def __repr__(self) -> str:
        """Return the same text as `multiprocessing.Process`."""
        state = "started" if self.is_alive() else "stopped"
        code = "" if self.exitcode is None else f" exitcode={self.exitcode}"
        daemon = " daemon" if self.daemon else ""
        return (
            f"<{type(self).__name__} name={self.name!r} pid={self.pid} parent={self._host_pid} {state}{code}{daemon}>"
        )
