"""Restart sets: ranks that are stopped together and swept, and then start again or stay down."""

from __future__ import annotations

from signal import Signals
from typing import TYPE_CHECKING

from supervise._core import facts, steps
from supervise._core.model import RestartSet

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervise._core.facts import Decision
    from supervise._core.model import Gang

FAILED = "one of the ranks has ended, and it is not restarted"


def begin(gang: Gang, ranks: Iterable[int], decision: Decision) -> RestartSet:
    """Return a new restart set. Signal those of its ranks that were not signaled yet.

    The set has these ranks, and the ranks of all sets that hold one of them.
    """
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
            decision.do(steps.SendSignal(ranks=targets, sig=gang.stop_signal, escalation=0))
        decision.do(steps.SetTimer(name="grace", delay_s=gang.grace_s, key=made.number))
    return made


def signal_started(gang: Gang, local_rank: int, decision: Decision) -> bool:
    """Signal a rank whose start was reported after its restart set was signaled.

    Return whether the rank is in a restart set.
    """
    found = gang.set_of.get(local_rank)
    if found is None:
        return False
    sig = Signals.SIGKILL if found.killed else gang.stop_signal
    decision.do(steps.SendSignal(ranks=frozenset({local_rank}), sig=sig, escalation=int(found.killed)))
    return True


def reason_of_signal(gang: Gang, local_rank: int) -> str:
    """Return why supervise signals a rank while the gang goes on."""
    rank, found = gang.ranks[local_rank], gang.set_of.get(local_rank)
    if rank.dismissed or found is None:  # a service, or what a rank has left in its group
        return "close"
    if rank.terminated:
        return "terminate"
    if rank.fault is not None:
        return "fault"
    return "restart" if local_rank not in found.down else "peer_failed"


def _kill(gang: Gang, found: RestartSet, decision: Decision) -> None:
    found.killed = True
    targets = frozenset(rank for rank in found.pending if rank not in gang.starting)
    if targets:
        decision.do(steps.SendSignal(ranks=targets, sig=Signals.SIGKILL, escalation=1))
    if found.pending:
        decision.do(steps.SetTimer(name="kill", delay_s=gang.kill_wait_s, key=found.number))


def advance(gang: Gang, local_rank: int, decision: Decision) -> None:
    """Advance the restart set of a rank.

    The rank's process, its process group or its launch has ended.
    """
    found = gang.set_of.get(local_rank)
    if found is not None and not gang.lives(local_rank):
        found.pending.discard(local_rank)
        check_empty(gang, found, decision)


def check_empty(gang: Gang, found: RestartSet, decision: Decision) -> None:
    """Sweep as soon as the process groups of the set's ranks are empty."""
    if found.state == "stopping" and not found.pending:
        found.state = "sweeping"
        decision.do(steps.SweepRanks(number=found.number, ranks=frozenset(found.ranks), timeout_s=gang.grace_s))


def swept(gang: Gang, event: steps.RanksSwept, decision: Decision) -> None:
    """Continue after the sweep of a restart set. Its ranks stay down, or wait for the backoff."""
    if event.found.leaked:
        decision.tell(facts.Leaked(found=event.found, pids=gang.pids))
    found = gang.sets.get(event.number)
    if found is None or found.state != "sweeping":
        return
    found.state = "waiting"
    answer(gang, found.ranks, decision, "terminate")  # also if a later request starts the rank again
    leave_down(gang, found, decision)
    if found.ranks:
        ranks = tuple(sorted(found.ranks))
        decision.do(steps.AnnounceRestarts(number=found.number, ranks=ranks, delay_s=found.delay_s))


def leave_down(gang: Gang, found: RestartSet, decision: Decision) -> None:
    """Remove from a set the ranks that stay down."""
    found.ranks -= found.down
    for rank in found.down:
        del gang.set_of[rank]
    answer(gang, found.down, decision, "terminate")
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
    if gang.roles > 1:
        gang.queue.sort()  # in the order of roles, so that the first rank of the queue cannot wait for another one
    launch(gang, decision)


def launch(gang: Gang, decision: Decision) -> None:
    """Launch the next lives of waiting ranks.

    Stop when the launch window is full, or when ranks of a lower role are not ready.
    """
    while gang.queue and gang.may_launch(gang.queue[0]):
        local_rank = gang.queue.pop(0)
        rank = gang.ranks[local_rank]
        if rank.end is not None:
            decision.tell(facts.LifeReplaced(local_rank, rank.attempt, counted=rank.caused == "counted"))
        gang.ended.pop(local_rank, None)
        # Greater than the gang's number, because this life belongs to no attempt
        rank.begin_life(max(rank.attempt, gang.attempt) + 1)
        rank.restarts += 1
        gang.move(local_rank, "starting")
        decision.do(steps.RelaunchRank(local_rank=local_rank, attempt=rank.attempt))


def ready(gang: Gang, local_rank: int, decision: Decision) -> None:
    """Answer the requests that wait for this rank, of which a later life is ready."""
    answer(gang, [local_rank], decision, "restart")


# The requests for these ranks


def stop_for_good(gang: Gang, ranks: Iterable[int], decision: Decision) -> None:
    """Stop ranks that must not start again."""
    found = begin(gang, ranks, decision)
    keep_down(gang, found, ranks, decision)
    check_empty(gang, found, decision)


def keep_down(gang: Gang, found: RestartSet, ranks: Iterable[int], decision: Decision) -> None:
    found.down.update(ranks)
    fail_asks(gang, found.down, decision, FAILED)


def answer(gang: Gang, ranks: Iterable[int], decision: Decision, kind: str) -> None:
    """Remove these ranks from the requests of this kind. Answer each request that waits for no other rank."""
    for key, ask in list(gang.asks.items()):
        if ask.kind == kind:
            ask.pending.difference_update(ranks)
            if not ask.pending:
                del gang.asks[key]
                decision.do(steps.AnswerAsk(key=key, ranks=ask.ranks))


def fail_asks(gang: Gang, ranks: Iterable[int], decision: Decision, why: str) -> None:
    """Fail the pending requests for a restart of these ranks."""
    keys = tuple(key for key, ask in gang.asks.items() if ask.kind == "restart" and not ask.pending.isdisjoint(ranks))
    for key in keys:
        del gang.asks[key]
    if keys:
        decision.do(steps.FailAsks(keys=keys, why=why))
