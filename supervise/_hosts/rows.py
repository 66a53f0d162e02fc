"""The state of each rank of a gang over several hosts, as the hosts have reported it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervise.messages import RankStatus

if TYPE_CHECKING:
    from supervise._hosts.model import HostsGang
    from supervise._hosts.plan import HostsPlan
    from supervise.messages import RankState, WorkerExited


class RankRows:
    """The rows of `GangStatus.ranks`."""

    def __init__(self, plan: HostsPlan) -> None:
        """Begin before the first attempt."""
        self._plan = plan
        self._ended: dict[int, RankState] = {}
        self._epoch = 0
        self._ready = False

    def begin(self, epoch: int) -> None:
        """Begin another attempt."""
        self._ended, self._epoch, self._ready = {}, epoch, False

    def ready(self) -> None:
        """Record that all ranks are ready."""
        self._ready = True

    def exited(self, rank: int, end: WorkerExited) -> None:
        """Record the end of a rank."""
        codes = self._plan.settings.get("success_exit_codes", frozenset({0}))
        self._ended[rank] = "finished" if end.exitcode in codes and end.complaint is None else "failed"

    def rows(self, gang: HostsGang) -> dict[int, RankStatus]:
        """Return the row of each rank."""
        return {rank: self._row(rank, gang) for rank in range(self._plan.world_size)}

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
        return RankStatus(pid=pid, state=state, attempt=self._epoch, restarts=self._epoch)
