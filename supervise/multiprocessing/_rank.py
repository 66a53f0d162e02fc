"""One process of `spawn`, with the surface of `multiprocessing.Process`."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import weakref
from typing import TYPE_CHECKING, Any

from supervise._runtime.wakeup import WakeFd

if TYPE_CHECKING:
    import pykka

_PROMPT_S = 5.0
"""What the gang answers at once, it answers within this; longer means that it is dead."""


LONGEST_WAIT_S = 2_000_000.0
"""23 days: poll() takes no more milliseconds. A longer timeout is no limit."""


def wait_for_any(sentinels: list[int], timeout: float | None) -> list[Any]:
    """Return the `sentinels` that become readable within `timeout` seconds; None: no limit."""
    from multiprocessing import connection

    return connection.wait(sentinels, None if timeout is not None and timeout > LONGEST_WAIT_S else timeout)


class ExitSlot:
    """How one process ends: written once, on the gang's loop; anybody may wait for it."""

    def __init__(self) -> None:
        """Make one that is open.

        Raises:
            OSError: There are no more descriptors.
        """
        self._wake_fd = WakeFd()
        self.sentinel = self._wake_fd.fileno()
        self.exitcode: int | None = None
        """0 to 255, ``-N`` for signal N; None while it runs."""
        self.trace: str | None = None
        """Of the exception that its function raised."""
        self.complaint: str | None = None
        """What the exit code does not say."""
        self.failed_ns: int | None = None
        """Monotonic, when it failed: when its exception was caught, or else when its death was noticed."""
        weakref.finalize(self, self._wake_fd.close).atexit = False  # the loop may still settle it then

    def settle(self, exitcode: int, *, failed_ns: int, trace: str | None = None, complaint: str | None = None) -> None:
        """It has ended so; the first word counts."""
        if self.exitcode is None:
            self.failed_ns, self.trace, self.complaint = failed_ns, trace, complaint
            self.exitcode = exitcode
            self._wake_fd.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end; tell whether it has come.

        Args:
            timeout: Seconds; None waits for ever.
        """
        if self.exitcode is None:
            wait_for_any([self.sentinel], timeout)
        return self.exitcode is not None


class RankProcess:
    """A process of `spawn`, in place of a `multiprocessing.Process`. Its supervisor starts and reaps it."""

    def __init__(
        self, *, local_rank: int, pid: int, name: str, daemon: bool, fate: ExitSlot, gang: pykka.ActorRef[Any]
    ) -> None:
        """Describe a process that was started.

        Args:
            local_rank: Its index.
            pid: Its number.
            name: What it is called in itself, too.
            daemon: Whether it is ended, not waited for, when this interpreter exits.
            fate: How it ends.
            gang: Its supervisor.
        """
        self._local_rank = local_rank
        self._pid = pid
        self.name = name
        self._daemon = daemon
        self._fate = fate
        self._gang = gang
        self._host_pid = os.getpid()

    @property
    def pid(self) -> int:
        """Its number, also after its end."""
        return self._pid

    ident = pid

    @property
    def daemon(self) -> bool:
        """Whether it is ended, not waited for, when this interpreter exits."""
        return self._daemon

    @property
    def sentinel(self) -> int:
        """A descriptor that becomes readable when the process has ended and `exitcode` is known."""
        return self._fate.sentinel

    @property
    def exitcode(self) -> int | None:
        """0 to 255, ``-N`` when killed by signal N, None while it runs."""
        return self._fate.exitcode

    @property
    def trace(self) -> str | None:
        """The traceback of what its function raised, None where it raised nothing."""
        return self._fate.trace

    @property
    def complaint(self) -> str | None:
        """What the exit code does not say: its status was lost, or its supervisor crashed."""
        return self._fate.complaint

    @property
    def failed_ns(self) -> int | None:
        """When it failed (monotonic): when the exception was caught, or else when its death was noticed."""
        return self._fate.failed_ns if self._fate.exitcode else None

    def is_alive(self) -> bool:
        """Whether it has not been reaped yet."""
        return self._fate.exitcode is None

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended; look at `exitcode` to see whether it has.

        Args:
            timeout: Seconds; None waits for ever.

        Raises:
            AssertionError: This process was forked from the one that started it, where its end is told.
        """
        self.check_host()
        self._fate.wait(timeout)

    def check_host(self) -> None:
        """Refuse what only the process can do that has started this one (`multiprocessing`'s words).

        Raises:
            AssertionError: This is another process.
        """
        if self._host_pid != os.getpid():
            raise AssertionError("can only join a child process")

    def terminate(self) -> None:
        """Send SIGTERM to its process group; nothing if it has ended."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to its process group; nothing if it has ended."""
        self._signal(signal.SIGKILL)

    def interrupt(self) -> None:
        """Send SIGINT to its process group; nothing if it has ended."""
        self._signal(signal.SIGINT)

    def close(self) -> None:
        """Do nothing but check, as `multiprocessing.Process.close` does first.

        Raises:
            ValueError: It runs.
        """
        if self.is_alive():
            raise ValueError(
                "Cannot close a process while it is still running. You should first call join() or terminate()."
            )

    def _signal(self, sig: signal.Signals) -> None:
        if not self.is_alive():
            return
        import pykka

        from supervise.messages import Signal

        with contextlib.suppress(pykka.ActorDeadError, pykka.Timeout):  # they took the process with them
            self._gang.ask(Signal(sig=sig, ranks=frozenset({self._local_rank})), timeout=_PROMPT_S)

    def __repr__(self) -> str:
        """Say what `multiprocessing.Process` says."""
        state = "started" if self.is_alive() else "stopped"
        code = "" if self.exitcode is None else f" exitcode={self.exitcode}"
        daemon = " daemon" if self.daemon else ""
        return (
            f"<{type(self).__name__} name={self.name!r} pid={self.pid} parent={self._host_pid} {state}{code}{daemon}>"
        )


def now_ns() -> int:
    """Return the time that `RankProcess.failed_ns` is told in."""
    return time.monotonic_ns()
