"""The shutdown of a Supervisor: after the gang has ended, or after a handler of the gang has crashed."""

from __future__ import annotations

import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING

from supervise import messages as say
from supervise._gang.shutdown_after_crash import CrashShutdown, shut_down_without_loop
from supervise.errors import SupervisorCrashed, UnkillableError
from supervise.recording import repr_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise._gang.replies import PendingReplies
    from supervise._gang.runner import GangRunner, Listener
    from supervise._gang.subscribers import Subscribers
    from supervise._runtime.loop import Loop

log = logging.getLogger("supervise")

_TIDY_S = 0.001
"""Delay from an answer to the exit of the Workers. Their work would compete with the caller for the GIL."""


class Shutdown:
    """Shutdown of everything that a Supervisor has begun, also after failures. Used on the gang's loop."""

    def __init__(
        self,
        runner: GangRunner,
        loop: Loop,
        *,
        replies: PendingReplies,
        subscribers: Subscribers,
        listener: Listener | None,
        leave: Callable[[], object],
    ) -> None:
        """Prepare a shutdown.

        Args:
            runner: The gang's runner.
            loop: The gang's loop, which ends last.
            replies: The pending replies of the Supervisor.
            subscribers: The actors that receive lifecycle messages.
            listener: An internal observer, or None.
            leave: Function that removes the Supervisor from the registry.
        """
        self._runner = runner
        self._loop = loop
        self._replies = replies
        self._subscribers = subscribers
        self._listener = listener
        self._leave = leave
        self._leaving = False
        self._name = runner.attempt.spec.name
        self.crash: SupervisorCrashed | None = None
        """Set when a handler has failed. After that, only the shutdown runs."""
        self.member_asked = False
        """Whether other code requested the stop of a Worker or a Tail."""

    def closed(self) -> None:
        """Answer every close, because the gang has no process left that can be killed."""
        stuck = self._runner.gang.unkillable
        error = None
        if stuck:
            pids = {rank: found.pid for rank, found in stuck.items()}
            error = UnkillableError(pids, {rank: found.state for rank, found in stuck.items()})
        self._replies.closed(error)
        if self._replies.stopping:
            self.begin()
        elif self.member_asked or not stuck:  # otherwise the Workers stay, and try to reap again
            self._runner.timers.call_later("tidy", _TIDY_S, partial(self._quietly, self._runner.ranks.dismiss))

    def begin(self) -> None:
        """Remove the gang's actors from the registry, end the loop, and answer every stop. Idempotent."""
        if not self._leaving:
            self._leaving = True
            self._quietly(self._runner.ranks.dismiss)
            self._loop.post(self._finish)

    def _finish(self) -> None:
        self._quietly(self._runner.release)
        if self._listener is not None:
            self._quietly(partial(self._listener.left, self.crash))
        leave, self._leave = self._leave, _nothing  # to break a reference cycle
        self._quietly(leave)
        self._quietly(partial(self._replies.closed, self.crash))  # for requests that came after the last answer
        self._loop.ended.add_done_callback(self._replies.stopped)
        self._loop.end()

    # After a crash

    def after_crash(self, error: BaseException, who: str) -> None:
        """Kill and reap every rank, then answer every ask. `error` was raised by a handler of `who`."""
        if self.crash is None:
            self._kill_all(f"a handler of {who} raised {repr_of(error)}", error)
            CrashShutdown(self._loop, self._runner.ranks.slots, self._runner.attempt.contained, self._reaped).begin()

    def without_loop(self, error: BaseException) -> None:
        """End everything synchronously: the loop's selector has failed, so that the loop cannot wait."""
        self._kill_all(f"the supervisor's selector failed: {repr_of(error)}", error)
        self._quietly(partial(shut_down_without_loop, self._runner.ranks.slots, self._runner.attempt.contained))
        self._reaped()

    def _kill_all(self, why: str, error: BaseException) -> None:
        self.crash = SupervisorCrashed(f"{self._name}: {why}; every worker was killed")
        self.crash.__cause__ = error
        self._runner.attempt.line.cut()  # this kills every rank, also one that a fork server forks later
        self._quietly(self._runner.halt)

    def _reaped(self) -> None:
        """Answer every ask. If one step fails, do the next step nevertheless."""
        crash = self.crash or SupervisorCrashed("the supervisor crashed")
        message = say.GangFinished(result=None, error=crash)
        if not self._replies.over:
            self._replies.error = crash
            self._quietly(partial(self._runner.events.finish, message))
        self._quietly(self._runner.ranks.abandon_tails)
        self._quietly(partial(self._replies.publish, crash))
        self._quietly(partial(self._replies.closed, crash))
        self._quietly(partial(self._subscribers.finish, message))
        self.begin()

    def _quietly(self, act: Callable[[], object]) -> None:
        try:
            act()
        except BaseException:
            with contextlib.suppress(BaseException):  # because the application's logging handler may raise, too
                log.exception("%s: error during the shutdown", self._name)


def _nothing() -> None:
    """Replace a callback that must not be called again."""
