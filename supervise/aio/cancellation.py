"""Cancellation of a task that must finish a step first."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


class Cancellations:
    """The cancellations of the current task that arrive while it waits for a step that it must finish."""

    def __init__(self, cause: BaseException | None = None) -> None:
        """Begin with `cause`, the exception that made the step necessary; None if none did."""
        self._cause = cause
        self._canceled = isinstance(cause, asyncio.CancelledError)
        self.caught: asyncio.CancelledError | None = None
        """The first cancellation during a step; None if there was none."""
        self._count = 0
        """`Task.cancelling` of the task when the first cancellation was caught."""

    async def outlast(self, step: Callable[[], Awaitable[T]], *, again: Callable[[], object] = lambda: None) -> T:
        """Await ``step()`` until it returns or raises, also if the task is canceled meanwhile.

        Args:
            step: Returns an awaitable that a canceled task may abandon; called again after each cancellation.
            again: Called at each cancellation that is not the first one of the task.
        """
        while True:
            try:
                return await step()
            except asyncio.CancelledError as error:
                if self._canceled:
                    again()
                self._canceled = True
                if self.caught is None:
                    self.caught = error
                    task = asyncio.current_task()
                    self._count = task.cancelling() if task is not None else 0

    def deliver(self) -> None:
        """Raise the first cancellation that was caught, if there is one.

        If the task is about to raise `cause`, that exception is not replaced: the cancellation is delivered at the
        next await of the task, unless the task has by then left the scope that canceled it (such as `asyncio.timeout`).

        Raises:
            CancelledError: The task was canceled during a step.
        """
        if self.caught is None or isinstance(self._cause, asyncio.CancelledError):
            return
        if self._cause is None:
            raise self.caught
        task = asyncio.current_task()
        if task is not None:
            asyncio.get_running_loop().call_soon(_cancel_again, task, self._count)


def _cancel_again(task: asyncio.Task[object], count: int) -> None:
    """Cancel `task`, and leave its count of cancellations unchanged. Do nothing if `uncancel` has lowered the count."""
    if not task.done() and 0 < count <= task.cancelling():
        task.cancel()
        task.uncancel()
