"""The end of services: they are stopped once the ranks of all other roles have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervise._core import restart_sets, strategy

if TYPE_CHECKING:
    from supervise._core.facts import Decision
    from supervise._core.model import Gang


def stop_idle(gang: Gang, decision: Decision) -> None:
    """Stop the services once no rank of another role runs or will start again.

    Services of several roles are stopped one role at a time, the last role first.
    """
    if gang.phase != "running" or len(gang.running) + len(gang.starting) > len(gang.services):
        return
    left = [rank for rank in range(gang.nprocs) if _goes_on(gang, rank)]
    if not left or any(rank not in gang.services for rank in left):
        return
    last = gang.role_of[left[-1]]
    ranks = [rank for rank in left if gang.role_of[rank] == last]
    if all(rank in gang.set_of and rank in gang.set_of[rank].down for rank in ranks):
        return  # they are being stopped
    for rank in ranks:
        gang.ranks[rank].dismissed = True
    restart_sets.stop_for_good(gang, ranks, decision)


def _goes_on(gang: Gang, local_rank: int) -> bool:
    return local_rank in gang.running or local_rank in gang.starting or strategy.is_to_start(gang, local_rank)
