"""How a Supervisor leaves: after its gang has ended, or after a crash of one of the gang's handlers."""

from __future__ import annotations

import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING

from supervise import messages as say
from supervise._gang.shutdown_after_crash import CrashShutdown, shut_down_without_loop
from supervise.errors import SupervisorCrashed, UnkillableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise._gang.replies import PendingReplies
    from supervise._gang.runner import GangRunner, Listener
    from supervise._gang.subscribers import Subscribers
    from supervise._runtime.loop import Loop

log = logging.getLogger("supervise")

_TIDY_S = 0.001
"""How long the asker runs undisturbed after an answer, before the Workers leave: that takes the interpreter a while."""


class Shutdown:
    """Ends everything that a Supervisor has begun, whatever has failed. Used on the gang's loop."""

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
        """Prepare.

        Args:
            runner: What runs the gang.
            loop: The gang's; it ends last.
            replies: What the Supervisor owes.
            subscribers: Who is told the lifecycle.
            listener: Who else is.
            leave: Takes the Supervisor out of the registry.
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
        """Set once a handler has failed: from then on only the shutdown goes on."""
        self.member_asked = False
        """Whether other code asked a Worker or a Tail to stop."""

    def closed(self) -> None:
        """Answer every close: nothing of the gang is left, or nothing that can be killed."""
        stuck = self._runner.gang.unkillable
        error = None
        if stuck:
            pids = {rank: found.pid for rank, found in stuck.items()}
            error = UnkillableError(pids, {rank: found.state for rank, found in stuck.items()})
        self._replies.closed(error)
        if self._replies.stopping:
            self.begin()
        elif self.member_asked or not stuck:  # else a Worker goes on trying to reap
            self._runner.timers.call_later("tidy", _TIDY_S, partial(self._quietly, self._runner.ranks.dismiss))

    def begin(self) -> None:
        """Take all actors of the gang out of the registry, end the loop, then answer every stop. Idempotent."""
        if not self._leaving:
            self._leaving = True
            self._quietly(self._runner.ranks.dismiss)
            self._loop.post(self._finish)

    def _finish(self) -> None:
        self._quietly(self._runner.release)
        if self._listener is not None:
            self._quietly(partial(self._listener.left, self.crash))
        leave, self._leave = self._leave, _nothing  # so that the Supervisor dies with its last user
        self._quietly(leave)
        self._quietly(partial(self._replies.closed, self.crash))  # asked between the last answer and now
        self._loop.ended.add_done_callback(self._replies.stopped)
        self._loop.end()

    # After a crash

    def after_crash(self, error: BaseException, who: str) -> None:
        """Kill and reap every rank, then answer every ask; the error was raised by a handler of `who`."""
        if self.crash is None:
            self._doom(f"a handler of {who} raised {error!r}", error)
            CrashShutdown(self._loop, self._runner.ranks.slots, self._runner.attempt.contained, self._reaped).begin()

    def without_loop(self, error: BaseException) -> None:
        """End everything here and now: the loop's selector has failed, so that nothing can be waited for."""
        self._doom(f"the supervisor's selector failed: {error!r}", error)
        self._quietly(partial(shut_down_without_loop, self._runner.ranks.slots, self._runner.attempt.contained))
        self._reaped()

    def _doom(self, why: str, error: BaseException) -> None:
        self.crash = SupervisorCrashed(f"{self._name}: {why}; every worker was killed")
        self.crash.__cause__ = error
        self._runner.attempt.line.cut()  # kills every rank, also one that a fork server has yet to start
        self._quietly(self._runner.halt)

    def _reaped(self) -> None:
        """Answer every ask; whatever fails on the way, the rest is done."""
        crash = self.crash or SupervisorCrashed("the supervisor crashed")
        told = say.GangFinished(result=None, error=crash)
        if not self._replies.over:
            self._replies.error = crash
            self._quietly(partial(self._runner.events.finish, told))
        self._quietly(self._runner.ranks.abandon_tails)
        self._quietly(partial(self._replies.publish, crash))
        self._quietly(partial(self._replies.closed, crash))
        self._quietly(partial(self._subscribers.finish, told))
        self.begin()

    def _quietly(self, act: Callable[[], object]) -> None:
        try:
            act()
        except BaseException:
            with contextlib.suppress(BaseException):  # a handler of the application's may raise, too
                log.exception("%s: while it ends", self._name)


def _nothing() -> None:
    """Stand in for what must not be called again."""
