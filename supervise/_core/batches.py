"""Batches: ranks that are stopped together. After the grace, SIGKILL follows, and then the report of what survives it.

The stop of the gang is the batch of all ranks. The ranks of another batch are swept, and then start again or stay down.
"""

from __future__ import annotations

from signal import Signals
from typing import TYPE_CHECKING

from supervise._core import steps
from supervise._core.model import Batch, grace_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervise._core.model import Gang
    from supervise._core.steps import Decision


FAILED = "one of the ranks has ended, and it is not restarted"


# The escalation: the first signal, SIGKILL after the grace, the report of what survives


def begin(gang: Gang, batch: Batch, decision: Decision, told: Iterable[int] = ()) -> None:
    """Begin the stop of a batch. The ranks in `told` were signaled before."""
    batch.turn = gang.roles
    batch.pending = batch.ranks & (gang.running | gang.starting | gang.leftovers)
    if batch.grace_s <= 0:
        kill(gang, batch, 0, decision)
    elif batch.pending:
        proceed(gang, batch, decision, told)


def proceed(gang: Gang, batch: Batch, decision: Decision, told: Iterable[int] = ()) -> None:
    """Signal the next role, from the last to the first, once nothing is left of later roles.

    Without an order, signal all roles. A batch has one grace, or one for each role.
    """
    turn = max((gang.role_of[rank] for rank in batch.pending), default=gang.roles) if batch.order else 0
    if batch.turn is None or turn >= batch.turn:
        return
    is_first = batch.turn == gang.roles
    _signal_from(gang, batch, turn, decision, told)
    if is_first or batch.order == "each":
        _set_grace(batch, batch.timeout_s, decision)


def _signal_from(gang: Gang, batch: Batch, turn: int, decision: Decision, told: Iterable[int] = ()) -> None:
    """Send the first signal to the roles from `turn` up to the present turn."""
    roles = range(turn, batch.turn or 0)
    ranks = (batch.pending - gang.starting).difference(told)
    _send({rank for rank in ranks if gang.role_of[rank] in roles}, batch.death_sig, decision)
    batch.turn, batch.killed = turn, False


def _set_grace(batch: Batch, delay_s: float, decision: Decision) -> None:
    only_sooner = batch.order != "each"
    decision.do(steps.SetTimer(name="grace", delay_s=delay_s, key=batch.number, only_sooner=only_sooner))


def kill(gang: Gang, batch: Batch, turn: int, decision: Decision) -> None:
    """Send SIGKILL to the roles from `turn` on. Idempotent."""
    if batch.turn is None or (batch.killed and turn >= batch.turn):
        return
    batch.turn, batch.killed = turn, True
    _kill_ranks(gang, batch, {rank for rank in batch.pending if gang.role_of[rank] >= turn}, decision)


def _kill_ranks(gang: Gang, batch: Batch, ranks: set[int], decision: Decision) -> None:
    if ranks:
        _send(ranks - gang.starting, Signals.SIGKILL, decision)
        decision.do(steps.SetTimer(name="kill", delay_s=gang.kill_wait_s, key=batch.number))


def _send(ranks: set[int], sig: Signals, decision: Decision) -> None:
    if ranks:
        decision.do(steps.SendSignal(ranks=frozenset(ranks), sig=sig, escalation=int(sig == Signals.SIGKILL)))


def hurry(gang: Gang, batch: Batch, event: steps.CloseAsked, decision: Decision) -> None:
    """Shorten the grace if a further close requests a shorter one. A close by SIGKILL ends the grace at once.

    A stop in order goes on in its order after a further close that does not bound the whole stop sooner. Otherwise all
    remaining roles are signaled at once.
    """
    timeout_s = event.timeout_s
    sooner = timeout_s < batch.timeout_s
    if batch.order and event.order:
        bounds = sooner or (batch.order == "each" and timeout_s == batch.timeout_s)
        if event.order == "each" or not bounds:
            return
    if batch.order == "each":
        batch.killed = False  # because SIGKILL was sent to one role only
    if batch.turn is None:  # dead ranks are being reaped
        batch.timeout_s = min(timeout_s, batch.timeout_s)
        batch.death_sig = Signals.SIGKILL if event.death_sig == Signals.SIGKILL else batch.death_sig
    elif grace_of(event.death_sig, timeout_s) <= 0:
        kill(gang, batch, 0, decision)
    elif (batch.order or sooner) and not batch.killed:
        _signal_from(gang, batch, 0, decision)
        _set_grace(batch, timeout_s, decision)
        batch.timeout_s = min(timeout_s, batch.timeout_s)
    batch.order = ""


def signal_started(gang: Gang, local_rank: int, decision: Decision) -> None:
    """Signal a rank whose start was reported after its batch was signaled."""
    batch = gang.batch_of.get(local_rank, gang.stop)
    if batch.turn is None:
        return
    batch.pending.add(local_rank)  # otherwise missing if the launch was overdue
    if _is_killed(gang, batch, local_rank):
        _kill_ranks(gang, batch, {local_rank}, decision)
    elif gang.role_of[local_rank] >= batch.turn:
        _send({local_rank}, batch.death_sig, decision)


def _is_killed(gang: Gang, batch: Batch, local_rank: int) -> bool:
    """Return whether the stop now sends SIGKILL to a rank."""
    if batch.turn is None or not batch.order:
        return batch.killed
    return gang.role_of[local_rank] >= batch.turn + (not batch.killed)


def timer_expired(gang: Gang, event: steps.TimerExpired, decision: Decision) -> None:
    """Escalate the stop of a batch."""
    batch = gang.batches.get(event.key) if event.key else gang.stop
    if batch is None or batch.turn is None:
        return
    if event.name == "grace":
        kill(gang, batch, batch.turn if batch.order == "each" else 0, decision)
    else:
        _report_unkillable(gang, batch, decision)


def _report_unkillable(gang: Gang, batch: Batch, decision: Decision) -> None:
    """Report ranks that survived SIGKILL. A `give_up` follows each report.

    The end of the gang does not wait for a pending launch any longer. A restart does, so that a rank has one life.
    """
    killed = {rank for rank in batch.pending if _is_killed(gang, batch, rank)}
    launching = killed & gang.starting
    if batch is gang.stop:
        for local_rank in launching:
            gang.move(local_rank, "overdue")
        batch.pending -= launching
    if targets := killed - launching:
        decision.do(steps.ReportUnkillable(ranks=frozenset(targets)))


def give_up(gang: Gang, event: steps.WorkerUnkillable, decision: Decision) -> None:
    """Give up the wait for a rank with a process that survived SIGKILL."""
    gang.unkillable[event.local_rank] = event
    gang.leftovers.discard(event.local_rank)
    if event.local_rank in gang.running:
        gang.move(event.local_rank, "unkillable")
    gang.stop.pending.discard(event.local_rank)
    decision.tell(event)


# The fate of the ranks of a batch, while the gang goes on


def stop(gang: Gang, ranks: Iterable[int], decision: Decision) -> Batch:
    """Stop ranks while the gang goes on; return their batch. Signal those that were not signaled yet.

    The batch has these ranks, and the ranks of all batches that hold one of them.
    """
    gang.batches_made += 1
    batch = Batch(ranks, gang.batches_made)
    batch.death_sig, batch.timeout_s = gang.stop_signal, gang.grace_s
    told: set[int] = set()
    for old in {gang.batch_of[rank] for rank in ranks if rank in gang.batch_of}:
        del gang.batches[old.number]
        told |= old.pending
        batch.ranks |= old.ranks
        batch.down |= old.down
        batch.delay_s = max(batch.delay_s, old.delay_s)
    gang.queue = [rank for rank in gang.queue if rank not in batch.ranks]
    gang.batches[batch.number] = batch
    for rank in batch.ranks:
        gang.batch_of[rank] = batch
        if rank in gang.running or rank in gang.starting:
            gang.ranks[rank].told = True
    begin(gang, batch, decision, told)
    _sweep_if_empty(batch, decision)
    return batch


def stop_for_good(gang: Gang, ranks: Iterable[int], decision: Decision) -> None:
    """Stop ranks that must not start again."""
    keep_down(gang, stop(gang, ranks, decision), ranks, decision)


def keep_down(gang: Gang, batch: Batch, ranks: Iterable[int], decision: Decision) -> None:
    """Let ranks of a batch stay down, because they have failed or serve no other rank."""
    batch.down.update(ranks)
    fail_asks(gang, batch.down, decision, FAILED)


def reason_of_signal(gang: Gang, local_rank: int) -> str:
    """Return why supervise signals a rank while the gang goes on."""
    rank, batch = gang.ranks[local_rank], gang.batch_of.get(local_rank)
    if rank.dismissed or batch is None:  # a service, or what a rank has left in its group
        return "close"
    if rank.terminated:
        return "terminate"
    if rank.fault is not None:
        return "fault"
    return "restart" if local_rank not in batch.down else "peer_failed"


def advance(gang: Gang, local_rank: int, decision: Decision) -> None:
    """Advance the batch of a rank. The rank's process, its process group or its launch has ended."""
    batch = gang.batch_of.get(local_rank, gang.stop)
    if batch.turn is None or gang.lives(local_rank):
        return
    batch.pending.discard(local_rank)
    if batch is not gang.stop:
        _sweep_if_empty(batch, decision)


def _sweep_if_empty(batch: Batch, decision: Decision) -> None:
    if not batch.pending:
        sweep(batch, decision)


def sweep(batch: Batch, decision: Decision) -> None:
    """Request the sweep of a batch, once. The process groups of its ranks are empty."""
    if batch.state == "stopping":
        batch.state = "sweeping"
        batch.sweep_s = batch.grace_s if batch.sweep_s is None else batch.sweep_s
        ranks = frozenset(batch.ranks) if batch.number else None
        decision.do(steps.SweepUp(timeout_s=batch.sweep_s, ranks=ranks, key=batch.number))


def swept(gang: Gang, number: int, decision: Decision) -> None:
    """Continue after the sweep of a batch. Its ranks stay down, or wait for the backoff."""
    batch = gang.batches.get(number)
    if batch is None or batch.state != "sweeping":
        return
    batch.state = "swept"
    answer(gang, batch.ranks, decision, "terminate")  # also if a later request starts the rank again
    leave_down(gang, batch, decision)
    if batch.ranks:
        ranks = tuple(sorted(batch.ranks))
        decision.do(steps.AnnounceRestarts(number=batch.number, ranks=ranks, delay_s=batch.delay_s))


def leave_down(gang: Gang, batch: Batch, decision: Decision) -> None:
    """Remove from a batch the ranks that stay down."""
    batch.ranks -= batch.down
    for rank in batch.down:
        del gang.batch_of[rank]
    answer(gang, batch.down, decision, "terminate")
    if not batch.ranks:
        del gang.batches[batch.number]
    batch.down = set()


# The next life


def enqueue(gang: Gang, number: int, decision: Decision) -> None:
    """Start the ranks of a batch after their backoff."""
    batch = gang.batches.get(number)
    if batch is None or batch.state != "swept":
        return
    del gang.batches[number]
    for local_rank in batch.ranks:
        del gang.batch_of[local_rank]
    gang.queue += sorted(batch.ranks)
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
            decision.tell(steps.LifeReplaced(local_rank, rank.attempt, counted=rank.caused == "counted"))
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
