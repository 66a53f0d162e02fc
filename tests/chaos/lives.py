"""What must be true of the lives of the ranks of a gang that has ended: their order, their number, their roles."""

from collections import defaultdict
from collections.abc import Iterator

from supervise import RunProcsResult
from tests.chaos.case import Case

STOPPED_FOR_GOOD = ("bystander", "terminated")
"""Roles of ends that a gang may have without having failed: of services, and of ranks that were terminated."""


def violations(case: Case, result: RunProcsResult | None) -> Iterator[str]:
    """Yield everything that is wrong with the lives of the ranks."""
    yield from _one_at_a_time(case)
    yield from _intensity(case)
    yield from _roles(case)
    if result is not None:
        yield from _history(case, result)


def _one_at_a_time(case: Case) -> Iterator[str]:
    """No rank has two lives at once, and each life has a greater number than the one before."""
    running: dict[int, int] = {}
    last: dict[int, int] = {}
    for event in list(case.events):
        rank, attempt = event.get("local_rank"), event.get("attempt")
        match event["event"].removeprefix("supervise."):
            case "process.started":
                if rank in running:
                    yield f"two lives of a rank: attempt {attempt} of {rank} starts while {running[rank]} runs"
                if attempt <= last.get(rank, -1):
                    yield f"rank {rank}: attempt {attempt} starts after attempt {last[rank]}"
                running[rank] = last[rank] = attempt
            case "process.exited" | "process.unkillable":
                running.pop(rank, None)


def _intensity(case: Case) -> Iterator[str]:
    """No more restarts count than the policy allows, and without one no rank restarts unless that was asked for."""
    of_all = sum(event["event"] == "supervise.gang.restarting" for event in case.events)
    own = [event for event in case.events if event["event"] == "supervise.process.restarting"]
    counted = of_all + sum(event["end_role"] == "root_cause" for event in own)
    if counted > case.spec.restarts:
        yield f"{counted} restarts, where {case.spec.restarts} are allowed"
    if case.spec.strategy == "one_for_one":
        peers = {event["local_rank"] for event in own if event["end_role"] != "root_cause"} - case.moved
        if peers:
            yield f"ranks {sorted(peers)} restart under one_for_one without a failure of their own"


def _roles(case: Case) -> Iterator[str]:
    """The second role is launched when every rank of the first is ready."""
    order = [event["local_rank"] for event in case.events if event["event"] == "supervise.process.started"]
    first = set(range(case.spec.roles))
    for rank in order:
        if rank in first:
            first.remove(rank)
        elif first:
            yield f"rank {rank} of the second role starts before ranks {sorted(first)} of the first"
            return


def _history(case: Case, result: RunProcsResult) -> Iterator[str]:
    """The history of a result has each replaced life once, and those that count are as many as the policy allows."""
    if result.restarts_total != len(result.restarts):
        yield f"{result.restarts_total} restarts in total, {len(result.restarts)} in the history"
    counted = sum(restart.counted for restart in result.restarts)
    if counted > case.spec.restarts:
        yield f"{counted} restarts count, where {case.spec.restarts} are allowed"
    seen = [(restart.local_rank, restart.attempt) for restart in result.restarts]
    if len(seen) != len(set(seen)):
        yield f"a life was replaced twice: {seen}"
    lives: dict[int, list[int]] = defaultdict(list)
    for rank, attempt in seen:
        lives[rank].append(attempt)
    for rank, attempts in lives.items():
        if attempts != sorted(attempts):
            yield f"rank {rank}: the lives {attempts} are out of order"
