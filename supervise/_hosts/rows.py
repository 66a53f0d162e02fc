"""The state of each rank of a gang over several hosts, as the hosts have reported it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from supervise.messages import GangStatus, RankStatus

if TYPE_CHECKING:
    from supervise._hosts.model import HostsGang
    from supervise._hosts.plan import HostsPlan
    from supervise.messages import Phase, RankState, WorkerExited

_PHASES: dict[str, Phase] = {"placing": "starting", "launching": "starting", "backoff": "restarting"}
_RUNNING = ("starting", "ready", "suspended", "stopping")


class RankRows:
    """The rows of `GangStatus.ranks`."""

    def __init__(self, plan: HostsPlan) -> None:
        """Begin before the first attempt."""
        self._plan = plan
        self._ended: dict[int, RankState] = {}
        self._told: dict[int, tuple[RankStatus, float]] = {}
        """Rank to its status in the last report of its host, and the monotonic time (s) at which the report arrived."""
        self._epoch = 0
        self._ready = False

    def begin(self, epoch: int) -> None:
        """Begin another attempt."""
        self._ended, self._told, self._epoch, self._ready = {}, {}, epoch, False

    def ready(self) -> None:
        """Record that all ranks are ready."""
        self._ready = True

    def exited(self, rank: int, end: WorkerExited) -> None:
        """Record the end of a rank."""
        codes = self._plan.settings.get("success_exit_codes", frozenset({0}))
        self._ended[rank] = "finished" if end.exitcode in codes and end.complaint is None else "failed"

    def told(self, number: int, status: GangStatus) -> None:
        """Record the report of a host on its ranks: their steps, status texts, and the ages of their heartbeats."""
        now_s = time.monotonic()
        self._told |= {self._plan.rank(number, local): (row, now_s) for local, row in status.ranks.items()}

    def status(self, gang: HostsGang, pids: dict[int, int], waiters: int) -> GangStatus:
        """Return the present state, as far as the hosts have reported it."""
        rows = {rank: self._row(rank, gang) for rank in range(self._plan.world_size)}
        return GangStatus(
            phase=_PHASES.get(gang.phase, gang.phase),  # type: ignore[arg-type]  # the other phases have the same names
            pids=pids,
            running=frozenset(rank for rank, row in rows.items() if row.state in _RUNNING),
            leftovers=frozenset(),
            waiters=waiters,
            attempt=gang.epoch,
            ranks=rows,
        )

    def _row(self, rank: int, gang: HostsGang) -> RankStatus:
        number, local = divmod(rank, self._plan.nproc_per_node)
        host = gang.hosts[number] if gang.hosts else None
        pid = host.pids.get(local) if host is not None else None
        state: RankState
        if gang.phase == "backoff":
            state = "backoff"
        elif rank in self._ended:
            state = self._ended[rank]
        elif host is None or host.state == "waiting":
            state = "waiting"
        elif host.state in ("lost", "gone", "not_started"):
            state = "failed"
        elif host.told_to_stop:
            state = "stopping"
        else:
            state = "ready" if self._ready else "starting"
        row = RankStatus(pid=pid, state=state, attempt=self._epoch, restarts=self._epoch)
        if rank not in self._told:
            return row
        told, at_s = self._told[rank]
        if told.state == "suspended" and state in ("starting", "ready"):
            row = replace(row, state="suspended")
        # the age by the host's clock, plus the time since then by the driver's clock
        age_s = None if told.beat_age_s is None else told.beat_age_s + time.monotonic() - at_s
        return replace(row, status=told.status, step=told.step, beat_age_s=age_s)
