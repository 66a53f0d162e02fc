"""Handlers of PyTorch's `PContext`: those that user code gives, and those that stand for ranks."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from signal import SIGKILL, Signals
from typing import TYPE_CHECKING, Any

from supervise._api.signals import protected
from supervise._printable import LOST_CODE
from supervise._runtime.future import Reply
from supervise._torch import subprocess_handler as ours
from supervise.events import log
from supervise.result import ProcessFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


# Programs started by a client's replacement of `SubprocessHandler`. PyTorch's contexts permit such a replacement


_API = "supervise.elastic.api"
_HANDLERS = "supervise.elastic.subprocess_handler.handlers"


def factory() -> Callable[..., Any] | None:
    """Return a client's replacement of supervise's handler; None if there is none.

    The same replacements as in PyTorch have an effect: ``api.get_subprocess_handler``, the class in
    ``subprocess_handler``, and the methods of the class.
    """
    get: Callable[..., Any] = _name(_API, "get_subprocess_handler", ours.get_subprocess_handler)
    if get is not ours.get_subprocess_handler:
        return get
    cls: Callable[..., Any] = _name(_HANDLERS, "SubprocessHandler", ours.SubprocessHandler)
    if cls is not ours.SubprocessHandler:
        return cls
    own = (getattr(getattr(cls, name), "__module__", None) for name in ("__init__", "_popen", "close"))
    return get if set(own) != {ours.__name__} else None


def _name(module: str, name: str, default: Any) -> Any:
    return vars(sys.modules[module]).get(name, default) if module in sys.modules else default


class ForeignHandlers:
    """The handlers of a gang and the ends of its ranks."""

    def __init__(self, by_rank: Mapping[int, Any], error_files: Mapping[int, str]) -> None:
        """Take handlers; the caller may add more to the mapping.

        Args:
            by_rank: Local rank to handler.
            error_files: Local rank to the path of its error file.
        """
        self.by_rank = by_rank
        self._error_files = error_files
        self._ended: set[int] = set()
        self._closed = False
        self.cut_short = False
        """Whether the handlers were closed before all ranks had ended or one had failed."""
        self.failures: dict[int, ProcessFailure] = {}
        """The causes. If the gang was cut short: the failures of all ranks that did not exit with code 0."""

    def look(self) -> bool:
        """Poll the ranks and record their ends; return whether all have ended."""
        for rank, handler in self.by_rank.items():
            code = None if rank in self._ended else handler.proc.poll()
            if code is None:
                continue
            self._ended.add(rank)
            if code and (self.cut_short or not self._closed):
                pid = handler.proc.pid
                log.error("rank %s (pid %s) failed with exit code %s", rank, pid, code)
                self.failures[rank] = ProcessFailure(rank, pid, code, self._error_files.get(rank, ""))
        return len(self._ended) == len(self.by_rank)

    @protected
    def close(self, death_sig: Signals, timeout: float) -> None:
        """End all ranks by their handlers, after `timeout` seconds by SIGKILL; return when they are reaped.

        Raises:
            UnkillableError: Some processes survived SIGKILL.
        """
        self.cut_short = self.cut_short or not (self.look() or self.failures)
        self._closed = True
        self._signal(death_sig)
        self._await(timeout)
        self._signal(SIGKILL)
        self._await(_KILL_WAIT_S)
        if stuck := {rank: handler.proc.pid for rank, handler in self._running().items()}:
            from supervise.errors import UnkillableError

            raise UnkillableError(stuck, {})

    def _running(self) -> dict[int, Any]:
        return {rank: handler for rank, handler in self.by_rank.items() if handler.proc.poll() is None}

    def _signal(self, sig: Signals) -> None:
        for handler in self._running().values():
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                handler.close(death_sig=sig)

    def _await(self, timeout: float) -> None:
        deadline_s = time.monotonic() + timeout
        for handler in self._running().values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                handler.proc.wait(max(0.0, deadline_s - time.monotonic()))


_KILL_WAIT_S = 5.0
"""How long killed processes may take to end."""


# The view of a gang's ranks as PyTorch's ``SubprocessHandler`` objects. The gang still reaps its ranks


class RankProcess:
    """A rank's process with the usual surface of `subprocess.Popen`. Only its gang reaps it."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int, args: list[str], send: Callable[[signal.Signals, bool], object]) -> None:
        """Store the arguments; only a context calls this."""
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
        """Send a signal to the process, unless it has ended."""
        if self.poll() is None:
            self._send(signal.Signals(sig), False)

    def signal_group(self, sig: signal.Signals) -> None:
        """Send a signal to the rank's process group, unless its process has ended."""
        if self.poll() is None:
            self._send(signal.Signals(sig), True)

    def terminate(self) -> None:
        """Send SIGTERM to the rank's process group."""
        self.signal_group(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the rank's process group."""
        self.signal_group(signal.SIGKILL)

    def ended(self, code: int | None) -> None:
        """Note the end, once."""
        if not self._exit.done():
            self._exit.set(LOST_CODE if code is None else code)  # a lost status must not look like success


class RankHandler:
    """One value of ``SubprocessContext.subprocess_handlers``."""

    def __init__(self, local_rank_id: int, proc: RankProcess) -> None:
        """Store the arguments; only a context calls this."""
        self.local_rank_id = local_rank_id
        self.proc = proc

    def close(self, death_sig: signal.Signals | None = None) -> None:
        """Send a signal, SIGTERM by default, to the rank's process group. Does not wait."""
        self.proc.signal_group(death_sig or signal.SIGTERM)
