"""The requests to restart or to terminate ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervise._core import batches, steps, stopping
from supervise._core.model import Ask, Gang

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervise._core.steps import Decision


_TERMINATED = "a later request terminated one of the ranks"


def restart_asked(gang: Gang, event: steps.RestartAsked, decision: Decision) -> None:
    """Restart exactly these ranks. The request is answered when all of them have started again."""
    gang.asks[event.key] = Ask("restart", event.ranks, gang.attempt)
    if gang.phase == "running":
        _restart_now(gang, event.ranks, decision)
    elif gang.phase == "finished" or gang.end_asked:
        stopping.fail_asks(gang, decision)
    elif gang.phase != "starting":  # the coming restart of all ranks starts these, too
        _lift(gang, event.ranks)
        if gang.restart_announced:
            decision.do(steps.SetTimer(name="backoff", delay_s=0.0))


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


def terminate_asked(gang: Gang, event: steps.TerminateAsked, decision: Decision) -> None:
    """Stop exactly these ranks, and keep them down. The request is answered when nothing of them is left."""
    ask = gang.asks[event.key] = Ask("terminate", event.ranks, gang.attempt)
    if gang.phase == "running":
        _terminate_now(gang, ask, decision)
    elif gang.phase == "finished" or gang.end_asked:
        stopping.fail_asks(gang, decision)
    elif gang.restart_announced:
        _terminate_in_backoff(gang, ask.ranks, decision)
        if not gang.restarting:
            stopping.finish(gang, decision)


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


def begin_backoff(gang: Gang, decision: Decision) -> bool:
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


def resume(gang: Gang, decision: Decision) -> None:
    """Carry out the requests that came before the gang ran.

    A restart of all ranks fulfills the earlier requests to restart ranks. The ranks that this restart has left out are
    the exception.
    """
    waiting, gang.asks = gang.asks, {}
    for key, ask in waiting.items():  # a termination fails the earlier requests only
        gang.asks[key] = ask
        if ask.kind == "terminate":
            _terminate_now(gang, ask, decision)
        elif ask.attempt < gang.attempt:
            ask.pending = {rank for rank in ask.pending if gang.is_left_out(rank)}
            if ask.pending:
                _restart_now(gang, ask.pending, decision)
            else:
                del gang.asks[key]
                decision.do(steps.AnswerAsk(key=key, ranks=ask.ranks))
        else:
            _restart_now(gang, ask.ranks, decision)
