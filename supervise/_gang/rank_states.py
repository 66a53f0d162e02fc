"""The present state of each rank, for `Status`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervise.messages import RankStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervise._core.model import Gang
    from supervise._process.exits.handle import Process
    from supervise.messages import RankState


class RankStates:
    """Remembers which ranks were reported as suspended. Used on the gang's loop."""

    def __init__(self) -> None:
        """Begin without suspended ranks."""
        self._suspended: set[int] = set()

    def suspended(self, local_rank: int) -> None:
        """Note that a rank was reported as suspended."""
        self._suspended.add(local_rank)

    def rows(self, gang: Gang, processes: Mapping[int, Process]) -> dict[int, RankStatus]:
        """Return local rank to its present state. The kernel is asked about ranks that were suspended."""
        self._suspended = {
            rank for rank in self._suspended if rank in processes and processes[rank].kernel_state() in ("T", "t")
        }
        return {
            number: RankStatus(
                pid=rank.pid, state=self._state(gang, number), attempt=rank.attempt, restarts=rank.restarts
            )
            for number, rank in enumerate(gang.ranks)
        }

    def _state(self, gang: Gang, number: int) -> RankState:
        rank, found = gang.ranks[number], gang.set_of.get(number)
        if found is not None:
            return "backoff" if found.state == "waiting" else "stopping"
        if number in gang.queue:
            return "waiting"
        if rank.state in ("waiting", "starting"):
            return rank.state
        if rank.state == "running":
            stopping = gang.phase == "stopping" or rank.told
            return "suspended" if number in self._suspended else "stopping" if stopping else "ready"
        if rank.terminated:
            return "terminated"
        return "finished" if rank.end is not None and not gang.failed(rank.end) else "failed"
