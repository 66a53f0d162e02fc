"""The health of ranks: their notify sockets, the time in which each rank must become ready, and the watch for hangs."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from supervise._core import steps
from supervise._gang.notify_sockets import NotifySockets

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise._gang.hang_watch import HangWatch
    from supervise._gang.health_host import Host
    from supervise._gang.notify_sockets import Told
    from supervise._gang.subscribers import Subscribers
    from supervise._runtime.future import Reply
    from supervise._runtime.loop import Loop, Timer
    from supervise.messages import WorkerStarted
    from supervise.stacks import RankStacks


class RankHealth:
    """Reporter to the core: which ranks are ready, were not ready in time, or hang. Used on the gang's loop."""

    def __init__(
        self, host: Host, loop: Loop, subscribers: Subscribers, stacks: Callable[[], Reply[dict[int, RankStacks]]]
    ) -> None:
        """Begin without sockets.

        Args:
            host: The gang's runner.
            loop: The gang's loop.
            subscribers: The actors that receive the reports of hangs.
            stacks: Function that requests the stacks of all ranks.
        """
        self._host: Host | None = host
        self._gang = host.gang
        self._loop = loop
        self._spec = spec = host.attempt.spec
        self._timers: dict[int, Timer] = {}
        """Rank to the timer for the next check of its deadline. Only for ranks that are not ready."""
        self._due_s: dict[int, float] = {}
        """Rank to the monotonic time until which it must be ready. A change of this time makes no new timer."""
        self.sockets = NotifySockets(loop, self._told, token=spec.notify_token, watchdog_s=spec.heartbeat_timeout_s)
        """The notify sockets. If the ranks use none, none is open."""
        self._watch: HangWatch | None = None
        if spec.watchdog is not None:
            from supervise._gang.hang_reports import HangReports  # lazy: most gangs have no watchdog
            from supervise._gang.hang_watch import HangWatch

            reports = HangReports(spec.watchdog, host, loop, subscribers, stacks)
            self._watch = HangWatch(spec.watchdog, host, loop, self.sockets, reports)

    def started(self, fact: WorkerStarted) -> None:
        """Read the socket of a rank whose process runs, and limit the time until the rank is ready."""
        rank = fact.local_rank
        awaits = self._spec.of(rank).ready == "notify"
        self.sockets.launched(rank, fact.pid, awaits_ready=awaits)
        if self._watch is not None:
            self._watch.started(rank)
        if awaits:
            passed_s = (time.monotonic_ns() - fact.started_ns) / 1e9
            self._limit(rank, self._spec.of(rank).ready_timeout_s - passed_s)

    def exited(self, rank: int) -> None:
        """Handle events of a rank that precede its exit and that the core does not know yet: hangs and datagrams."""
        if self._watch is not None:
            self._watch.settle()
        self.sockets.read_now(rank)
        self.sockets.close(rank)
        self._lift(rank)

    def _limit(self, rank: int, left_s: float) -> None:
        self._lift(rank)
        self._due_s[rank] = time.monotonic() + left_s
        self._timers[rank] = self._loop.call_later(max(left_s, 0.0), partial(self._late, rank))

    def _lift(self, rank: int) -> None:
        if (timer := self._timers.pop(rank, None)) is not None:
            timer.cancel()

    def _late(self, rank: int) -> None:
        self.sockets.read_now(rank)
        if rank not in self._timers:  # it is ready
            return
        if (left_s := self._due_s[rank] - time.monotonic()) > 0:  # the rank has asked for more time
            self._limit(rank, left_s)
            return
        del self._timers[rank]
        why = f"was not ready within {self._spec.of(rank).ready_timeout_s:g} s"
        self._step(steps.RankFaulted(rank, self._gang.ranks[rank].attempt, why, time.monotonic_ns()))

    def _told(self, told: Told) -> None:
        rank = told.local_rank
        if told.what == "ready":
            self._lift(rank)
            now_ns = time.monotonic_ns()
            if self._watch is not None:
                self._watch.ready(rank, now_ns)
            self._step(steps.RankReady(rank, self._gang.ranks[rank].attempt, now_ns))
        elif told.what == "extended" and rank in self._timers:
            self._due_s[rank] = max(self._due_s[rank], time.monotonic() + told.usec / 1e6)
        elif told.what == "trigger" and self._watch is not None:
            self._watch.trigger(rank)

    def _step(self, event: steps.Event) -> None:
        if self._host is not None:
            self._host.step(event)

    def end(self) -> None:
        """Close all sockets, cancel all timers, and drop the reference to the host."""
        self.sockets.end()
        for rank in list(self._timers):
            self._lift(rank)
        if self._watch is not None:
            self._watch.end()
        self._host = None
