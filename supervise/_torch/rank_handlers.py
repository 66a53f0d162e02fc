"""The view of a gang's ranks as PyTorch's ``SubprocessHandler`` objects. The gang still reaps its ranks."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING, Any

from supervise._runtime.future import Reply
from supervise.messages import WorkerExited

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_LOST = 255
"""The exit code in place of a lost exit status, so that the lost status does not look like success."""


class RankProcess:
    """A rank's process with the usual surface of `subprocess.Popen`. Only its gang reaps it."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int, args: list[str], send: Callable[[signal.Signals], object]) -> None:
        """Store the arguments; only `RankHandlers` calls this."""
        self.pid = pid
        self.args = args
        self._send = send
        self._exit: Reply[int] = Reply()

    @property
    def returncode(self) -> int | None:
        """The exit code, ``-N`` for signal N; None while the process runs. It is known without a call of `poll`."""
        return self.poll()

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""
        return self._exit.get(timeout=0) if self._exit.done() else None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process; return the exit code.

        Raises:
            subprocess.TimeoutExpired: The process still runs after `timeout` seconds.
        """
        import pykka

        try:
            return self._exit.get(timeout=timeout)
        except pykka.Timeout:
            raise subprocess.TimeoutExpired(self.args, timeout or 0) from None

    def send_signal(self, sig: signal.Signals) -> None:
        """Send a signal to the rank's process group, unless it has ended."""
        if self.poll() is None:
            self._send(signal.Signals(sig))

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def ended(self, code: int | None) -> None:
        """Note the end, once."""
        if not self._exit.done():
            self._exit.set(_LOST if code is None else code)


class RankHandler:
    """One value of ``SubprocessContext.subprocess_handlers``."""

    def __init__(self, local_rank_id: int, proc: RankProcess) -> None:
        """Store the arguments; only `RankHandlers` calls this."""
        self.local_rank_id = local_rank_id
        self.proc = proc

    def close(self, death_sig: signal.Signals | None = None) -> None:
        """Send a signal, SIGTERM by default, to the rank's process group. Does not wait."""
        self.proc.send_signal(death_sig or signal.SIGTERM)


class RankHandlers:
    """The handlers of all ranks of a gang, updated by its lifecycle messages."""

    actor_urn = "supervise-rank-handlers"

    def __init__(
        self,
        pids: Mapping[int, int],
        commands: Mapping[int, list[str]],
        send: Callable[[signal.Signals, int], object],
    ) -> None:
        """Make a handler for each started rank.

        Args:
            pids: Local rank to pid.
            commands: Local rank to the program and its arguments.
            send: Sends a signal to the group of a rank.
        """
        self.by_rank = {
            rank: RankHandler(rank, RankProcess(pid, commands[rank], _to(send, rank))) for rank, pid in pids.items()
        }

    def tell(self, message: Any) -> None:
        """Receive a lifecycle message, on the gang's loop."""
        if isinstance(message, WorkerExited) and message.local_rank in self.by_rank:
            self.by_rank[message.local_rank].proc.ended(message.exitcode)


def _to(send: Callable[[signal.Signals, int], object], rank: int) -> Callable[[signal.Signals], object]:
    return lambda sig: send(sig, rank)
