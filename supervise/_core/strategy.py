"""The strategies of a gang: which ranks the failure of a rank concerns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervise._core import batches

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervise._core import steps
    from supervise._core.model import Gang
    from supervise._core.steps import Decision
    from supervise.messages import WorkerExited
    from supervise.restarts import RestartPolicy
    from supervise.result import Role


# The end of a rank


def heed(gang: Gang, local_rank: int, decision: Decision) -> None:
    """Apply the strategy and the policy to the end of a rank of a running gang, once."""
    rank = gang.ranks[local_rank]
    if rank.heeded or rank.told or rank.terminated or rank.end is None or local_rank in gang.batch_of:
        return  # supervise has stopped the rank, so its end causes nothing more
    rank.heeded = True
    failed = gang.failed(rank.end)
    if gang.policy is not None and (rank.kind == "permanent" or (rank.kind == "transient" and failed)):
        batches.fail_asks(gang, _concerned(gang, local_rank), decision, batches.FAILED_AGAIN, local_rank)
        _restart(gang, gang.policy, local_rank, rank.end, decision)
    else:
        batches.fail_asks(gang, {local_rank}, decision, batches.FAILED, local_rank)
        if gang.policy is None and failed:
            _stop_peers(gang, local_rank, decision)


def _concerned(gang: Gang, local_rank: int) -> Iterable[int]:
    """Return the ranks that will not become ready because of the failure of a rank: in a start, which is over, all."""
    return range(gang.nprocs) if gang.phase == "starting" else (local_rank,)


def _stop_peers(gang: Gang, local_rank: int, decision: Decision) -> None:
    """Stop the ranks that the failure of a rank concerns.

    There is no policy, so none of them starts again.
    """
    if gang.strategy == "one_for_all":
        batches.stop_gang(gang, "peer_failed", decision)
    elif gang.strategy == "rest_for_one":
        above = _alive_above(gang, local_rank)
        if above:
            batches.stop_for_good(gang, above, decision)


def _alive_above(gang: Gang, local_rank: int) -> list[int]:
    return [rank for rank in gang.following(local_rank) if gang.lives(rank) or _is_to_start(gang, rank)]


def _is_to_start(gang: Gang, local_rank: int) -> bool:
    """Return whether a rank waits for its next life, or is in a batch."""
    return gang.is_queued(local_rank) or local_rank in gang.batch_of


def faulted(gang: Gang, event: steps.RankFaulted, decision: Decision) -> None:
    """Stop a rank that has failed while it runs, and apply the strategy and the policy to the failure."""
    local_rank, policy = event.local_rank, gang.policy
    rank = gang.ranks[local_rank]
    rank.heeded = True
    batches.fail_asks(gang, _concerned(gang, local_rank), decision, batches.FAILED_AGAIN, local_rank)
    if gang.phase == "starting" or (policy is None and gang.strategy == "one_for_all" and gang.stop_on_failure):
        batches.stop_gang(gang, "peer_failed", decision)
    elif policy is not None and rank.kind != "temporary":
        _restart(gang, policy, local_rank, None, decision)
    else:
        above = gang.strategy == "rest_for_one" and policy is None and gang.stop_on_failure
        ranks = [local_rank, *(_alive_above(gang, local_rank) if above else ())]
        batches.stop_for_good(gang, ranks, decision)


def _restart(gang: Gang, policy: RestartPolicy, local_rank: int, end: WorkerExited | None, decision: Decision) -> None:
    """Restart the ranks that a failure concerns, or give up.

    `end` is None if the rank has failed while it runs.
    """
    rank = gang.ranks[local_rank]
    failed = end is None or gang.failed(end)
    if gang.strategy == "one_for_all":
        gang.culprit = None if failed else local_rank
        batches.stop_gang(gang, "peer_failed", decision)  # the whole gang restarts when all ranks have ended
        return
    code = end.exitcode if end is not None else None
    at_ns = end.ended_ns if end is not None else rank.fault.at_ns if rank.fault is not None else 0
    if gang.backoff.gives_up(policy, at_ns, [code]):
        gang.culprit = local_rank
        batches.stop_gang(gang, "peer_failed", decision)
        return
    gang.backoff = gang.backoff.next(policy, at_ns, [code])
    rank.backoff = rank.backoff.next(policy, at_ns, [code])
    rank.caused = "counted" if rank.backoff.counted else "uncounted"
    ranks = [local_rank]
    if gang.strategy == "rest_for_one" and failed:
        ranks += [above for above in gang.following(local_rank) if _follows(gang, above)]
    found = batches.stop(gang, ranks, decision)
    down = [above for above in ranks[1:] if gang.ranks[above].kind == "temporary"]
    batches.keep_down(gang, found, down, decision)
    found.delay_s = max(found.delay_s, rank.backoff.delay_s)


def _follows(gang: Gang, above: int) -> bool:
    """Return whether the failure of a lower rank also stops a rank, or starts it again."""
    rank = gang.ranks[above]
    return gang.lives(above) or not (rank.terminated or rank.kind == "temporary")


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


# The end of services: they are stopped once the ranks of all other roles have ended


def stop_idle(gang: Gang, decision: Decision) -> None:
    """Stop the services once no rank of another role runs or will start again.

    A service is stopped when nothing goes on of the services that need it.
    """
    if gang.phase != "running" or len(gang.running) + len(gang.starting) > len(gang.services):
        return
    going_on = gang.running | gang.starting
    left = [rank for rank in range(gang.nprocs) if rank in going_on or _is_to_start(gang, rank)]
    if not left or any(rank not in gang.services for rank in left):
        return
    roles = {gang.role_of[rank] for rank in left}
    for role in sorted(role for role in roles if gang.needed_by[role].isdisjoint(roles)):
        ranks = [rank for rank in left if gang.role_of[rank] == role]
        serving = [rank for rank in ranks if rank not in gang.batch_of or rank not in gang.batch_of[rank].down]
        for rank in serving:  # the others have failed for good
            gang.ranks[rank].dismissed = True
        if serving:  # otherwise all of them are being stopped
            batches.stop_for_good(gang, ranks, decision)
