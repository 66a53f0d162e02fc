"""Bugs of the kinds that single restarts must not have, put into the core for a while: the search must find each."""

from typing import Any
from unittest.mock import patch

from supervise._core import batches, decide, steps, stopping, strategy
from supervise._core.model import Gang


def _instead(name: str, new: Any, module: Any = batches) -> Any:
    """Replace a function of the core by `new`, which is given the old one first."""
    old = getattr(module, name)
    return patch.object(module, name, lambda *args, **more: new(old, *args, **more))


def a_restart_is_not_counted() -> Any:
    """The intensity is never exceeded."""

    def forget(old: Any, gang: Any, *rest: Any) -> None:
        old(gang, *rest)
        gang.backoff = gang.backoff._replace(counted_ns=())

    return _instead("_restart", forget, strategy)


def a_batch_does_not_wait_for_its_ranks() -> Any:
    """Never two lives of a rank."""

    def at_once(old: Any, batch: Any, decision: Any) -> None:
        batch.pending = set()
        old(batch, decision)

    return _instead("_sweep_if_empty", at_once)


def a_batch_is_not_swept() -> Any:
    """What a life has left is gone before the next begins."""

    def unswept(old: Any, batch: Any, decision: Any) -> None:
        if not batch.number:
            old(batch, decision)
        elif batch.state == "stopping":
            batch.state = "swept"
            decision.do(steps.AnnounceRestarts(batch.number, tuple(sorted(batch.ranks - batch.down)), 0.0))

    return _instead("sweep", unswept)


def a_request_is_never_answered() -> Any:
    """Every ask is answered."""
    return _instead("answer", lambda _old, *_: None)


def a_close_does_not_answer_requests() -> Any:
    """Every ask is answered."""
    return _instead("fail_asks", lambda _old, *_: None, stopping)


def a_close_does_not_end_the_restarts() -> Any:
    """No restart after the end was asked for."""

    def keep(old: Any, gang: Any, event: Any, decision: Any) -> None:
        kept = gang.batches, gang.batch_of, [dict(waiting) for waiting in gang.queue]
        old(gang, event, decision)
        gang.batches, gang.batch_of, gang.queue = kept

    return _instead("_stop", keep, stopping)


def the_lower_ranks_are_stopped_too() -> Any:
    """The strategy says who is stopped."""

    def everyone(old: Any, gang: Any, ranks: Any, decision: Any) -> Any:
        return old(gang, range(gang.nprocs) if len(ranks) > 1 or ranks[0] else ranks, decision)

    return _instead("stop", everyone)


def a_rank_that_a_restart_stopped_is_blamed() -> Any:
    """The root cause is not a victim."""

    def untold(old: Any, gang: Any, *rest: Any) -> Any:
        made = old(gang, *rest)
        for rank in made.ranks:
            gang.ranks[rank].told = False
        return made

    return _instead("stop", untold)


def a_terminated_rank_starts_again() -> Any:
    """A terminated rank stays down."""

    def forget(old: Any, gang: Any, batch: Any, decision: Any) -> None:
        batch.down = set()
        old(gang, batch, decision)

    return _instead("leave_down", forget)


def a_temporary_rank_starts_again_with_all() -> Any:
    """A restart of all ranks leaves it out."""
    return patch.object(Gang, "stays_down", lambda _self, rank: rank.terminated)


def a_failed_launch_answers_a_request() -> Any:
    """A restart is answered when the ranks run again."""

    def answered(old: Any, gang: Any, event: Any, decision: Any) -> None:
        batches.ready(gang, event.local_rank, decision)
        old(gang, event, decision)

    return _instead("_life_failed_to_start", answered, decide)


def a_batch_forgets_who_was_signaled_in_the_batches_that_it_takes_over() -> Any:
    """A rank gets the first signal once."""
    return _instead("begin", lambda old, gang, batch, decision, *_told: old(gang, batch, decision))


def a_killed_batch_spares_a_late_start() -> Any:
    """SIGKILL also ends a rank that reports its start after the grace."""

    def politely(old: Any, gang: Any, local_rank: int, decision: Any) -> None:
        batch = gang.batch_of.get(local_rank, gang.stop)
        killed, batch.killed = batch.killed, set()
        old(gang, local_rank, decision)
        batch.killed = killed

    return _instead("signal_started", politely)


def a_batch_has_no_deadline() -> Any:
    """SIGKILL follows when the grace is over."""
    return _instead("_limit", lambda _old, *_: None)


PLANTED_IN_BATCHES = (
    a_batch_forgets_who_was_signaled_in_the_batches_that_it_takes_over,
    a_killed_batch_spares_a_late_start,
    a_batch_has_no_deadline,
)
PLANTED_IN_LIVES = (
    a_restart_is_not_counted,
    a_batch_does_not_wait_for_its_ranks,
    a_batch_is_not_swept,
    a_request_is_never_answered,
    a_close_does_not_answer_requests,
    a_close_does_not_end_the_restarts,
    the_lower_ranks_are_stopped_too,
    a_rank_that_a_restart_stopped_is_blamed,
    a_terminated_rank_starts_again,
    a_temporary_rank_starts_again_with_all,
    a_failed_launch_answers_a_request,
)
