"""The transition function of a gang: from an event to a changed state, with actions and facts.

The cost of an event does not depend on the number of ranks, unless the event concerns all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervise import messages as say
from supervise._core import batches, steps, strategy
from supervise._core.model import Ask, Gang
from supervise._core.verdict import judge
from supervise._record import replace
from supervise.recording import text_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervise._core.steps import Decision, Event

NOT_READY = "ended before it was ready"
"""The reason why a start has failed."""


def decide(gang: Gang, event: Event) -> Decision:  # noqa: C901, PLR0912, PLR0915 - one case an event
    """Advance `gang` by one event; return the actions and facts that follow from the event.

    Late events (a timer after the end) and repeated events (a second close) have no effect.

    Raises:
        TypeError: `event` is not an event.
    """
    decision = steps.Decision()
    match event:
        case say.WorkerStarted():
            _started(gang, event, decision)
        case say.WorkerExited():
            _exited(gang, event, decision)
        case steps.WorkerFailedToStart():
            _failed_to_start(gang, event, decision)
        case steps.WorkerUnkillable():
            batches.give_up(gang, event, decision)
            batches.stop_gang(gang, "peer_failed", decision)
        case steps.RankReady():
            _ready(gang, event, decision)
        case steps.RankFaulted():
            _faulted(gang, event, decision)
        case steps.RankReturned():
            _returned(gang, event, decision)
        case steps.GroupEmptied():
            gang.leftovers.discard(event.local_rank)
            batches.advance(gang, event.local_rank, decision)
        case steps.TailEnded():
            gang.drain.lasting -= event.drained
            gang.drain.tails = max(0, gang.drain.tails - (not event.drained))
            decision.tell(event)
        case steps.TailDrained():
            gang.drain.lasting += 1
            gang.drain.tails -= 1
        case steps.Swept():
            if event.leaked:
                decision.tell(steps.Leaked(found=event, pids=gang.pids))
            if event.last and event.key:
                batches.swept(gang, event.key, decision)
            elif event.last:
                gang.stop.state = "swept"
        case steps.RanksAsked():
            _asked(gang, event, decision)
        case steps.TimerExpired(name="grace" | "kill"):
            batches.timer_expired(gang, event, decision)
        case steps.TimerExpired(name="drain"):
            if (gang.drain.begun and gang.drain.pending) or (gang.drain.last and gang.drain.lasting):
                decision.do(steps.AbandonTails())
        case steps.TimerExpired(name="backoff", key=0):
            _next_attempt(gang, decision)
        case steps.TimerExpired(name="backoff"):
            batches.enqueue(gang, event.key, decision)
        case steps.TimerExpired(name="deadline"):
            _cancel_restart(gang, "timeout")
            batches.close(gang, batches.own_close(gang, "timeout"), decision)
        case steps.ValuesLoaded():
            gang.drain.values = False
            for local_rank, complaint in event.complaints.items():
                rank = gang.ranks[local_rank]
                rank.end = rank.end and replace(rank.end, complaint=complaint)
        case steps.TailsStarted():
            gang.drain.tails, gang.drain.values = event.tails, event.values
        case steps.StartAsked():
            if gang.phase == "new":
                gang.phase = "starting"
                batches.launch(gang, decision)
        case steps.Assembled():
            if gang.phase == "starting":
                batches.launch(gang, decision)
        case steps.NotAssembled():
            if gang.phase in ("starting", "stopping"):
                _not_assembled(gang, event, decision)
        case steps.CloseAsked():
            _cancel_restart(gang, event.reason)
            batches.close(gang, event, decision)
        case steps.StopOnFailure():
            gang.stop_on_failure = event.on
            if gang.phase == "running":
                _heed_all(gang, decision)
        case steps.PeersStopped():
            for rank in (gang.ranks[local_rank] for local_rank in event.ranks):
                rank.excused_ns = event.at_ns if rank.excused_ns is None else rank.excused_ns
        case steps.AllReaped():
            batches.all_reaped(gang, event, decision)
        case _:
            raise TypeError(f"unknown event: {event!r}")
    _settle(gang, decision)
    return decision


# The life of a rank


def _started(gang: Gang, event: say.WorkerStarted, decision: Decision) -> None:
    rank = gang.ranks[event.local_rank]
    rank.pid, rank.started_ns = event.pid, event.started_ns
    gang.move(event.local_rank, "running")
    decision.tell(event)
    if gang.phase == "starting":
        batches.launch(gang, decision)
        return
    batches.signal_started(gang, event.local_rank, decision)
    if gang.phase == "running":
        if rank.ready and event.local_rank not in gang.batch_of:
            batches.answer(gang, [event.local_rank], decision, "restart")
        batches.launch(gang, decision)


def _ready(gang: Gang, event: steps.RankReady, decision: Decision) -> None:
    rank = gang.ranks[event.local_rank]
    if event.attempt != rank.attempt or event.local_rank not in gang.unready:
        return
    rank.ready = True
    gang.unready.discard(event.local_rank)
    if rank.told or gang.phase not in ("starting", "running"):
        return
    decision.tell(event)
    if gang.phase == "running":
        batches.answer(gang, [event.local_rank], decision, "restart")
    batches.launch(gang, decision)


def _faulted(gang: Gang, event: steps.RankFaulted, decision: Decision) -> None:
    """Treat a running rank as failed. The rank hangs, or was not ready in time."""
    rank = gang.ranks[event.local_rank]
    current = event.attempt == rank.attempt and event.local_rank in gang.running
    if not current or rank.told or rank.fault is not None or gang.phase not in ("starting", "running"):
        return
    rank.fault = event
    if gang.phase == "starting" and not gang.attempt:
        _fail_start(gang, event.local_rank, event.why, decision)
    else:
        decision.tell(event)
        strategy.faulted(gang, event, decision)


def _returned(gang: Gang, event: steps.RankReturned, decision: Decision) -> None:
    """Hold a rank whose function has returned, unless its exit has a consequence for the ranks that still run."""
    rank = gang.ranks[event.local_rank]
    rank.returned = True
    if rank.ready and rank.kind != "permanent":
        gang.held.add(event.local_rank)
    else:
        decision.do(steps.ReleaseRanks(frozenset({event.local_rank})))


def _fail_start(gang: Gang, local_rank: int, why: str, decision: Decision) -> None:
    """Fail the first start, because a rank was not ready in time, or failed before all ranks were ready."""
    failure = steps.StartFailed(local_rank, why)
    gang.start_failure = gang.start_failure or failure
    decision.tell(failure)
    batches.stop_gang(gang, "start_failed", decision)


def _failed_to_start(gang: Gang, event: steps.WorkerFailedToStart, decision: Decision) -> None:
    gang.move(event.local_rank, "ended")
    decision.tell(event)
    if gang.ranks[event.local_rank].attempt:
        _life_failed_to_start(gang, event, decision)
        return
    batches.advance(gang, event.local_rank, decision)
    gang.start_failure = gang.start_failure or event
    batches.stop_gang(gang, "start_failed", decision)


def _not_assembled(gang: Gang, event: steps.NotAssembled, decision: Decision) -> None:
    """Treat an attempt that has no files or actors like a failed launch of the first rank that restarts."""
    local_rank = next(number for number in range(gang.nprocs) if not gang.is_left_out(number))
    gang.stop.state = "swept"  # no process was started since the last sweep
    _failed_to_start(gang, steps.WorkerFailedToStart(local_rank, event.error, event.at_ns, gang.attempt), decision)


def _life_failed_to_start(gang: Gang, event: steps.WorkerFailedToStart, decision: Decision) -> None:
    """Treat a failed launch of a later life as a failure of the rank."""
    rank = gang.ranks[event.local_rank]
    why = f"attempt {rank.attempt} could not be started: {text_of(event.error)}"
    rank.end = say.WorkerExited(
        local_rank=event.local_rank, pid=0, exitcode=None, ended_ns=event.at_ns, complaint=why, attempt=rank.attempt
    )
    rank.by_itself = not (rank.told or gang.stop.signaled)
    gang.ended[event.local_rank] = None
    _after_end(gang, event.local_rank, decision)


def _exited(gang: Gang, event: say.WorkerExited, decision: Decision) -> None:
    rank = gang.ranks[event.local_rank]
    spontaneous = by_itself(gang, event)
    decision.tell(steps.RankExited(event, spontaneous, gang.failed(event), rank.started_ns))
    if event.local_rank in gang.unkillable:
        return
    gang.move(event.local_rank, "ended")
    gang.ended[event.local_rank] = None
    rank.end, rank.by_itself = event, spontaneous
    if event.group_left:
        gang.leftovers.add(event.local_rank)
    _after_end(gang, event.local_rank, decision)


def _after_end(gang: Gang, local_rank: int, decision: Decision) -> None:
    batches.advance(gang, local_rank, decision)
    if gang.phase == "starting" and (gang.notifies or gang.ranks[local_rank].pid is None):
        _ended_in_start(gang, local_rank, decision)
    if gang.phase == "running":
        if gang.stop_on_failure:
            strategy.heed(gang, local_rank, decision)
        batches.launch(gang, decision)


def _ended_in_start(gang: Gang, local_rank: int, decision: Decision) -> None:
    """Handle a rank that ended before all ranks were ready. The start does not wait for this rank any more."""
    rank = gang.ranks[local_rank]
    if rank.end is None or not gang.failed(rank.end):
        return
    harmless = rank.kind == "temporary" and rank.ready and gang.policy is not None
    if gang.attempt or harmless:
        strategy.heed(gang, local_rank, decision)
    else:
        _fail_start(gang, local_rank, "ended before all ranks were ready" if rank.ready else NOT_READY, decision)


def by_itself(gang: Gang, event: say.WorkerExited) -> bool:
    """Return whether a rank whose exit is reported now had ended before the first signal of supervise."""
    rank = gang.ranks[event.local_rank]
    excused_ns = rank.excused_ns
    if rank.told:
        return False
    if excused_ns is not None and event.ended_ns >= excused_ns:
        return False
    return not gang.stop.signaled or event.ended_ns < gang.reaped_ns


def _heed_all(gang: Gang, decision: Decision) -> None:
    """Apply the strategy to the ends so far, in their order."""
    for local_rank in list(gang.ended) if gang.stop_on_failure else ():
        if gang.phase == "running":
            strategy.heed(gang, local_rank, decision)


# The life of a gang


def _settle(gang: Gang, decision: Decision) -> None:  # noqa: C901 - one condition a phase
    """Leave the present phase if the condition for its end is met."""
    if gang.phase == "starting" and not (any(gang.queue) or gang.starting or gang.unready):
        gang.phase = "running"
        decision.do(steps.AnswerStart())
        _heed_all(gang, decision)
        if gang.phase == "running":
            _resume(gang, decision)
    if gang.held and gang.phase == "running" and gang.all_returned:
        decision.do(steps.ReleaseRanks(frozenset(gang.held)))
        gang.held.clear()
    if gang.services:
        strategy.stop_idle(gang, decision)
    if gang.stop.order in batches.IN_TURN:
        batches.proceed(gang, gang.stop, decision)
    stopped = gang.phase == "stopping" and (gang.stop.signaled or gang.drain.begun)
    if (gang.phase == "running" or stopped) and gang.idle:
        _conclude(gang, decision)
    if gang.drain.lasting and gang.phase in ("restarting", "finished"):
        batches.drain_leftovers(gang, decision)
        return
    if gang.phase == "restarting" and not gang.leftovers:
        _restart(gang, decision)
    if gang.phase == "finished" and not gang.leftovers:
        if not gang.end_asked or gang.stop.state == "swept":
            decision.do(steps.AnswerClose())
        else:
            batches.sweep(gang.stop, decision)


def _conclude(gang: Gang, decision: Decision) -> None:
    """Drain the Tails after all ranks have ended, then restart or finish."""
    drain = gang.drain
    if not drain.begun:
        drain.begun = True
        decision.do(steps.DrainTails())
        if drain.values:
            decision.do(steps.LoadValues())
        if gang.end_asked and drain.pending:
            decision.do(batches.drain_timer(gang.stop.timeout_s))
    if drain.pending:
        return
    if may_restart(gang):
        gang.phase = "restarting"
    else:
        batches.finish(gang, decision)


# Restarts


def may_restart(gang: Gang) -> bool:
    """Return whether all ranks restart. They do if one of them failed and neither a close nor a timeout came."""
    policy = gang.policy
    if policy is None or gang.end_asked or gang.stop.reason != "peer_failed" or gang.unkillable:
        return False
    if gang.strategy != "one_for_all":
        return False
    return not gang.backoff.gives_up(policy, _end_ns(gang), _cause_codes(gang, judge(gang)))


def _cancel_restart(gang: Gang, reason: steps.Reason) -> None:
    """Let the success of a permanent rank, after which all ranks were to start again, be no cause of the gang's end."""
    pending = gang.phase == "restarting" or (gang.phase != "finished" and may_restart(gang))
    if gang.culprit is not None and pending:
        gang.culprit, gang.stop.reason = None, reason


def _cause_codes(gang: Gang, verdict: steps.Verdict) -> list[int | None]:
    """Return the exit codes that caused the restart, that of the root cause first.

    None for a rank that failed while it ran.
    """
    ranks = [gang.ranks[number] for number in verdict.blamed]
    ranks = [rank for rank in ranks if rank.kind != "temporary"] or ranks
    return [rank.end.exitcode if rank.fault is None and rank.end is not None else None for rank in ranks]


def _end_ns(gang: Gang) -> int:
    return max(end.ended_ns for end in gang.ends)


def _restart(gang: Gang, decision: Decision) -> None:
    """Sweep, then announce the restart. The process groups of this attempt are empty."""
    # A process that survived SIGKILL may hold a port or a GPU that the next attempt needs
    if gang.unkillable or gang.policy is None:
        batches.finish(gang, decision)
    elif gang.stop.state != "swept":
        batches.sweep(gang.stop, decision)
    elif not gang.restart_announced:
        verdict = judge(gang)  # before a request terminates the rank that failed
        found = gang.backoff.next(gang.policy, _end_ns(gang), _cause_codes(gang, verdict))
        skipped = _begin_backoff(gang, decision)
        if gang.restarting:
            gang.restart_announced, gang.backoff = True, found
            decision.do(steps.AnnounceRestart(0.0 if skipped else found.delay_s, verdict))
        else:
            batches.finish(gang, decision)


def _next_attempt(gang: Gang, decision: Decision) -> None:
    if gang.phase != "restarting" or not gang.restart_announced:
        return
    causes = judge(gang).blamed
    for local_rank, rank in enumerate(gang.ranks):
        if gang.stays_down(rank):  # the role of the rank's end is final
            rank.heeded, rank.told = True, local_rank not in causes
    gang.attempt = gang.next_attempt
    gang.phase = "starting"
    gang.begin_attempt()
    for local_rank, rank in enumerate(gang.ranks):
        rank.restarts += not gang.is_left_out(local_rank)
    decision.do(steps.Assemble())


# The requests to restart or to terminate ranks


_TERMINATED = "ended because of a later request to terminate"


def _asked(gang: Gang, event: steps.RanksAsked, decision: Decision) -> None:
    """Restart exactly these ranks, or stop them and keep them down.

    The request is answered when all of them have started again, or when nothing of them is left.
    """
    ask = gang.asks[event.key] = Ask(event.kind, event.ranks, gang.attempt)
    if gang.phase == "running":
        _carry_out(gang, ask, decision)
    elif gang.phase == "finished" or gang.end_asked:
        batches.fail_all_asks(gang, decision)
    elif ask.kind == "restart" and gang.phase != "starting":  # the coming restart of all ranks starts these, too
        _lift(gang, ask.ranks)
        if gang.restart_announced:
            decision.do(steps.SetTimer(name="backoff", delay_s=0.0))
    elif ask.kind == "terminate" and gang.restart_announced:
        _terminate_in_backoff(gang, ask.ranks, decision)
        if not gang.restarting:
            batches.finish(gang, decision)


def _carry_out(gang: Gang, ask: Ask, decision: Decision) -> None:
    ask.begun = True
    if ask.kind == "restart":
        _restart_now(gang, ask.pending, decision)
    else:
        _terminate_now(gang, ask, decision)


def _restart_now(gang: Gang, ranks: Iterable[int], decision: Decision) -> None:
    fresh = []
    _lift(gang, ranks)
    for local_rank in sorted(ranks):
        found = gang.batch_of.get(local_rank)
        if found is not None:
            found.down.discard(local_rank)
            if found.state == "swept":
                decision.do(steps.SetTimer(name="backoff", delay_s=0.0, key=found.number))
        elif not gang.is_queued(local_rank):
            fresh.append(local_rank)
    if fresh:
        batches.stop(gang, fresh, decision)


def _lift(gang: Gang, ranks: Iterable[int]) -> None:
    """Let terminated ranks start again."""
    for rank in (gang.ranks[local_rank] for local_rank in ranks):
        if rank.terminated:
            rank.terminated, rank.caused = False, "terminated"


def _terminate_in_backoff(gang: Gang, ranks: Iterable[int], decision: Decision) -> None:
    """Keep these ranks down when all ranks restart. No process of these ranks is left."""
    batches.fail_asks(gang, ranks, decision, _TERMINATED)
    for local_rank in gang.restarting.intersection(ranks):
        gang.ranks[local_rank].terminated = True
    batches.answer(gang, ranks, decision, "terminate")


def _terminate_now(gang: Gang, ask: Ask, decision: Decision) -> None:
    batches.fail_asks(gang, ask.ranks, decision, _TERMINATED)
    fresh = []
    for local_rank in sorted(ask.ranks):
        found = gang.batch_of.get(local_rank)
        if found is not None:
            gang.ranks[local_rank].terminated = True
            found.down.add(local_rank)
        elif gang.is_queued(local_rank):
            gang.ranks[local_rank].terminated = True
            gang.dequeue((local_rank,))
        elif local_rank in gang.running or local_rank in gang.starting:
            gang.ranks[local_rank].terminated = True
            fresh.append(local_rank)
    if fresh:
        batches.stop(gang, fresh, decision).down.update(fresh)
    for number in {gang.batch_of[rank].number for rank in ask.ranks if rank in gang.batch_of}:
        if gang.batches[number].state == "swept":
            batches.leave_down(gang, gang.batches[number], decision)
    batches.answer(gang, [rank for rank in ask.ranks if rank not in gang.batch_of], decision, "terminate")


def _begin_backoff(gang: Gang, decision: Decision) -> bool:
    """Carry out the requests that came while all ranks were being stopped.

    Return whether one of these requests skips the backoff.
    """
    waiting, gang.asks = gang.asks, {}
    for key, ask in waiting.items():  # a termination fails the earlier requests only
        gang.asks[key] = ask
        if ask.kind == "restart":
            _lift(gang, ask.pending)
        else:
            _terminate_in_backoff(gang, ask.ranks, decision)
    return bool(gang.asks)


def _resume(gang: Gang, decision: Decision) -> None:
    """Carry out the requests that came before the gang ran.

    A restart of all ranks fulfills the earlier requests to restart ranks. The ranks that this restart has left out are
    the exception.
    """
    waiting, gang.asks = gang.asks, {}
    for key, ask in waiting.items():  # a termination fails the earlier requests only
        gang.asks[key] = ask
        if ask.kind == "restart" and ask.attempt < gang.attempt:
            ask.pending = {rank for rank in ask.pending if gang.is_left_out(rank)}
        if ask.pending:
            _carry_out(gang, ask, decision)
        else:
            del gang.asks[key]
            decision.do(steps.AnswerAsk(key=key, ranks=ask.ranks))
