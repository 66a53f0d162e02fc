"""Batches: ranks that are stopped together. After the grace, SIGKILL follows, and then the report of what survives it.

The stop of the gang is the batch of all ranks: its beginning, closes in each phase, and the drain are at the end of
this module. The ranks of another batch are swept, and then start again or stay down.
"""

from __future__ import annotations

from signal import Signals
from typing import TYPE_CHECKING

from supervise._core import steps
from supervise._core.model import Batch, Gang, grace_of
from supervise._core.verdict import judge
from supervise._printable import ranks_as_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervise._core.steps import Decision


FAILED = "ended, and will not restart"
FAILED_AGAIN = "did not become ready again"
"""The policy may start such ranks again and again, so another answer might never come."""


# The escalation: the first signal, SIGKILL after the grace, the report of what survives


def begin(gang: Gang, batch: Batch, decision: Decision, told: Iterable[int] = ()) -> None:
    """Begin the stop of a batch. The ranks in `told` were signaled before."""
    batch.signaled = True
    batch.pending = batch.ranks & (gang.running | gang.starting | gang.leftovers)
    if batch.grace_s <= 0 and not (batch.order in OF_EACH and gang.graces_s):
        kill(gang, batch, range(gang.roles), decision)
    elif batch.pending:
        proceed(gang, batch, decision, told)
        if batch.order not in OF_EACH:
            _limit(batch, batch.timeout_s, decision)


OF_EACH = ("own", "each")
"""The orders of a stop that gives each role its own grace. The others limit the whole stop."""
IN_TURN = ("each", "whole")
"""The orders of a stop in which a role waits for the roles that need it."""


def own_order(gang: Gang) -> steps.StopOrder:
    """Return how a stop at once, which the gang decides, treats roles."""
    return "own" if gang.graces_s else ""


def proceed(gang: Gang, batch: Batch, decision: Decision, told: Iterable[int] = ()) -> None:
    """Signal the roles of which nothing else is waited for: all, or in turn those that no role needs that is left."""
    if not batch.signaled:
        return
    left = {gang.role_of[rank] for rank in batch.pending}
    due = left - batch.roles
    if batch.order in IN_TURN:
        due = {role for role in due if gang.needed_by[role].isdisjoint(left)}
    if due:
        _signal_roles(gang, batch, due, decision, told)


def _signal_roles(gang: Gang, batch: Batch, roles: set[int], decision: Decision, told: Iterable[int] = ()) -> None:
    """Send the first signal to these roles, and limit the time of those that have a grace of their own."""
    graces_s = {role: _grace_s(gang, batch, role) for role in sorted(roles)}
    kill(gang, batch, [role for role, grace_s in graces_s.items() if grace_s is not None and grace_s <= 0], decision)
    roles = roles - batch.killed
    batch.roles |= roles
    by_signal: dict[Signals, set[int]] = {}
    for role in sorted(roles):
        by_signal.setdefault(_first_signal(gang, batch, role), set()).add(role)
    ranks = (batch.pending - gang.starting).difference(told)
    for sig, alike in by_signal.items():
        _send({rank for rank in ranks if gang.role_of[rank] in alike}, sig, decision)
    for role, grace_s in graces_s.items():
        if grace_s is not None and role in roles:
            decision.do(steps.SetTimer(name="grace", delay_s=grace_s, key=batch.number, role=role))


def _first_signal(gang: Gang, batch: Batch, role: int) -> Signals:
    return gang.stop_signals.get(role, batch.death_sig)


def _grace_s(gang: Gang, batch: Batch, role: int) -> float | None:
    """Return the time from the first signal of a role to SIGKILL; None if the limit of the whole stop ends it."""
    own_s = gang.graces_s.get(role)
    if batch.order in OF_EACH:
        return batch.grace_s if own_s is None else own_s
    return own_s if own_s is not None and own_s < batch.timeout_s else None


def _limit(batch: Batch, delay_s: float, decision: Decision) -> None:
    decision.do(steps.SetTimer(name="grace", delay_s=delay_s, key=batch.number, only_sooner=True))


def kill(gang: Gang, batch: Batch, roles: Iterable[int], decision: Decision) -> None:
    """Send SIGKILL to these roles of a batch that is signaled. Idempotent."""
    fresh = set(roles) - batch.killed
    batch.killed |= fresh
    batch.roles |= fresh
    _kill_ranks(gang, batch, {rank for rank in batch.pending if gang.role_of[rank] in fresh}, decision)


def _kill_ranks(gang: Gang, batch: Batch, ranks: set[int], decision: Decision) -> None:
    if ranks:
        _send(ranks - gang.starting, Signals.SIGKILL, decision)
        apart = batch.order in OF_EACH or gang.graces_s  # otherwise all roles are killed at once
        for role in sorted({gang.role_of[rank] for rank in ranks}) if apart else (None,):
            decision.do(steps.SetTimer(name="kill", delay_s=gang.kill_wait_s, key=batch.number, role=role))


def _send(ranks: set[int], sig: Signals, decision: Decision) -> None:
    if ranks:
        decision.do(steps.SendSignal(ranks=frozenset(ranks), sig=sig))


def _hurry(gang: Gang, event: steps.CloseAsked, decision: Decision) -> None:
    """Shorten the grace of the stop, and the drain, if a further close requests a shorter one.

    A close by SIGKILL ends the grace at once. A stop in turn goes on in its order after a further close that does not
    limit the whole stop sooner. Otherwise all remaining roles are signaled at once.
    """
    batch = gang.stop
    if gang.drain.begun:
        decision.do(drain_timer(event.timeout_s))
    timeout_s, longest_s = event.timeout_s, batch.timeout_s
    if batch.order in OF_EACH:
        longest_s = max(longest_s, *gang.graces_s.values(), 0.0)
    sooner = timeout_s < longest_s
    limits = sooner or (batch.order == "each" and timeout_s == longest_s)
    if batch.order and event.order == "each":
        return
    if batch.order in IN_TURN and event.order in IN_TURN and not limits:
        return
    if not batch.signaled:  # dead ranks are being reaped
        batch.order, batch.timeout_s = "", min(timeout_s, longest_s)
        batch.death_sig = Signals.SIGKILL if event.death_sig == Signals.SIGKILL else batch.death_sig
    elif grace_of(event.death_sig, timeout_s) <= 0:
        kill(gang, batch, range(gang.roles), decision)
    elif batch.order in IN_TURN or sooner:
        batch.order, batch.timeout_s = event.order if event.order == "own" else "", min(timeout_s, longest_s)
        proceed(gang, batch, decision)
        if batch.order != "own" and any(gang.role_of[rank] not in batch.killed for rank in batch.pending):
            _limit(batch, timeout_s, decision)


def signal_started(gang: Gang, local_rank: int, decision: Decision) -> None:
    """Signal a rank whose start was reported after its batch was signaled."""
    batch = gang.batch_of.get(local_rank, gang.stop)
    if not batch.signaled:
        return
    batch.pending.add(local_rank)  # otherwise missing if the launch was overdue
    role = gang.role_of[local_rank]
    if role in batch.killed:
        _kill_ranks(gang, batch, {local_rank}, decision)
    elif role in batch.roles:
        _send({local_rank}, _first_signal(gang, batch, role), decision)


def timer_expired(gang: Gang, event: steps.TimerExpired, decision: Decision) -> None:
    """Escalate the stop of a batch."""
    batch = gang.batches.get(event.key) if event.key else gang.stop
    if batch is None or not batch.signaled:
        return
    if event.name == "grace":
        kill(gang, batch, range(gang.roles) if event.role is None else (event.role,), decision)
    else:
        _report_unkillable(gang, batch, event.role, decision)


def _report_unkillable(gang: Gang, batch: Batch, role: int | None, decision: Decision) -> None:
    """Report ranks of a role, or of all roles, that survived SIGKILL. A `give_up` follows each report.

    The end of the gang does not wait for a pending launch any longer. A restart does, so that a rank has one life.
    """
    killed = {rank for rank in batch.pending if gang.role_of[rank] in (batch.killed if role is None else {role})}
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
    batch.death_sig, batch.timeout_s, batch.order = gang.stop_signal, gang.grace_s, own_order(gang)
    told: set[int] = set()
    for old in {gang.batch_of[rank] for rank in ranks if rank in gang.batch_of}:
        del gang.batches[old.number]
        told |= old.pending
        batch.ranks |= old.ranks
        batch.down |= old.down
        batch.delay_s = max(batch.delay_s, old.delay_s)
    gang.dequeue(batch.ranks)
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
    if not batch.signaled or gang.lives(local_rank):
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
        decision.do(steps.AnnounceRestarts(batch.number, ranks=tuple(sorted(batch.ranks)), delay_s=batch.delay_s))


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
    for local_rank in sorted(batch.ranks):
        del gang.batch_of[local_rank]
        gang.enqueue(local_rank)
    launch(gang, decision)


def launch(gang: Gang, decision: Decision) -> None:
    """Launch each rank of the queue that may be launched. The first lives of an attempt begin with the attempt."""
    for role, waiting in enumerate(gang.queue):
        while waiting and gang.may_launch(role):
            local_rank = next(iter(waiting))
            del waiting[local_rank]
            if gang.phase == "starting":
                gang.move(local_rank, "starting")
                decision.do(steps.LaunchRank(local_rank=local_rank))
            else:
                _relaunch(gang, local_rank, decision)


def _relaunch(gang: Gang, local_rank: int, decision: Decision) -> None:
    rank = gang.ranks[local_rank]
    if rank.end is not None:
        decision.tell(steps.LifeReplaced(local_rank))
    gang.ended.pop(local_rank, None)
    rank.begin_life(gang.next_life(local_rank))
    rank.restarts += 1
    gang.move(local_rank, "starting")
    decision.do(steps.RelaunchRank(local_rank=local_rank, attempt=rank.attempt))


# The requests for these ranks


def answer(gang: Gang, ranks: Iterable[int], decision: Decision, kind: steps.AskKind) -> None:
    """Remove these ranks, which are ready or down, from the requests to restart or to terminate them.

    Answer each request that waits for no other rank.
    """
    for key, ask in list(gang.asks.items()):
        if ask.kind == kind:
            ask.pending.difference_update(ranks)
            if not ask.pending:
                del gang.asks[key]
                decision.do(steps.AnswerAsk(key=key, ranks=ask.ranks))


def fail_asks(gang: Gang, ranks: Iterable[int], decision: Decision, why: str, cause: int | None = None) -> None:
    """Fail the pending requests for a restart of these ranks, which `why` tells something about.

    If the failure of the rank `cause` is the reason, fail only those that have started the present lives of the ranks.
    """
    for key, ask in list(gang.asks.items()):
        concerned = ask.kind == "restart" and (cause is None or ask.begun or ask.attempt != gang.attempt)
        if concerned and (lost := ask.pending.intersection(ranks)):
            del gang.asks[key]
            decision.do(steps.FailAsks(keys=(key,), why=f"{ranks_as_text(lost)} {why}", cause=cause))


# The stop of the gang


MIN_DRAIN_S = 1.0
"""Lower limit on the deadline of the drain, for a close with any timeout."""


def stop_gang(gang: Gang, reason: steps.Reason, decision: Decision) -> None:
    """Stop the gang because of a failure, with its full grace."""
    _stop_all(gang, own_close(gang, reason), decision)


def own_close(gang: Gang, reason: steps.Reason) -> steps.CloseAsked:
    """Return the close for an end that the gang itself decides."""
    order = own_order(gang)
    return steps.CloseAsked(death_sig=gang.stop_signal, timeout_s=gang.grace_s, reason=reason, order=order)


def _stop_all(gang: Gang, event: steps.CloseAsked, decision: Decision) -> None:
    """Begin the stop, once. Dead ranks are reaped before the first signal is sent."""
    if gang.phase in ("starting", "running"):
        gang.phase = "stopping"
        gang.stop.reason, gang.stop.death_sig, gang.stop.timeout_s = event.reason, event.death_sig, event.timeout_s
        gang.stop.order = event.order if gang.roles > 1 or gang.graces_s else ""
        gang.batches, gang.batch_of = {}, {}
        gang.dequeue(range(gang.nprocs))
        if gang.policy is None or gang.strategy != "one_for_all" or event.reason != "peer_failed":
            fail_all_asks(gang, decision)
        decision.tell(steps.GangStopping(reason=event.reason))
        decision.do(steps.ReapAll())


def finish(gang: Gang, decision: Decision) -> None:
    """Enter the last phase and publish the result, or the error of the first start."""
    gang.phase = "finished"
    fail_all_asks(gang, decision)
    decision.do(steps.Publish())


def fail_all_asks(gang: Gang, decision: Decision) -> None:
    """Fail all pending requests, because the gang ends."""
    if gang.asks:
        failed = gang.stop.reason == "peer_failed" and not gang.end_asked
        cause = next(iter(judge(gang).blamed), None) if failed else None
        decision.do(steps.FailAsks(keys=tuple(gang.asks), why="the gang ends first", cause=cause))
        gang.asks = {}


# Closing


def close(gang: Gang, event: steps.CloseAsked, decision: Decision) -> None:
    """End the gang in any phase. A further close may shorten the stop, but never lengthens it."""
    gang.end_asked = True
    fail_all_asks(gang, decision)
    if gang.drain.last:
        decision.do(drain_timer(event.timeout_s))
    _hurry_sweep(gang, event, decision)
    _close_in_phase(gang, event, decision)


def _hurry_sweep(gang: Gang, event: steps.CloseAsked, decision: Decision) -> None:
    """Let the sweep send SIGKILL as soon as the close with the shortest timeout requests."""
    timeout_s = grace_of(event.death_sig, event.timeout_s)
    if gang.phase in ("new", "starting", "running") or event.reason != "close":
        return
    sooner = gang.stop.state == "sweeping" and (gang.stop.sweep_s is None or timeout_s < gang.stop.sweep_s)
    if sooner:
        decision.do(steps.HurrySweep(timeout_s=timeout_s))
    if sooner or (gang.stop.state == "stopping" and (gang.phase != "stopping" or timeout_s <= 0)):
        gang.stop.sweep_s = timeout_s


def _close_in_phase(gang: Gang, event: steps.CloseAsked, decision: Decision) -> None:
    match gang.phase:
        case "new":
            gang.phase, gang.stop.state = "stopping", "swept"
            gang.stop.reason, gang.stop.signaled = event.reason, True
            gang.dequeue(range(gang.nprocs))
        case "starting" | "running":
            _stop_all(gang, event, decision)
            if gang.drain.begun:
                decision.do(drain_timer(event.timeout_s))
        case "restarting":
            finish(gang, decision)
            _end_leftovers(gang, event, decision)
        case "stopping":
            if event.reason == "close" or gang.stop.order in IN_TURN:
                _hurry(gang, event, decision)
            elif gang.drain.begun:  # the timeout expired during a stop, which had not bounded the drain
                decision.do(drain_timer(event.timeout_s))
        case "finished":
            if event.reason == "close":
                _end_leftovers(gang, event, decision)


def _end_leftovers(gang: Gang, event: steps.CloseAsked, decision: Decision) -> None:
    """End the leftovers of a gang whose result is published."""
    if gang.stop.signaled:
        if gang.leftovers:
            _hurry(gang, event, decision)
        return
    gang.stop.death_sig, gang.stop.timeout_s = event.death_sig, event.timeout_s
    gang.stop.order = own_order(gang) if event.order == "each" else ""
    if gang.leftovers:
        begin(gang, gang.stop, decision)


def drain_leftovers(gang: Gang, decision: Decision) -> None:
    """Show the rest of what leftovers wrote, once none remains."""
    if not (gang.leftovers or gang.drain.last):
        gang.drain.last = True
        decision.do(steps.DrainTails())
        if gang.end_asked:
            decision.do(drain_timer(gang.stop.timeout_s))


def drain_timer(timeout_s: float) -> steps.SetTimer:
    """Return the action that bounds the drain."""
    return steps.SetTimer(name="drain", delay_s=max(timeout_s, MIN_DRAIN_S), only_sooner=True)


def all_reaped(gang: Gang, event: steps.AllReaped, decision: Decision) -> None:
    """Send the first signal, once."""
    if gang.stop.signaled:
        return
    gang.reaped_ns = event.taken_ns
    for local_rank, at_ns in event.recorded.items():
        gang.ranks[local_rank].recorded_ns = at_ns
    begin(gang, gang.stop, decision)
