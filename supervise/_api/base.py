"""`PContext`: the base of all contexts, those of supervise and subclasses that start processes themselves."""

from __future__ import annotations

import abc
import signal
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Literal, Self, TextIO, overload

from supervise._api import signals
from supervise.errors import SignalException
from supervise.logs import LogsSpecs, validate_full_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from supervise._api.tail_log import TailLog
    from supervise.destinations import LogsDest
    from supervise.messages import GangStatus
    from supervise.result import RunProcsResult


class LogOfGang:
    """Stand-in for a `TailLog` in ``PContext._tail_logs`` of a gang of supervise, which shows its logs itself."""

    _stopped = False

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Note that the gang was closed."""
        self._stopped = True

    def stopped(self) -> bool:
        """Return whether the gang was closed."""
        return self._stopped


class PContext(abc.ABC):
    """A gang: `start` it, `wait` for its result, `close` it. Every mapping is keyed by local rank.

    `start_processes` returns a `MultiprocessContext` or a `SubprocessContext`. A direct subclass starts its
    processes itself: it implements `_start`, `_poll`, `pids` and `_close`, and inherits the logs, the signal
    handlers and the waits.
    """

    name: str
    """Beginning of the prefix of every shown line, ``[<name><rank>]:``."""
    entrypoint: Callable[..., Any] | str
    """The function, or the program."""
    args: Mapping[int, Any]
    """Local rank to arguments, as the caller gave them."""
    envs: Mapping[int, dict[str, Any]]
    """Local rank to the variables added to the environment."""
    nprocs: int
    """Number of ranks."""
    stdouts: dict[int, str]
    """Local rank to path; ``""`` if not redirected."""
    stderrs: dict[int, str]
    """Local rank to path; ``""`` if not redirected."""
    error_files: dict[int, str]
    """Local rank to path; the file exists if the rank recorded an exception."""
    filtered_stdout: TextIO | None = None
    """The file of the shown stdout lines that pass the filters, open until the end; None without filters."""
    filtered_stderr: TextIO | None = None
    """The same for stderr."""
    _tail_logs: Sequence[LogOfGang | TailLog] = ()
    _handlers_held: weakref.finalize[Any, Any] | None = None

    def __init__(  # noqa: PLR0917 - PyTorch's order
        self,
        name: str,
        entrypoint: Callable[..., Any] | str,
        args: Mapping[int, Any],
        envs: dict[int, dict[str, Any]],
        logs_specs: LogsSpecs,
        log_line_prefixes: Mapping[int, str] | None = None,
        duplicate_stdout_filters: Sequence[str] | None = None,
        duplicate_stderr_filters: Sequence[str] | None = None,
    ) -> None:
        """Determine the paths of the logs, without starting anything.

        Args:
            name: Name of the gang.
            entrypoint: A function that every rank calls, or the name or path of a program.
            args: Local rank, ``0 .. n-1``, to its arguments.
            envs: Local rank to variables added to the environment; ``TORCHELASTIC_ERROR_FILE`` is set in each.
            logs_specs: Where each rank's output goes.
            log_line_prefixes: Local rank to the prefix of its shown lines.
            duplicate_stdout_filters: Shown stdout lines that contain any of these are also written to a file.
            duplicate_stderr_filters: The same for stderr.

        Raises:
            SpecError: A rank is missing.
            OSError: The log folder cannot be used.
        """
        dest = logs_specs.reify(envs)
        self._describe(name, entrypoint, args, envs, dest)
        self._follow(dest, log_line_prefixes, duplicate_stdout_filters, duplicate_stderr_filters)

    def _describe(
        self,
        name: str,
        entrypoint: Callable[..., Any] | str,
        args: Mapping[int, Any],
        envs: Mapping[int, dict[str, Any]],
        dest: LogsDest,
    ) -> None:
        """Set the attributes of every gang."""
        validate_full_rank(dest.stdouts, len(args), "stdouts")
        validate_full_rank(dest.stderrs, len(args), "stderrs")
        self.name, self.entrypoint, self.args, self.envs = name, entrypoint, args, envs
        self.nprocs = len(args)
        self.stdouts, self.stderrs, self.error_files = dest.stdouts, dest.stderrs, dest.error_files

    def _follow(
        self,
        dest: LogsDest,
        prefixes: Mapping[int, str] | None,
        out_filters: Sequence[str] | None,
        err_filters: Sequence[str] | None,
    ) -> None:
        """Set `_tail_logs` to new objects for a subclass's files. They show nothing before their `start`."""
        from supervise._api.tail_log import TailLog  # lazy: most gangs are of supervise

        tails = [
            TailLog(self.name, dest.tee_stdouts, sys.stdout, prefixes),
            TailLog(self.name, dest.tee_stderrs, sys.stderr, prefixes),
        ]
        for name, shown, filters in (
            ("filtered_stdout", dest.tee_stdouts, out_filters),
            ("filtered_stderr", dest.tee_stderrs, err_filters),
        ):
            if filters:
                file = open(getattr(dest, name), "w", encoding="utf-8", errors="replace", buffering=1)  # noqa: SIM115
                setattr(self, name, file)
                tails.append(TailLog(self.name, shown, file, prefixes, log_line_filter=_any_of(filters)))
        self._tail_logs = tails

    def start(self) -> None:
        """Start every rank and show the logs.

        On the main thread, install handlers for termination signals; they raise `SignalException`.
        """
        self._hold_signals()
        signals.deliver()
        self._start()
        for tail in self._tail_logs:
            tail.start()

    @abc.abstractmethod
    def _start(self) -> None:
        """Start the processes."""

    @abc.abstractmethod
    def _poll(self) -> RunProcsResult | None:
        """Return the result if all ranks have succeeded or any has failed; None otherwise."""

    @overload
    def wait(self, timeout: Literal[-1] = -1, period: float = 1) -> RunProcsResult: ...
    @overload
    def wait(self, timeout: float, period: float = 1) -> RunProcsResult | None: ...
    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:
        """Wait for the result; return it, or None if there is none within `timeout` seconds.

        After a result, `close` is optional.

        Args:
            timeout: Seconds; negative waits forever, 0 returns at once.
            period: Seconds between two polls. A gang is polled only if its class starts the processes itself, or
                replaces `_poll` or `close`.

        Raises:
            SignalException: A termination signal arrived. The ranks continue; pass its `sigval` to `close`.
            RuntimeError: The caller is on the gang's own thread (a listener of its events), or waits without a limit
                for a gang that was not started.
            pykka.ActorDeadError: This process was forked from the one that supervises the gang.
        """
        return self._wait_for_result(timeout, period)

    def _wait_for_result(self, timeout: float, period: float) -> RunProcsResult | None:
        """Poll until there is a result. Subclasses that are notified of the end of the ranks do not poll."""
        until = None if timeout < 0 else time.monotonic() + timeout
        pause = threading.Event()
        while True:
            result = self._poll()
            left = None if until is None else until - time.monotonic()
            if result is not None or (left is not None and left <= 0):
                return result
            pause.wait(period if left is None else min(period, left))

    @abc.abstractmethod
    def pids(self) -> dict[int, int]:
        """Return ``{rank: pid}``."""

    def status(self) -> GangStatus | None:
        """Return the phase of the gang and the state of each rank; None if a direct subclass does not know them."""
        return None

    @abc.abstractmethod
    def _close(self, death_sig: signal.Signals, timeout: int = 30) -> None:
        """End the processes with `death_sig`, and after `timeout` seconds with SIGKILL; return when they are reaped."""

    def close(self, death_sig: signal.Signals | None = None, timeout: int = 30) -> None:
        """End every rank and show the remaining output. Idempotent.

        Args:
            death_sig: The first signal; None for SIGTERM.
            timeout: Seconds until SIGKILL.
        """
        try:
            self._close(death_sig=death_sig or signal.SIGTERM, timeout=timeout)
        finally:
            self._end_logs()
            self._release()

    def _replaced(self, name: str) -> bool:
        """Whether a subclass or a monkeypatch has replaced a method of supervise."""
        module = getattr(getattr(getattr(self, name), "__func__", None), "__module__", "")
        return not module.startswith(("supervise._api.", "supervise._torch."))

    def __enter__(self) -> Self:
        """Return the gang; the end of the block closes it."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Close the gang. If a `SignalException` ends the block, its signal is the first signal."""
        self.close(error.sigval if isinstance(error, SignalException) else None)

    def _end_logs(self) -> None:
        for tail in self._tail_logs:
            tail.stop()
        for file in (self.filtered_stdout, self.filtered_stderr):
            if file is not None:
                file.close()

    @signals.protected
    def _hold_signals(self) -> None:
        """Hold the signal handlers until `_release` or until this context is garbage-collected. Idempotent."""
        if self._handlers_held is None:
            self._handlers_held = weakref.finalize(self, signals.let_go, signals.hold())

    def _release(self) -> None:
        """Release the signal handlers."""
        if self._handlers_held is not None:
            self._handlers_held()


def _any_of(needles: Sequence[str]) -> Callable[[str], bool]:
    return lambda line: any(needle in line for needle in needles)
