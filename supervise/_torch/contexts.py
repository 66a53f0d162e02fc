"""`MultiprocessContext` and `SubprocessContext`, which `start_processes` returns."""

from __future__ import annotations

import contextlib
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pykka

from supervise import messages as ask
from supervise._api import signals
from supervise._api.base import PContext
from supervise._api.context import PROMPT_S, GangContext
from supervise._runtime.shell import CallbackSubscriber
from supervise.errors import SpecError
from supervise.events import log
from supervise.result import Outcome, ProcessFailure, RunProcsResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from supervise._gang.supervisor import Supervisor
    from supervise._torch.handlers import ForeignHandlers
    from supervise.logs import LogsSpecs


_WHERE_REPLACED = frozenset(
    f"supervise.{name}" for name in ("elastic.api", "elastic.subprocess_handler.handlers", "_torch.subprocess_handler")
)
"""Modules in which a client may have replaced `SubprocessHandler`. A module that is not loaded has no replacement."""


# A context for subclasses that replace `close`: `wait` calls the replacement, as `wait` of PyTorch does


class PolledContext(GangContext):
    """A gang in which an agent may let the healthy ranks live after a failure.

    PyTorch's `wait` calls ``self.close()`` when a rank has failed. An agent may make `close` do nothing, so that the
    healthy ranks of a program continue. The context knows only at the first `wait` whether the agent does so. Until
    then, a failed program does not stop the others in two kinds of gangs: those started by the function of PyTorch's
    import path, and those of subclasses that replace `close` or `_poll`. As with PyTorch, a failed function always
    stops the others.
    """

    def __init__(self, *, until_polled: bool = False, **settings: Any) -> None:
        """Prepare a gang as `GangContext` does.

        Args:
            until_polled: Whether a program's failure before the first `wait` has no effect until that `wait`.
            **settings: The arguments of `GangContext`.
        """
        super().__init__(**settings)
        self._until_polled = until_polled
        self._may_live_on = self._spec.of(0).kind == "binary" and self._spec.restart_policy is None
        self._stops_on_failure = True
        self._reported = False
        """Whether a failure was reported while other ranks continued."""

    def _start(self) -> None:
        """Start every rank and decide whether a failure stops the others."""
        self._stops_on_failure = not (self._may_live_on and (self._closed_by_others() or self._until_polled))
        self._attempt.spec = self._spec.replace(stop_on_failure=self._stops_on_failure)
        super()._start()

    def _wait_for_result(self, timeout: float, period: float) -> RunProcsResult | None:
        """Wait as `GangContext` does, but call a replaced `close` or `_poll` before a rank is signaled."""
        if self._closed_by_others():
            return PContext._wait_for_result(self, timeout, period)  # noqa: SLF001 - of a base class
        self._heed_failures()
        return super()._wait_for_result(timeout, period)

    def _poll(self) -> RunProcsResult | None:
        """Return the result, or None. If failures do not stop the others, return the failures so far."""
        if not self._closed_by_others():
            self._heed_failures()
            return super()._poll()
        may_have_failed = self._may_have_failed()
        result = super()._poll() or (self._so_far(stop_on_failure=False) if may_have_failed else None)
        if result is None:
            return None
        self._reported = True
        self.close()
        return super()._poll() or result

    def _may_have_failed(self) -> bool:
        """Whether to ask for failures."""
        return True

    def _closed_by_others(self) -> bool:
        """Whether the caller has replaced a method that ends the ranks, and so learns of their ends first."""
        return any(map(self._replaced, ("close", "_close", "_poll")))

    def _heed_failures(self) -> None:
        """Let the failure of a rank stop the others from now on."""
        if self._stops_on_failure:
            return
        if self._reported:  # the caller let the others live until now
            self.close()
        else:
            self._so_far(stop_on_failure=True)

    def _so_far(self, *, stop_on_failure: bool) -> RunProcsResult | None:
        """Return the failures while other ranks continue."""
        if not self._may_live_on:
            return None
        self._stops_on_failure = stop_on_failure
        try:
            return cast("RunProcsResult | None", self._ask_now(ask.SoFar(stop_on_failure=stop_on_failure)))
        finally:
            signals.deliver()


class MultiprocessContext(PolledContext):
    """A gang whose ranks call a function. As with PyTorch, it holds ranks that have returned (``hold_returned``)."""

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
        """Take the arguments of `start_processes` in PyTorch's order; start nothing."""
        self.start_method = start_method
        ours.setdefault("hold_returned", True)
        super().__init__(
            name=name,
            entrypoint=entrypoint,
            args=args,
            envs=envs,
            logs_specs=logs_specs,
            log_line_prefixes=log_line_prefixes,
            start_method=start_method,
            numa_options=numa_options,
            duplicate_stdout_filters=duplicate_stdout_filters,
            duplicate_stderr_filters=duplicate_stderr_filters,
            **ours,
        )

    def _is_done(self) -> bool:
        """Whether every rank has returned (PyTorch's name)."""
        return self._result is not None and len(self._result.return_values) == self.nprocs


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
        """Take the arguments of `start_processes` in PyTorch's order; start nothing."""
        super().__init__(
            name=name,
            entrypoint=entrypoint,
            args=args,
            envs=envs,
            logs_specs=logs_specs,
            log_line_prefixes=log_line_prefixes,
            numa_options=numa_options,
            duplicate_stdout_filters=duplicate_stdout_filters,
            duplicate_stderr_filters=duplicate_stderr_filters,
            **ours,
        )
        self._numa_options = numa_options
        self._own_settings = sorted(ours.keys() - {"grace", "until_polled"})
        self._foreign: ForeignHandlers | None = None
        """The handlers of ranks that a replaced `SubprocessHandler` has started."""
        self._handlers: Mapping[int, Any] = {}
        self._running_local_ranks = set(range(self.nprocs))  # for subclasses written for PyTorch
        self._failures: dict[int, ProcessFailure] = {}

    def _start(self) -> None:
        """Start every rank, by a replaced `SubprocessHandler` if there is one."""
        make = None
        if any(name in sys.modules for name in _WHERE_REPLACED):
            from supervise._torch import handlers as foreign_handlers  # lazy: it imports all that it could replace

            make = foreign_handlers.factory()
        if make is None:
            super()._start()
            return
        self._check_new()
        if self._own_settings:
            settings = ", ".join(self._own_settings)
            raise SpecError(
                f"{settings} is not supported with a replaced get_subprocess_handler, which starts the ranks itself"
            )
        self._begun = True
        self._hold_signals()
        signals.deliver()
        made: dict[int, Any] = {}
        self._handlers = made
        self._foreign = foreign_handlers.ForeignHandlers(made, self.error_files)
        try:
            for rank in range(self.nprocs):
                made[rank] = make(
                    entrypoint=self.entrypoint,
                    args=self._spec.args[rank],
                    env=self._attempt.envs[rank],
                    stdout=self.stdouts[rank],
                    stderr=self.stderrs[rank],
                    local_rank_id=rank,
                    numa_options=self._numa_options,
                )
        except BaseException:
            self._close(signal.SIGTERM, self._spec.grace_s)
            raise

    def _wait_for_result(self, timeout: float, period: float) -> RunProcsResult | None:
        """Wait as `PolledContext` does; poll ranks that a replaced handler has started."""
        if self._foreign is not None:
            return PContext._wait_for_result(self, timeout, period)  # noqa: SLF001 - of a base class
        return super()._wait_for_result(timeout, period)

    def _poll(self) -> RunProcsResult | None:
        if self._foreign is None:
            return super()._poll()
        foreign = self._foreign
        if self._result is None and (foreign.look() or foreign.failures):
            self.close()
            outcome: Outcome = "stopped" if foreign.cut_short else "failed" if foreign.failures else "succeeded"
            result = RunProcsResult(
                return_values={} if foreign.failures else dict.fromkeys(range(self.nprocs)),
                failures=dict(foreign.failures),
                stdouts=self.stdouts,
                stderrs=self.stderrs,
                outcome=outcome,
            )
            if not self._closed:  # the other ranks live: a replaced `close` has not closed the gang
                return result
            self._result = result
        return self._result

    def _may_have_failed(self) -> bool:
        """Whether a handler shows an end.

        A replaced `_poll` looks at the handlers first. A rank that ends while the Supervisor answers waits for the
        next poll, so that the caller sees its end before the other ranks are stopped.
        """
        return (
            self._stops_on_failure
            or not self._handlers
            or any(h.proc.poll() is not None for h in self._handlers.values())
        )

    def pids(self) -> dict[int, int]:
        """Return ``{rank: pid}``, also after the end; empty before the start. A restart changes the pids."""
        if self._foreign is None:
            return super().pids()
        return {rank: handler.proc.pid for rank, handler in self._foreign.by_rank.items()}

    def _close(self, death_sig: signal.Signals, timeout: float = 30) -> None:
        if self._foreign is None:
            super()._close(death_sig, timeout)
        else:
            self._foreign.close(death_sig, timeout)

    @property
    def subprocess_handlers(self) -> Mapping[int, Any]:
        """Local rank to handler; empty before the start. ``proc`` of a handler has the usual interface of a `Popen`."""
        if not self._handlers and self._supervisor is not None:
            self._handlers = self._make_handlers(self._supervisor)
        return self._handlers

    @subprocess_handlers.setter
    def subprocess_handlers(self, handlers: Mapping[int, Any]) -> None:
        self._handlers = handlers

    def _make_handlers(self, supervisor: pykka.ActorRef[Supervisor]) -> Mapping[int, Any]:
        from supervise._torch.handlers import RankHandler, RankProcess

        def send(rank: int, sig: signal.Signals, group: bool) -> None:
            with contextlib.suppress(pykka.ActorDeadError):
                supervisor.tell(ask.Signal(sig=sig, ranks=frozenset([rank]), group=group))

        def told(message: object) -> None:
            if isinstance(message, ask.WorkerExited) and message.local_rank in handlers:
                handlers[message.local_rank].proc.ended(message.exitcode)

        handlers = {}
        for rank, pid in self._pids.items():
            command = [self._spec.of(rank).what, *map(str, self._spec.args[rank])]
            handlers[rank] = RankHandler(rank, RankProcess(pid, command, partial(send, rank)))
        try:
            subscriber = CallbackSubscriber("supervise-rank-handlers", told)
            supervisor.ask(ask.Subscribe(ref=cast("Any", subscriber)), timeout=PROMPT_S)
        except (pykka.ActorDeadError, pykka.Timeout):
            log.debug("the Supervisor of %s has ended", self.name)
        if self._result is not None:
            for rank, end in self._result.ends.items():
                handlers[rank].proc.ended(end.exitcode)
        return handlers
