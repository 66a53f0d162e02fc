"""`PContext`: what is common to every gang, ours and those that a user's subclass starts in its own way."""

from __future__ import annotations

import abc
import signal
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Protocol, Self

from supervise._api import signals
from supervise.logs import validate_full_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import TextIO

    from supervise.destinations import LogsDest
    from supervise.logs import LogsSpecs
    from supervise.result import RunProcsResult


class ShownLog(Protocol):
    """One item of ``PContext._tail_logs``."""

    def start(self) -> object:
        """Begin to show."""

    def stop(self) -> None:
        """Show what is left, and end."""

    def stopped(self) -> bool:
        """Whether it has ended."""


class PContext(abc.ABC):
    """A gang: `start` it, `wait` for its result, `close` it. Every mapping is keyed by local rank.

    `MultiprocessContext` and `SubprocessContext` are what `start_processes` returns. A subclass of this
    class starts its processes itself: it has `_start`, `_poll`, `pids` and `_close`, and gets the logs, the
    signals and the waiting from here.
    """

    name: str
    """Stands before every shown line, as ``[<name><rank>]:``."""
    entrypoint: Callable[..., Any] | str
    """The function, or the program."""
    args: Mapping[int, Any]
    """Local rank to arguments, as they were given."""
    envs: Mapping[int, dict[str, Any]]
    """Local rank to what is added to the environment."""
    nprocs: int
    """How many ranks."""
    stdouts: dict[int, str]
    """Local rank to path; ``""`` where it is not redirected."""
    stderrs: dict[int, str]
    """Local rank to path; ``""`` where it is not redirected."""
    error_files: dict[int, str]
    """Local rank to path; the file is there if the rank recorded an exception."""
    filtered_stdout: TextIO | None = None
    """Where a subclass's filtered lines go while it is open; our own gangs write that file themselves."""
    filtered_stderr: TextIO | None = None
    """The same of stderr."""
    _tail_logs: Sequence[ShownLog] = ()
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
        """Find out where the logs go, without starting anything.

        Args:
            name: Of the gang.
            entrypoint: A function that every rank calls, or the name or path of a program.
            args: Local rank, ``0 .. n-1``, to its arguments.
            envs: Local rank to what is added to the environment; ``TORCHELASTIC_ERROR_FILE`` is set in each.
            logs_specs: Where each rank's output goes.
            log_line_prefixes: Local rank to what stands before its shown lines.
            duplicate_stdout_filters: Lines of shown stdouts that hold any of these also go to a file.
            duplicate_stderr_filters: The same of stderr.

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
        """Set what can be asked of every gang."""
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
        """Set `_tail_logs` to what shows the files of a subclass; nothing is shown before its `start`."""
        import sys

        from supervise._api.tail_log import TailLog

        tails = [
            TailLog(self.name, dest.tee_stdouts, sys.stdout, prefixes),
            TailLog(self.name, dest.tee_stderrs, sys.stderr, prefixes),
        ]
        if out_filters:
            self.filtered_stdout = _filtered(dest.filtered_stdout)
            keep = _any_of(out_filters)
            tails.append(TailLog(self.name, dest.tee_stdouts, self.filtered_stdout, prefixes, log_line_filter=keep))
        if err_filters:
            self.filtered_stderr = _filtered(dest.filtered_stderr)
            keep = _any_of(err_filters)
            tails.append(TailLog(self.name, dest.tee_stderrs, self.filtered_stderr, prefixes, log_line_filter=keep))
        self._tail_logs = tails

    def start(self) -> None:
        """Start every rank, and show the logs.

        Installs handlers for termination signals if this is the main thread; they raise `SignalException`.
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
        """Return the result if there is one now: all ranks have succeeded, or any has failed."""

    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:
        """Wait for the result; return it, or None if there is none within `timeout` seconds.

        Args:
            timeout: Seconds; negative waits for ever, 0 asks what is the case now.
            period: Seconds between two polls: nobody tells us of the end of a subclass's processes.

        Raises:
            SignalException: A termination signal came. The ranks run on: pass it to `close`.
        """
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

    @abc.abstractmethod
    def _close(self, death_sig: signal.Signals, timeout: int = 30) -> None:
        """End the processes: by `death_sig`, after `timeout` seconds by SIGKILL; return when they are reaped."""

    def close(self, death_sig: signal.Signals | None = None, timeout: int = 30) -> None:
        """End every rank and show the logs to their end. Again: harmless.

        Args:
            death_sig: The polite signal; None is SIGTERM.
            timeout: Seconds until SIGKILL.
        """
        try:
            self._close(death_sig=death_sig or signal.SIGTERM, timeout=timeout)
        finally:
            self._end_logs()
            self._release()

    def _replaced(self, name: str) -> bool:
        """Whether a subclass, or a patch at run time, has put another method in place of ours."""
        module = getattr(getattr(getattr(self, name), "__func__", None), "__module__", "")
        return not module.startswith(("supervise._api.", "supervise._torch."))

    def __enter__(self) -> Self:
        """Return the gang: the block's end closes it."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Close the gang; by the signal, where that is why the block ends."""
        from supervise.errors import SignalException

        self.close(error.sigval if isinstance(error, SignalException) else None)

    def _end_logs(self) -> None:
        for tail in self._tail_logs:
            tail.stop()
        for file in (self.filtered_stdout, self.filtered_stderr):
            if file is not None:
                file.close()

    @signals.protected
    def _hold_signals(self) -> None:
        """Hold the signal handlers, once, until `_release`, or until nobody holds this context any more."""
        if self._handlers_held is None:
            self._handlers_held = weakref.finalize(self, signals.let_go, signals.hold())

    def _release(self) -> None:
        """Hold the signal handlers no longer."""
        if self._handlers_held is not None:
            self._handlers_held()


def _filtered(path: str) -> TextIO:
    return open(path, "w", encoding="utf-8", errors="replace", buffering=1)


def _any_of(needles: Sequence[str]) -> Callable[[str], bool]:
    return lambda line: any(needle in line for needle in needles)
