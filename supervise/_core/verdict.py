"""The verdict: the outcome of a gang, its causes, and the role of each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervise._blame import Cause, put_dead_first
from supervise._core.steps import Verdict

if TYPE_CHECKING:
    from supervise._core.model import Gang
    from supervise.messages import WorkerExited
    from supervise.result import Outcome, Role


def judge(gang: Gang) -> Verdict:
    """Return the verdict on a gang whose phase is ``finished``.

    A cause is an end that supervise did not bring about. When the stop began, the rank was dead or had recorded its
    exception. Causes are ordered by time: that of the recorded exception, or else that of the death.
    """
    causes = sorted((end for end in gang.ends if _is_cause(gang, end)), key=lambda end: _when(gang, end))
    put_dead_first(
        causes, lambda end: Cause(_recorded_ns(gang, end), end.ended_ns, end.exitcode, end.oom_kill, end.lost_peer)
    )
    if gang.policy is not None:  # the failure of a temporary rank neither restarts nor stops a rank
        causes.sort(key=lambda end: gang.ranks[end.local_rank].kind == "temporary")
    causes.sort(key=lambda end: end.local_rank != gang.culprit)
    roles: dict[int, Role] = {}
    for end in gang.ends:
        rank = gang.ranks[end.local_rank]
        finished = rank.by_itself and not gang.failed(end)
        roles[end.local_rank] = "terminated" if rank.terminated else "finished" if finished else "bystander"
    for local_rank in gang.unkillable:
        roles.setdefault(local_rank, "unkillable")
    if ranks := _with_unkillable(gang, causes):
        roles |= dict.fromkeys(ranks, "concurrent_failure")
        roles[ranks[0]] = "root_cause"
        return Verdict(outcome="failed", roles=roles, blamed=tuple(ranks))
    unfinished = tuple([rank for rank in range(gang.nprocs) if not _is_over(gang, rank, roles.get(rank))])
    if gang.stop.reason is None or not unfinished:
        outcome: Outcome = "stopped" if "finished" not in roles.values() and not unfinished else "succeeded"
        return Verdict(outcome=outcome, roles=roles, blamed=())
    if gang.stop.reason == "timeout":  # the caller did not request the end, so even a clean exit is not a success
        return Verdict(outcome="timed_out", roles=roles, blamed=unfinished)
    # A rank that a close cut short is clean if it exited with code 0 and lost no return value
    clean = {
        end.local_rank for end in gang.ends if end.exitcode == 0 and not (end.has_value and end.complaint is not None)
    }
    blamed = tuple([rank for rank in unfinished if rank not in clean])
    return Verdict(outcome="stopped", roles=roles, blamed=blamed)


def _is_over(gang: Gang, local_rank: int, role: Role | None) -> bool:
    """Return whether a rank did all that it had to do.

    One of these holds: the rank succeeded and is not permanent, was terminated, is a service without clients, or was
    left out of the last restart.
    """
    rank = gang.ranks[local_rank]
    if role == "terminated" or (role == "finished" and rank.kind != "permanent"):
        return True
    left_out = rank.attempt < gang.attempt  # as `Gang.is_left_out`, whose call each rank of a close would pay
    return left_out or (rank.dismissed and local_rank not in gang.unkillable)


def _is_cause(gang: Gang, end: WorkerExited) -> bool:
    """Return whether the end of a rank is a cause.

    One of these holds: the rank failed while it ran, its end is a failure by itself, or its end made the strategy stop
    the gang. The end of a terminated rank is never a cause, nor is that of a dismissed service: it was running, or was
    about to start again, when no other rank needed it.
    """
    rank = gang.ranks[end.local_rank]
    if rank.terminated or rank.dismissed:
        return False
    if rank.fault is not None:
        return True
    raised_first = end.error_ns is not None and end.error_ns < gang.reaped_ns  # recorded after the reap
    by_itself = not rank.told and (raised_first or rank.by_itself or rank.recorded_ns is not None)
    return end.local_rank == gang.culprit or (by_itself and gang.failed(end))


def _with_unkillable(gang: Gang, causes: list[WorkerExited]) -> list[int]:
    """Return the ranks that are causes. They include ranks that failed while they ran and then survived SIGKILL."""
    found = [(_when(gang, end)[0], end.local_rank) for end in causes]
    for local_rank in gang.unkillable:
        if (fault := gang.ranks[local_rank].fault) is not None:
            later = [place for place, (at_ns, _) in enumerate(found) if at_ns > fault.at_ns]
            found.insert(later[0] if later else len(found), (fault.at_ns, local_rank))
    return [local_rank for _, local_rank in found]


def _when(gang: Gang, end: WorkerExited) -> tuple[int, int]:
    recorded = _recorded_ns(gang, end)
    return (recorded if recorded is not None else end.ended_ns, end.ended_ns)


def _recorded_ns(gang: Gang, end: WorkerExited) -> int | None:
    fault = gang.ranks[end.local_rank].fault
    if fault is not None:
        return fault.at_ns
    return end.error_ns if end.error_ns is not None else gang.ranks[end.local_rank].recorded_ns
