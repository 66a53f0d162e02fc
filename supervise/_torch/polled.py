"""Contexts whose `wait` goes through a `close` that is not ours, as it does with PyTorch."""

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
    """A gang that an agent may let live on after a failure.

    PyTorch's `wait` calls ``self.close()`` when a rank has failed, and an agent makes `close` do nothing, so that the
    healthy ranks of a program live on. Whether it does is known at the first `wait`. Until then a failed program stops
    nobody where this may happen: in gangs started by the function of PyTorch's import path, and of subclasses that have
    a `close` or `_poll` of their own. With PyTorch a function that fails always ends the others; so it does here.
    """

    def __init__(self, *, until_polled: bool = False, **settings: Any) -> None:
        """Prepare as `GangContext` does.

        Args:
            until_polled: Whether a program's failure before the first `wait` is left to it.
            **settings: As for `GangContext`.
        """
        super().__init__(**settings)
        self._until_polled = until_polled
        self._may_live_on = self._spec.kind == "binary" and self._spec.restart_policy is None
        self._stops_on_failure = True
        self._reported = False
        """Whether a failure was told while others ran on."""

    def _start(self) -> None:
        """Start every rank, by these rules."""
        theirs = any(map(self._replaced, ("close", "_close", "_poll")))
        self._stops_on_failure = not (self._may_live_on and (theirs or self._until_polled))
        self._attempt.spec = replace(self._spec, stop_on_failure=self._stops_on_failure)
        super()._start()

    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:
        """Wait for the result, as `GangContext.wait`; a `close` that is not ours is called before it is returned.

        Args:
            timeout: Seconds; negative waits for ever, 0 asks what is the case now.
            period: Seconds between two looks, where `_poll` or `close` is not ours.

        Raises:
            SignalException: A termination signal came. The gang runs on: pass it to `close`.
            RuntimeError: This is the gang's own thread (a listener of its events waits).
        """
        if self._closed_by_others():
            return PContext.wait(self, timeout, period)
        if not self._replaced("_poll"):
            self._heed_failures()
        return super().wait(timeout, period)

    def _poll(self) -> RunProcsResult | None:
        """Return the result if there is one now; of a gang that others close, what has failed by now."""
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
        """Have a failed rank stop the others from now on."""
        if self._stops_on_failure:
            return
        if self._reported:  # the caller has let the others live, and does so no more
            self.close()
        else:
            self._so_far(stop_on_failure=True)

    def _so_far(self, *, stop_on_failure: bool) -> RunProcsResult | None:
        """Return what has failed while others run on."""
        if not self._may_live_on:
            return None
        self._stops_on_failure = stop_on_failure
        try:
            result: RunProcsResult | None = self._ask_now(ask.SoFar(stop_on_failure=stop_on_failure))
        finally:
            signals.deliver()
        return result
