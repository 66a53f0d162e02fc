"""The strategies of a gang: the ranks that the end of a rank concerns, and the restart of single ranks."""

from __future__ import annotations

from signal import Signals
from typing import TYPE_CHECKING

from supervise._core import steps, stopping
from supervise._core.model import Ask, RestartSet

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervise._core.model import Gang, Rank
    from supervise._core.steps import Decision
    from supervise.messages import WorkerExited
    from supervise.restarts import RestartPolicy
    from supervise.result import Role

LEAST_UNCOUNTED_S = 0.1
"""Minimum delay of a restart that no limit counts."""
_TERMINATED = "a later request terminated one of the ranks"
_FAILED = "one of the ranks has ended, and it is not restarted"


# The end of a rank


def heed(gang: Gang, local_rank: int, decision: Decision) -> None:
    """Do what the strategy and the policy say about the end of a rank of a running gang, once."""
    rank = gang.ranks[local_rank]
    if rank.heeded or rank.told or rank.terminated or rank.end is None or local_rank in gang.set_of:
        return  # the end of a rank that supervise stopped causes nothing more
    rank.heeded = True
    if gang.policy is None:
        if gang.failed(rank.end):
            _stop_peers(gang, local_rank, decision)
    elif _wants_restart(gang, rank, rank.end):
        _restart(gang, gang.policy, local_rank, rank.end, decision)
    if gang.phase == "running" and local_rank not in gang.set_of:
        _fail_asks(gang, {local_rank}, decision, _FAILED)


def _wants_restart(gang: Gang, rank: Rank, end: WorkerExited) -> bool:
    if rank.kind == "temporary":
        return False
    return rank.kind == "permanent" or gang.failed(end)


def _stop_peers(gang: Gang, local_rank: int, decision: Decision) -> None:
    """Stop the ranks that the failure of a rank concerns; without a policy, none starts again."""
    if gang.strategy == "one_for_all":
        stopping.stop(gang, "peer_failed", decision)
    elif gang.strategy == "rest_for_one":
        above = [rank for rank in range(local_rank + 1, gang.nprocs) if gang.lives(rank) or _is_to_start(gang, rank)]
        if above:
            found = _begin(gang, above, decision)
            _keep_down(gang, found, above, decision)
            _check_empty(gang, found, decision)


def _is_to_start(gang: Gang, local_rank: int) -> bool:
    return local_rank in gang.queue or local_rank in gang.set_of


def _keep_down(gang: Gang, found: RestartSet, ranks: Iterable[int], decision: Decision) -> None:
    found.down.update(ranks)
    _fail_asks(gang, found.down, decision, _FAILED)


def _restart(gang: Gang, policy: RestartPolicy, local_rank: int, end: WorkerExited, decision: Decision) -> None:
    if gang.strategy == "one_for_all":
        gang.culprit = None if gang.failed(end) else local_rank
        stopping.stop(gang, "peer_failed", decision)  # the whole gang restarts when all have ended
        return
    counted = end.exitcode not in policy.uncounted_exit_codes
    counting = policy.counting(gang.restarts_ns, end.ended_ns)
    if end.exitcode in policy.never_restart_exit_codes or (counted and len(counting) >= policy.max_restarts):
        gang.culprit = local_rank
        stopping.stop(gang, "peer_failed", decision)
        return
    if counted:
        gang.restarts_ns = (*counting, end.ended_ns)
    gang.ranks[local_rank].caused = "counted" if counted else "uncounted"
    ranks = [local_rank]
    if gang.strategy == "rest_for_one" and gang.failed(end):
        ranks += [above for above in range(local_rank + 1, gang.nprocs) if _follows(gang, above)]
    found = _begin(gang, ranks, decision)
    _keep_down(gang, found, [above for above in ranks[1:] if gang.ranks[above].kind == "temporary"], decision)
    found.delay_s = max(found.delay_s, _delay_s(policy, gang.ranks[local_rank], end, counted=counted))
    _check_empty(gang, found, decision)


def _follows(gang: Gang, above: int) -> bool:
    """Whether a rank is stopped, or started again, with a failed rank below it."""
    rank = gang.ranks[above]
    return gang.lives(above) or not (rank.terminated or rank.kind == "temporary")


def _delay_s(policy: RestartPolicy, rank: Rank, end: WorkerExited, *, counted: bool) -> float:
    """Return the backoff of a rank, which doubles with its restarts in a row."""
    if policy.within_s is not None and end.ended_ns - rank.restarted_ns > policy.within_s * 1e9:
        rank.streak = 0
    delay_s = policy.delay_s(rank.streak)
    rank.streak, rank.restarted_ns = rank.streak + 1, end.ended_ns
    return delay_s if counted else max(delay_s, LEAST_UNCOUNTED_S)


# Requests


def tell(gang: Gang, event: steps.RanksSwept | steps.RestartAsked | steps.TerminateAsked, decision: Decision) -> None:
    """Advance the restart sets by a request, or by the end of a sweep."""
    match event:
        case steps.RestartAsked():
            _restart_asked(gang, event, decision)
        case steps.TerminateAsked():
            _terminate_asked(gang, event, decision)
        case steps.RanksSwept():
            _swept(gang, event, decision)


def _restart_asked(gang: Gang, event: steps.RestartAsked, decision: Decision) -> None:
    """Restart exactly these ranks; the request is answered when all have started again."""
    gang.asks[event.key] = Ask("restart", event.ranks, gang.attempt)
    if gang.phase == "running":
        _restart_now(gang, event.ranks, decision)
    elif gang.phase == "finished" or gang.end_asked:
        stopping.fail_asks(gang, decision)
    else:
        for local_rank in event.ranks:
            _lift(gang.ranks[local_rank])  # a restart of all ranks starts it, too


def _restart_now(gang: Gang, ranks: Iterable[int], decision: Decision) -> None:
    fresh = []
    for local_rank in sorted(ranks):
        _lift(gang.ranks[local_rank])
        found = gang.set_of.get(local_rank)
        if found is not None:
            found.down.discard(local_rank)
            if found.state == "waiting":
                decision.do(steps.SetTimer(name="backoff", delay_s=0.0, key=found.number))
        elif local_rank not in gang.queue:
            fresh.append(local_rank)
    if fresh:
        _check_empty(gang, _begin(gang, fresh, decision), decision)


def _lift(rank: Rank) -> None:
    """Let a terminated rank start again."""
    if rank.terminated:
        rank.terminated, rank.caused = False, "terminated"


def _terminate_asked(gang: Gang, event: steps.TerminateAsked, decision: Decision) -> None:
    """Stop exactly these ranks; they stay down. The request is answered when nothing of them is left."""
    ask = gang.asks[event.key] = Ask("terminate", event.ranks, gang.attempt)
    if gang.phase == "running":
        _terminate_now(gang, ask, decision)
    elif gang.phase == "finished" or gang.end_asked:
        stopping.fail_asks(gang, decision)


def _terminate_now(gang: Gang, ask: Ask, decision: Decision) -> None:
    _fail_asks(gang, ask.ranks, decision, _TERMINATED)
    fresh = []
    for local_rank in sorted(ask.ranks):
        found = gang.set_of.get(local_rank)
        if found is not None:
            gang.ranks[local_rank].terminated = True
            found.down.add(local_rank)
        elif local_rank in gang.queue:
            gang.ranks[local_rank].terminated = True
            gang.queue.remove(local_rank)
        elif local_rank in gang.running or local_rank in gang.starting:
            gang.ranks[local_rank].terminated = True
            fresh.append(local_rank)
    sets = {gang.set_of[rank].number for rank in ask.ranks if rank in gang.set_of}
    if fresh:
        made = _begin(gang, fresh, decision)
        made.down.update(fresh)
        sets.add(made.number)
    for number in sets:
        found = gang.sets[number]
        if found.state == "waiting":
            _leave_down(gang, found, decision)
        else:
            _check_empty(gang, found, decision)
    _answer(gang, [rank for rank in ask.ranks if rank not in gang.set_of], decision, "terminate")


def resume(gang: Gang, decision: Decision) -> None:
    """Carry out the requests that came before the gang ran; a restart of all has carried out the earlier ones."""
    for key, ask in list(gang.asks.items()):
        if ask.kind == "terminate":
            _terminate_now(gang, ask, decision)
        elif ask.attempt < gang.attempt:
            del gang.asks[key]
            decision.do(steps.AnswerAsk(key=key, ranks=ask.ranks))
        else:
            _restart_now(gang, ask.ranks, decision)


def _answer(gang: Gang, ranks: Iterable[int], decision: Decision, kind: str) -> None:
    """Answer each request of this kind of which no rank is pending but these."""
    for key, ask in list(gang.asks.items()):
        if ask.kind == kind:
            ask.pending.difference_update(ranks)
            if not ask.pending:
                del gang.asks[key]
                decision.do(steps.AnswerAsk(key=key, ranks=ask.ranks))


def _fail_asks(gang: Gang, ranks: Iterable[int], decision: Decision, why: str) -> None:
    """Fail the pending requests for a restart of these ranks."""
    keys = tuple(key for key, ask in gang.asks.items() if ask.kind == "restart" and not ask.pending.isdisjoint(ranks))
    for key in keys:
        del gang.asks[key]
    if keys:
        decision.do(steps.FailAsks(keys=keys, why=why))


# The stop of a restart set


def _begin(gang: Gang, ranks: Iterable[int], decision: Decision) -> RestartSet:
    """Return a new restart set of these ranks and of all sets that hold one of them; signal those not signaled yet."""
    gang.sets_made += 1
    made = RestartSet(gang.sets_made)
    told: set[int] = set()
    for number in sorted({gang.set_of[rank].number for rank in ranks if rank in gang.set_of}):
        old = gang.sets.pop(number)
        told |= old.pending
        made.ranks |= old.ranks
        made.down |= old.down
        made.delay_s = max(made.delay_s, old.delay_s)
    made.ranks.update(ranks)
    made.pending = {rank for rank in made.ranks if gang.lives(rank)}
    gang.queue = [rank for rank in gang.queue if rank not in made.ranks]
    gang.sets[made.number] = made
    for rank in made.ranks:
        gang.set_of[rank] = made
        if rank in gang.running or rank in gang.starting:
            gang.ranks[rank].told = True
    if gang.grace_s <= 0:
        _kill(gang, made, decision)
    elif made.pending:
        targets = frozenset(rank for rank in made.pending - told if rank not in gang.starting)
        if targets:
            decision.do(steps.SendSignal(ranks=targets, sig=Signals.SIGTERM, escalation=0))
        decision.do(steps.SetTimer(name="grace", delay_s=gang.grace_s, key=made.number))
    return made


def signal_started(gang: Gang, local_rank: int, decision: Decision) -> bool:
    """Signal a rank whose start was reported after its restart set was signaled; return whether it is in one."""
    found = gang.set_of.get(local_rank)
    if found is None:
        return False
    sig = Signals.SIGKILL if found.killed else Signals.SIGTERM
    decision.do(steps.SendSignal(ranks=frozenset({local_rank}), sig=sig, escalation=int(found.killed)))
    return True


def _kill(gang: Gang, found: RestartSet, decision: Decision) -> None:
    found.killed = True
    targets = frozenset(rank for rank in found.pending if rank not in gang.starting)
    if targets:
        decision.do(steps.SendSignal(ranks=targets, sig=Signals.SIGKILL, escalation=1))
    if found.pending:
        decision.do(steps.SetTimer(name="kill", delay_s=gang.kill_wait_s, key=found.number))


def advance(gang: Gang, local_rank: int, decision: Decision) -> None:
    """Go on with the restart set of a rank, of which something has ended."""
    found = gang.set_of.get(local_rank)
    if found is not None and not gang.lives(local_rank):
        found.pending.discard(local_rank)
        _check_empty(gang, found, decision)


def _check_empty(gang: Gang, found: RestartSet, decision: Decision) -> None:
    """Sweep once nothing of the set is left in its process groups."""
    if found.state == "stopping" and not found.pending:
        found.state = "sweeping"
        decision.do(steps.SweepRanks(number=found.number, ranks=frozenset(found.ranks), timeout_s=gang.grace_s))


def _swept(gang: Gang, event: steps.RanksSwept, decision: Decision) -> None:
    """Let the ranks of a swept set stay down, or wait for the backoff."""
    if event.found.leaked:
        decision.tell(steps.Leaked(found=event.found, pids=gang.pids))
    found = gang.sets.get(event.number)
    if found is None or found.state != "sweeping":
        return
    found.state = "waiting"
    _answer(gang, found.ranks, decision, "terminate")  # also of a rank that a later request starts again
    _leave_down(gang, found, decision)
    if found.ranks:
        ranks = tuple(sorted(found.ranks))
        decision.do(steps.AnnounceRestarts(number=found.number, ranks=ranks, delay_s=found.delay_s))


def _leave_down(gang: Gang, found: RestartSet, decision: Decision) -> None:
    """Remove the ranks from a set that stay down."""
    found.ranks -= found.down
    for rank in found.down:
        del gang.set_of[rank]
    _answer(gang, found.down, decision, "terminate")
    if not found.ranks:
        del gang.sets[found.number]
    found.down = set()


def timer_expired(gang: Gang, event: steps.TimerExpired, decision: Decision) -> None:
    """Escalate the stop of a restart set, or start its ranks."""
    found = gang.sets.get(event.key or 0)
    if found is None:
        return
    match event.name, found.state:
        case "grace", "stopping":
            _kill(gang, found, decision)
        case "kill", "stopping":
            if targets := frozenset(rank for rank in found.pending if rank not in gang.starting):
                decision.do(steps.ReportUnkillable(ranks=targets))
            else:  # the launch is still pending
                _kill(gang, found, decision)
        case "backoff", "waiting":
            _enqueue(gang, found, decision)
        case _:
            pass


# The next life


def _enqueue(gang: Gang, found: RestartSet, decision: Decision) -> None:
    del gang.sets[found.number]
    for local_rank in found.ranks:
        del gang.set_of[local_rank]
    gang.queue += sorted(found.ranks)
    launch(gang, decision)


def role_of(gang: Gang, local_rank: int) -> Role:
    """Return the role of the end of a life that is to be replaced."""
    rank = gang.ranks[local_rank]
    if rank.terminated or rank.caused == "terminated":
        return "terminated"
    if rank.caused:
        return "root_cause"
    if not rank.by_itself or rank.end is None:
        return "bystander"
    return "concurrent_failure" if gang.failed(rank.end) else "finished"


def launch(gang: Gang, decision: Decision) -> None:
    """Launch the next lives of waiting ranks until the launch window is full."""
    while gang.queue and len(gang.starting) < gang.window:
        local_rank = gang.queue.pop(0)
        rank = gang.ranks[local_rank]
        if rank.end is not None:
            decision.tell(steps.LifeReplaced(local_rank, rank.attempt, counted=rank.caused == "counted"))
        gang.ended.pop(local_rank, None)
        rank.begin_life(rank.attempt + 1)
        rank.restarts += 1
        gang.move(local_rank, "starting")
        decision.do(steps.RelaunchRank(local_rank=local_rank, attempt=rank.attempt))


def started(gang: Gang, local_rank: int, decision: Decision) -> None:
    """Note that a later life of a rank runs: answer the requests that wait for it, launch the next rank."""
    _answer(gang, [local_rank], decision, "restart")
    launch(gang, decision)
