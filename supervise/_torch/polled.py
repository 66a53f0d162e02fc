"""A context for subclasses that replace `close`: `wait` calls the replacement, as `wait` of PyTorch does."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from supervise import messages as ask
from supervise._api import signals
from supervise._api.base import PContext
from supervise._api.context import GangContext

if TYPE_CHECKING:
    from supervise.result import RunProcsResult


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
        replaced = any(map(self._replaced, ("close", "_close", "_poll")))
        self._stops_on_failure = not (self._may_live_on and (replaced or self._until_polled))
        self._attempt.spec = replace(self._spec, stop_on_failure=self._stops_on_failure)
        super()._start()

    def _wait_for_result(self, timeout: float, period: float) -> RunProcsResult | None:
        """Wait as `GangContext` does. If `close` was replaced, call it before the return."""
        if self._closed_by_others():
            return PContext._wait_for_result(self, timeout, period)  # noqa: SLF001 - of a base class
        if not self._replaced("_poll"):
            self._heed_failures()
        return super()._wait_for_result(timeout, period)

    def _poll(self) -> RunProcsResult | None:
        """Return the result, or None. If failures do not stop the others, return the failures so far."""
        if not self._closed_by_others():
            self._heed_failures()
            return super()._poll()
        result = super()._poll() or self._so_far(stop_on_failure=False)
        if result is None:
            return None
        self._reported = True
        self.close()
        return super()._poll() or result

    def _closed_by_others(self) -> bool:
        return self._replaced("close") or self._replaced("_close")

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
            result: RunProcsResult | None = self._ask_now(ask.SoFar(stop_on_failure=stop_on_failure))
        finally:
            signals.deliver()
        return result
