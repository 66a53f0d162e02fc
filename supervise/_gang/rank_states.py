"""The present state of each rank, for `Status`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from supervise.messages import GangStatus, RankStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervise._core.model import Gang
    from supervise._gang.notify_sockets import RankNotes
    from supervise._process.exits.handle import Process
    from supervise.messages import RankState


class RankStates:
    """Record of the ranks that were reported as suspended. Used on the gang's loop."""

    def __init__(self) -> None:
        """Begin without suspended ranks."""
        self._suspended: set[int] = set()

    def suspended(self, local_rank: int) -> None:
        """Note that a rank was reported as suspended."""
        self._suspended.add(local_rank)

    def status(
        self, gang: Gang, processes: Mapping[int, Process], notes: Callable[[int], RankNotes | None], waiters: int
    ) -> GangStatus:
        """Return the present state of a gang.

        The arguments are those of `rows`, and the number of `Wait` that are not answered.
        """
        return GangStatus(
            phase=gang.phase,
            pids=gang.pids,
            running=frozenset(gang.running | gang.starting),
            leftovers=frozenset(gang.leftovers),
            waiters=waiters,
            attempt=gang.attempt,
            ranks=self.rows(gang, processes, notes),
        )

    def rows(
        self, gang: Gang, processes: Mapping[int, Process], notes: Callable[[int], RankNotes | None]
    ) -> dict[int, RankStatus]:
        """Return local rank to its present state. Ask the kernel whether reported ranks are still suspended.

        Args:
            gang: The state of the gang.
            processes: Rank to process.
            notes: Function that returns the reports of a rank's present life; None if the ranks have no notify sockets.
        """
        self._suspended = {
            rank for rank in self._suspended if rank in processes and processes[rank].kernel_state() in ("T", "t")
        }
        return {number: self._row(gang, number, notes(number)) for number in range(gang.nprocs)}

    def _row(self, gang: Gang, number: int, notes: RankNotes | None) -> RankStatus:
        rank = gang.ranks[number]
        state = self._state(gang, number)
        if notes is None:
            return RankStatus(pid=rank.pid, state=state, attempt=rank.attempt, restarts=rank.restarts)
        beat_age_s = None if notes.beat_ns is None else (time.monotonic_ns() - notes.beat_ns) / 1e9
        return RankStatus(
            pid=rank.pid,
            state=state,
            attempt=rank.attempt,
            restarts=rank.restarts,
            status=notes.status,
            step=notes.step,
            beat_age_s=beat_age_s,
        )

    def _state(self, gang: Gang, number: int) -> RankState:
        rank, found = gang.ranks[number], gang.set_of.get(number)
        if found is not None or (gang.phase == "restarting" and not gang.stays_down(rank)):
            waits = gang.restart_announced if found is None else found.state == "waiting"
            return "backoff" if waits else "stopping"
        if number in gang.queue:
            return "waiting"
        if rank.state in ("waiting", "starting"):
            return rank.state
        if rank.state == "running":
            stopping = gang.phase == "stopping" or rank.told
            running: RankState = "ready" if rank.ready else "starting"
            return "suspended" if number in self._suspended else "stopping" if stopping else running
        if rank.terminated:
            return "terminated"
        return "finished" if rank.end is not None and not gang.failed(rank.end) else "failed"
