"""The strategies of a gang: which ranks the failure of a rank concerns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervise._core import restart_sets, stopping

if TYPE_CHECKING:
    from supervise._core import steps
    from supervise._core.facts import Decision
    from supervise._core.model import Gang, Rank
    from supervise.messages import WorkerExited
    from supervise.restarts import RestartPolicy
    from supervise.result import Role

LEAST_UNCOUNTED_S = 0.1
"""Minimum delay of a restart that does not count toward the limit."""


# The end of a rank


def heed(gang: Gang, local_rank: int, decision: Decision) -> None:
    """Apply the strategy and the policy to the end of a rank of a running gang, once."""
    rank = gang.ranks[local_rank]
    if rank.heeded or rank.told or rank.terminated or rank.end is None or local_rank in gang.set_of:
        return  # supervise has stopped the rank, so its end causes nothing more
    rank.heeded = True
    if gang.policy is None:
        if gang.failed(rank.end):
            _stop_peers(gang, local_rank, decision)
    elif _wants_restart(gang, rank, rank.end):
        _restart(gang, gang.policy, local_rank, rank.end, decision)
    if gang.phase in ("starting", "running") and local_rank not in gang.set_of:
        restart_sets.fail_asks(gang, {local_rank}, decision, restart_sets.FAILED)


def _wants_restart(gang: Gang, rank: Rank, end: WorkerExited) -> bool:
    if rank.kind == "temporary":
        return False
    return rank.kind == "permanent" or gang.failed(end)


def _stop_peers(gang: Gang, local_rank: int, decision: Decision) -> None:
    """Stop the ranks that the failure of a rank concerns.

    There is no policy, so none of them starts again.
    """
    if gang.strategy == "one_for_all":
        stopping.stop(gang, "peer_failed", decision)
    elif gang.strategy == "rest_for_one":
        above = _alive_above(gang, local_rank)
        if above:
            restart_sets.stop_for_good(gang, above, decision)


def _alive_above(gang: Gang, local_rank: int) -> list[int]:
    above = range(local_rank + 1, gang.nprocs)
    return [rank for rank in above if gang.lives(rank) or is_to_start(gang, rank)]


def is_to_start(gang: Gang, local_rank: int) -> bool:
    """Return whether a rank waits for its next life, or is in a restart set."""
    return local_rank in gang.queue or local_rank in gang.set_of


def faulted(gang: Gang, event: steps.RankFaulted, decision: Decision) -> None:
    """Stop a rank that has failed while it runs, and apply the strategy and the policy to the failure."""
    local_rank, policy = event.local_rank, gang.policy
    rank = gang.ranks[local_rank]
    rank.heeded = True
    if gang.phase == "starting" or (policy is None and gang.strategy == "one_for_all" and gang.stop_on_failure):
        stopping.stop(gang, "peer_failed", decision)
    elif policy is not None and rank.kind != "temporary":
        _restart(gang, policy, local_rank, None, decision)
    else:
        above = gang.strategy == "rest_for_one" and policy is None and gang.stop_on_failure
        ranks = [local_rank, *(_alive_above(gang, local_rank) if above else ())]
        restart_sets.stop_for_good(gang, ranks, decision)


def _restart(gang: Gang, policy: RestartPolicy, local_rank: int, end: WorkerExited | None, decision: Decision) -> None:
    """Restart the ranks that a failure concerns, or give up.

    `end` is None if the rank has failed while it runs.
    """
    rank = gang.ranks[local_rank]
    failed = end is None or gang.failed(end)
    if gang.strategy == "one_for_all":
        gang.culprit = None if failed else local_rank
        stopping.stop(gang, "peer_failed", decision)  # the whole gang restarts when all ranks have ended
        return
    code = end.exitcode if end is not None else None
    at_ns = end.ended_ns if end is not None else rank.fault.at_ns if rank.fault is not None else 0
    counted = code not in policy.uncounted_exit_codes
    counting = policy.counting(gang.restarts_ns, at_ns)
    if code in policy.never_restart_exit_codes or (counted and len(counting) >= policy.max_restarts):
        gang.culprit = local_rank
        stopping.stop(gang, "peer_failed", decision)
        return
    if counted:
        gang.restarts_ns = (*counting, at_ns)
    rank.caused = "counted" if counted else "uncounted"
    ranks = [local_rank]
    if gang.strategy == "rest_for_one" and failed:
        ranks += [above for above in range(local_rank + 1, gang.nprocs) if _follows(gang, above)]
    found = restart_sets.begin(gang, ranks, decision)
    down = [above for above in ranks[1:] if gang.ranks[above].kind == "temporary"]
    restart_sets.keep_down(gang, found, down, decision)
    found.delay_s = max(found.delay_s, _delay_s(policy, rank, at_ns, counted=counted))
    restart_sets.check_empty(gang, found, decision)


def _follows(gang: Gang, above: int) -> bool:
    """Return whether the failure of a lower rank also stops a rank, or starts it again."""
    rank = gang.ranks[above]
    return gang.lives(above) or not (rank.terminated or rank.kind == "temporary")


def _delay_s(policy: RestartPolicy, rank: Rank, at_ns: int, *, counted: bool) -> float:
    """Return the backoff of a rank. It doubles with each consecutive restart."""
    if policy.within_s is not None and at_ns - rank.restarted_ns > policy.within_s * 1e9:
        rank.streak = 0
    delay_s = policy.delay_s(rank.streak)
    rank.streak, rank.restarted_ns = rank.streak + 1, at_ns
    return delay_s if counted else max(delay_s, LEAST_UNCOUNTED_S)


def role_of(gang: Gang, local_rank: int) -> Role:
    """Return the role for the end of a life that will be replaced."""
    rank = gang.ranks[local_rank]
    if rank.terminated or rank.caused == "terminated":
        return "terminated"
    if rank.caused:
        return "root_cause"
    if rank.fault is not None:
        return "concurrent_failure"
    if not rank.by_itself or rank.end is None:
        return "bystander"
    return "concurrent_failure" if gang.failed(rank.end) else "finished"
