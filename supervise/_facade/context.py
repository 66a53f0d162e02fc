"""`MultiprocessContext` and `SubprocessContext`: what `start_processes` returns."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any, cast

import pykka

from supervise import messages as ask
from supervise._facade.gang import PROMPT_S
from supervise._facade.polled import PolledContext

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Mapping, Sequence

    from supervise._actors.gang import GangActor
    from supervise.logs import LogsSpecs
    from supervise.result import ProcessFailure

log = logging.getLogger("supervise")


class MultiprocessContext(PolledContext):
    """A gang whose ranks call a function."""

    def __init__(  # noqa: PLR0917 - PyTorch's order
        self,
        name: str,
        entrypoint: Callable[..., Any],
        args: Mapping[int, Any],
        envs: Mapping[int, dict[str, Any]] | None,
        start_method: str = "spawn",
        logs_specs: LogsSpecs | None = None,
        log_line_prefixes: Mapping[int, str] | None = None,
        numa_options: Any = None,
        duplicate_stdout_filters: Sequence[str] | None = None,
        duplicate_stderr_filters: Sequence[str] | None = None,
        **ours: Any,
    ) -> None:
        """Prepare as `start_processes` does, with the arguments in PyTorch's order."""
        self.start_method = start_method
        super().__init__(
            name,
            entrypoint,
            args,
            envs,
            logs_specs,
            log_line_prefixes,
            start_method=start_method,
            numa_options=numa_options,
            duplicate_stdout_filters=duplicate_stdout_filters,
            duplicate_stderr_filters=duplicate_stderr_filters,
            **ours,
        )


class SubprocessContext(PolledContext):
    """A gang whose ranks run a program."""

    def __init__(  # noqa: PLR0917 - PyTorch's order
        self,
        name: str,
        entrypoint: str,
        args: Mapping[int, Any],
        envs: Mapping[int, dict[str, Any]] | None,
        logs_specs: LogsSpecs | None = None,
        log_line_prefixes: Mapping[int, str] | None = None,
        numa_options: Any = None,
        duplicate_stdout_filters: Sequence[str] | None = None,
        duplicate_stderr_filters: Sequence[str] | None = None,
        **ours: Any,
    ) -> None:
        """Prepare as `start_processes` does, with the arguments in PyTorch's order."""
        super().__init__(
            name,
            entrypoint,
            args,
            envs,
            logs_specs,
            log_line_prefixes,
            numa_options=numa_options,
            duplicate_stdout_filters=duplicate_stdout_filters,
            duplicate_stderr_filters=duplicate_stderr_filters,
            **ours,
        )
        self._handlers: Mapping[int, Any] = {}
        self._running_local_ranks = set(range(self.nprocs))  # for subclasses that keep PyTorch's books
        self._failures: dict[int, ProcessFailure] = {}

    @property
    def subprocess_handlers(self) -> Mapping[int, Any]:
        """Local rank to handler, whose ``proc`` has what is used of a `Popen`; empty before the start."""
        if not self._handlers and self._supervisor is not None:
            self._handlers = self._make_handlers(self._supervisor)
        return self._handlers

    @subprocess_handlers.setter
    def subprocess_handlers(self, handlers: Mapping[int, Any]) -> None:
        self._handlers = handlers

    def _make_handlers(self, supervisor: pykka.ActorRef[GangActor]) -> Mapping[int, Any]:
        from supervise._facade.rank_handlers import RankHandlers

        def send(sig: signal.Signals, rank: int) -> None:
            with contextlib.suppress(pykka.ActorDeadError):
                supervisor.tell(ask.Signal(sig=sig, ranks=frozenset([rank])))

        commands = {rank: [self._plan.what, *map(str, args)] for rank, args in self._plan.args.items()}
        handlers = RankHandlers(self._pids, commands, send)
        try:
            told = supervisor.ask(ask.Subscribe(ref=cast("Any", handlers)), block=False)
            told.get(timeout=PROMPT_S)
        except (pykka.ActorDeadError, pykka.Timeout):
            log.debug("the supervisor of %s has ended", self.name)
        if self._result is not None:
            for rank, end in self._result.ends.items():
                handlers.by_rank[rank].proc.ended(end.exitcode)
        return handlers.by_rank
