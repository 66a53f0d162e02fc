"""How a Supervisor leaves: in peace, or after a crash of a handler of its gang."""

from __future__ import annotations

import contextlib
import logging
import signal
from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING

from supervise import messages as say
from supervise._core import steps
from supervise._gang import shutdown_at_exit
from supervise._gang.shutdown_after_crash import CrashShutdown, shut_down_without_loop
from supervise._runtime.actor import LoopActor
from supervise.errors import SpecError, SuperviseError, SupervisorCrashed, UnkillableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise._core.model import Gang
    from supervise._gang.attempt import Attempt
    from supervise._gang.describe import Reporter
    from supervise._gang.escapees import Sweep
    from supervise._gang.ranks import RankActors
    from supervise._gang.replies import PendingReplies
    from supervise._gang.subscribers import Subscribers
    from supervise._gang.suspend_poll import SuspendPoll
    from supervise._runtime.future import Reply
    from supervise._runtime.loop import Timer

log = logging.getLogger("supervise")

_TIDY_S = 0.001
"""How long whoever was answered goes on undisturbed before the Workers leave: that takes the interpreter a while."""


class DepartingActor(LoopActor):
    """An actor that never leaves before its gang has ended, whatever has failed."""

    _plan: Attempt
    _ranks: RankActors
    _gang: Gang
    _report: Reporter
    _replies: PendingReplies
    _subscribers: Subscribers
    _suspend_poll: SuspendPoll
    _timers: dict[tuple[int | None, str], Timer]
    _crash: SupervisorCrashed | None = None
    """Set once a handler has failed: from then on only the last rites go on."""
    _members_leave = False
    """Whether a stranger asked a Worker or a Tail to stop."""
    _leaving = False
    _sweep: Sweep | None = None
    """The look for what has left the ranks' groups, while it goes on."""

    @abstractmethod
    def _step(self, event: steps.Event) -> None:
        """Have the core decide on `event`, and do what it says."""

    @abstractmethod
    def _set_timer(self, action: steps.SetTimer) -> None:
        """Set a timer whose expiry is an event of the core."""

    def _closed(self) -> None:
        """Nothing of the gang is left, or nothing that can be killed."""
        stuck = self._gang.unkillable
        error = None
        if stuck:
            states = {rank: found.state for rank, found in stuck.items()}
            error = UnkillableError({rank: found.pid for rank, found in stuck.items()}, states)
        self._replies.closed(error)
        if self._replies.stopping:
            self._leave()
        elif self._members_leave or not stuck:  # else a Worker goes on trying to reap
            self._timers[None, "tidy"] = self.loop.call_later(_TIDY_S, partial(self._quietly, self._ranks.dismiss))

    def on_stop_request(self) -> Reply[None]:
        """Close the gang, then leave."""
        reply = self._replies.stop()
        self._step(steps.CloseAsked(death_sig=signal.SIGTERM, timeout_s=self._gang.grace_s))
        return reply

    def _leave(self) -> None:
        """Take all our actors out of the registry, end the loop; the stops are answered when it has."""
        if not self._leaving:
            self._leaving = True
            self._quietly(self._ranks.dismiss)
            self.loop.post(self._left)

    def _left(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._suspend_poll.end()
        shutdown_at_exit.forget(self.actor_ref)
        self._quietly(self.leave)
        self._quietly(partial(self._replies.closed, self._crash))  # those that came between the burial and now
        self.loop.ended.add_done_callback(self._replies.stopped)
        self.loop.end()

    def is_fatal(self, error: BaseException, *, asked: bool) -> bool:
        """A mistake of the sender's harms nobody; anything else is ours."""
        if isinstance(error, SpecError):
            return False
        harmless = (SuperviseError, OSError, TypeError, ValueError, AttributeError)
        return not asked or not isinstance(error, harmless)

    def on_crash(self, error: BaseException) -> None:
        """A handler of ours raised: take the workers with us and answer everybody."""
        self._perish(error, "the supervisor")

    def _perish(self, error: BaseException, who: str) -> None:
        if self._crash is None:
            self._doom(f"a handler of {who} raised {error!r}", error)
            CrashShutdown(self.loop, self._ranks.slots, self._plan.contained, self._buried).begin()

    def _doom(self, why: str, error: BaseException) -> None:
        self._crash = SupervisorCrashed(f"{self._plan.spec.name}: {why}; every worker was killed")
        self._crash.__cause__ = error
        self._plan.line.cut()  # kills who lives, and also whom a fork server has yet to start
        if self._sweep is not None:
            self._quietly(self._sweep.cancel)

    def _buried(self) -> None:
        """Answer everybody; whatever fails on the way, the rest is done."""
        crash = self._crash or SupervisorCrashed("the supervisor crashed")
        if not self._replies.over:
            self._replies.error = crash
            self._quietly(partial(self._report.aborted, crash))
        self._quietly(self._ranks.abandon_tails)
        self._quietly(partial(self._replies.publish, crash))
        self._quietly(partial(self._replies.closed, crash))
        self._quietly(partial(self._subscribers.finish, say.GangFinished(result=None, error=crash)))
        self._leave()

    def _quietly(self, act: Callable[[], object]) -> None:
        try:
            act()
        except BaseException:
            with contextlib.suppress(BaseException):  # a handler of the application's may raise, too
                log.exception("%s: while it ends", self._plan.spec.name)

    def _loop_lost(self, error: BaseException) -> None:
        """The loop's selector is gone: nothing can be waited for any more, so end everything here and now."""
        self._doom(f"the supervisor's selector failed: {error!r}", error)
        self._quietly(partial(shut_down_without_loop, self._ranks.slots, self._plan.contained))
        self._buried()
