"""The restarts of single ranks: their announcements, their next lives, and the history of replaced lives."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from supervise import messages as say
from supervise._core import facts, steps
from supervise._core.strategy import role_of
from supervise._gang.results import rank_end
from supervise.errors import SuperviseError
from supervise.result import RankRestart

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise._core.model import Gang
    from supervise._gang.attempt import Attempt
    from supervise._gang.event_emitter import EventEmitter
    from supervise._gang.ranks import RankActors
    from supervise._gang.subscribers import Subscribers
    from supervise._gang.timers import Timers
    from supervise._runtime.loop import Loop
    from supervise.result import RankEnd, RunProcsResult

_MOST_KEPT = 1000
"""Limit on the number of lives in the history."""


class RankRestarts:
    """The restarts of single ranks. Used on the gang's loop."""

    def __init__(
        self,
        gang: Gang,
        loop: Loop,
        *,
        events: EventEmitter,
        subscribers: Subscribers,
        timers: Timers,
        step: Callable[[steps.Event], object],
    ) -> None:
        """Begin without restarts.

        Args:
            gang: The state of the gang.
            loop: The gang's loop.
            events: Emits the events of restarts.
            subscribers: The actors that receive `WorkerRestarting`.
            timers: The timers of the gang.
            step: Function that lets the core decide on an event.
        """
        self._gang = gang
        self._loop = loop
        self._events = events
        self._subscribers = subscribers
        self._timers = timers
        self._step = step
        self._ends: dict[int, RankEnd] = {}
        """Rank to the end of the life that will be replaced."""
        self._lives: list[tuple[int, int, RankEnd, bool]] = []
        """The lives that a restart of all ranks replaces: rank, attempt, end, and whether the restart counts."""
        self.history: deque[RankRestart] = deque(maxlen=_MOST_KEPT)
        self.total = 0
        """Number of replaced lives."""

    def use(self, attempt: Attempt, ranks: RankActors) -> None:
        """Restart the ranks of this attempt from now on."""
        self._attempt = attempt
        self._ranks = ranks

    def announce(self, action: steps.AnnounceRestarts) -> None:
        """Tell subscribers about the restart of these ranks, once for each life, and set the timer of the restart."""
        import random

        delay_s = action.delay_s * random.uniform(0.75, 1.25)  # noqa: S311 - jitter: machines do not restart in step
        for local_rank in action.ranks:
            rank = self._gang.ranks[local_rank]
            if rank.end is None:
                continue
            end = rank_end(rank.end, role_of(self._gang, local_rank), rank.started_ns, self._attempt)
            if self._ends.get(local_rank) == end:  # already announced: the failure of another rank has only delayed it
                continue
            self._ends[local_rank] = end
            message = say.WorkerRestarting(local_rank=local_rank, attempt=rank.attempt + 1, delay_s=delay_s, end=end)
            self._events.emit(message)
            self._subscribers.tell(message)
        self._timers.set(steps.SetTimer(name="backoff", delay_s=delay_s, key=action.number))

    def note(self, fact: facts.LifeReplaced) -> None:
        """Add a replaced life to the history."""
        end = self._ends.pop(fact.local_rank)
        self._add(RankRestart(fact.local_rank, fact.attempt, end, time.monotonic_ns(), fact.counted))
        self._subscribers.forget(fact.local_rank)

    def prepare_all(self, result: RunProcsResult, *, counted: bool) -> None:
        """Remember the lives of an attempt that a restart of all ranks will replace."""
        ranks = self._gang.ranks
        self._lives = [
            (rank, ranks[rank].attempt, end, counted and end.role == "root_cause") for rank, end in result.ends.items()
        ]

    def note_all(self, left_out: frozenset[int]) -> None:
        """Add the remembered lives to the history, because the next attempt begins.

        The lives of the ranks in `left_out` are not replaced.
        """
        at_ns = time.monotonic_ns()
        for local_rank, attempt, end, caused in self._lives:
            if local_rank not in left_out:
                self._add(RankRestart(local_rank, attempt, end, at_ns, caused))
        self._lives = []

    def _add(self, restart: RankRestart) -> None:
        self.history.append(restart)
        self.total += 1

    def launch(self, action: steps.RelaunchRank) -> None:
        """Make the next life of a rank, and launch it. If the life cannot be made, report a failed launch."""
        try:
            self._ranks.renew(action.local_rank, action.attempt)
        except (OSError, SuperviseError) as error:
            self._loop.post(self._step, steps.WorkerFailedToStart(action.local_rank, error, time.monotonic_ns()))
        else:
            self._ranks.launch(action.local_rank)

    def end(self) -> None:
        """Drop the callback."""
        self._step = _nothing


def _nothing(_: steps.Event) -> None:
    """Replace a callback that must not be called any more."""
