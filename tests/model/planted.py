"""Bugs of the kinds that a supervisor must not have, put into the core for a while: the search must find each."""

from typing import Any
from unittest.mock import patch

from supervise._core import batches, decide, steps, strategy, verdict
from supervise._core.model import Gang


def _instead(name: str, new: Any, owner: Any = decide) -> Any:
    """Replace a function of the core by `new`, which is given the old one first."""
    old = getattr(owner, name)
    return patch.object(owner, name, lambda *args, **more: new(old, *args, **more))


def a_victim_of_our_signal_is_blamed() -> Any:
    """The root cause is the first cause."""
    return _instead("by_itself", lambda _old, _gang, _event: True)


def the_last_cause_is_the_root() -> Any:
    """The root cause is the first cause."""
    return _instead("_when", lambda old, gang, end: tuple(-stamp for stamp in old(gang, end)), verdict)


def a_restart_wins_over_a_close() -> Any:
    """No restart after the end was asked for."""

    def unasked(old: Any, gang: Any) -> Any:
        asked, gang.end_asked = gang.end_asked, False
        found = old(gang)
        gang.end_asked = asked
        return found

    return _instead("may_restart", unasked)


def a_restart_is_not_counted() -> Any:
    """The intensity is never exceeded."""

    def forget(old: Any, gang: Any, decision: Any) -> None:
        old(gang, decision)
        gang.backoff = gang.backoff._replace(counted_ns=())

    return _instead("_next_attempt", forget)


def a_restart_does_not_wait_for_the_groups() -> Any:
    """Nothing of one attempt lives when the next begins."""

    def without_leftovers(old: Any, gang: Any, event: Any, decision: Any) -> None:
        old(gang, event, decision)
        gang.leftovers.clear()

    return _instead("_exited", without_leftovers)


def sigkill_goes_to_who_has_ended() -> Any:
    """No signal to a rank that does not run."""
    return _instead(
        "_kill_ranks",
        lambda old, gang, batch, _ranks, decision: old(
            gang, batch, {n for n, rank in enumerate(gang.ranks) if rank.state != "waiting"}, decision
        ),
        batches,
    )


def what_sigkill_does_not_end_is_awaited_for_ever() -> Any:
    """Every path can end, whatever the processes do."""
    return _instead("_report_unkillable", lambda _old, *_: None, batches)


def a_close_in_the_backoff_is_forgotten() -> Any:
    """Every ask is answered."""

    def forget(old: Any, gang: Any, event: Any, decision: Any) -> None:
        if gang.phase != "restarting":
            old(gang, event, decision)

    return _instead("_close_in_phase", forget, batches)


def a_rank_is_launched_twice() -> Any:
    """Never two lives of a rank."""

    def twice(old: Any, gang: Any, decision: Any) -> None:
        old(gang, decision)
        decision.do(*decision.actions)

    return _instead("launch", twice, batches)


def the_result_is_published_twice() -> Any:
    """One result."""

    def twice(old: Any, gang: Any, decision: Any) -> None:
        old(gang, decision)
        decision.do(steps.Publish())

    return _instead("finish", twice, batches)


def a_failed_restart_is_an_error() -> Any:
    """Only the first start fails as a start."""

    def as_first(old: Any, gang: Any, event: Any, decision: Any) -> None:
        rank = gang.ranks[event.local_rank]
        attempt, rank.attempt = rank.attempt, 0
        old(gang, event, decision)
        rank.attempt = attempt

    return _instead("_failed_to_start", as_first)


def a_restart_that_cannot_be_assembled_is_forgotten() -> Any:
    """Every path can end."""
    return _instead("_not_assembled", lambda _old, *_: None)


PLANTED = (
    a_victim_of_our_signal_is_blamed,
    the_last_cause_is_the_root,
    a_restart_wins_over_a_close,
    a_restart_is_not_counted,
    a_restart_does_not_wait_for_the_groups,
    sigkill_goes_to_who_has_ended,
    what_sigkill_does_not_end_is_awaited_for_ever,
    a_close_in_the_backoff_is_forgotten,
    a_rank_is_launched_twice,
    the_result_is_published_twice,
    a_failed_restart_is_an_error,
    a_restart_that_cannot_be_assembled_is_forgotten,
)


# Bugs that readiness and faults must not have


def the_start_does_not_wait_for_readiness() -> Any:
    """The reply to a start means that all ranks are ready."""

    def forget(old: Any, gang: Any, *rest: Any) -> None:
        old(gang, *rest)
        gang.unready.clear()

    return _instead("move", forget, Gang)


def an_end_before_readiness_is_a_success() -> Any:
    """A rank that ends before it is ready has failed, whatever its code."""
    return _instead("failed", lambda _old, _gang, end: end.exitcode != 0, Gang)


def a_request_is_answered_before_readiness() -> Any:
    """A restart is answered when the ranks are ready."""

    def early(old: Any, gang: Any, event: Any, decision: Any) -> None:
        old(gang, event, decision)
        if gang.phase == "running" and event.local_rank not in gang.batch_of:
            batches.answer(gang, [event.local_rank], decision, "restart")

    return _instead("_started", early)


def a_rank_that_hangs_is_left_alone() -> Any:
    """A rank that hangs is stopped."""
    return _instead("faulted", lambda _old, *_: None, strategy)


def a_rank_that_hung_is_not_blamed() -> Any:
    """A fault is a cause, whatever the exit code."""

    def forget(old: Any, gang: Any, event: Any, decision: Any) -> None:
        old(gang, event, decision)
        gang.ranks[event.local_rank].fault = None

    return _instead("_faulted", forget)


PLANTED_IN_HEALTH = (
    the_start_does_not_wait_for_readiness,
    an_end_before_readiness_is_a_success,
    a_request_is_answered_before_readiness,
    a_rank_that_hangs_is_left_alone,
    a_rank_that_hung_is_not_blamed,
)


# Bugs of the kinds that single restarts must not have


def a_restart_of_a_rank_is_not_counted() -> Any:
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

    return _instead("_sweep_if_empty", at_once, batches)


def a_batch_is_not_swept() -> Any:
    """What a life has left is gone before the next begins."""

    def unswept(old: Any, batch: Any, decision: Any) -> None:
        if not batch.number:
            old(batch, decision)
        elif batch.state == "stopping":
            batch.state = "swept"
            decision.do(steps.AnnounceRestarts(batch.number, tuple(sorted(batch.ranks - batch.down)), 0.0))

    return _instead("sweep", unswept, batches)


def a_request_is_never_answered() -> Any:
    """Every ask is answered."""
    return _instead("answer", lambda _old, *_: None, batches)


def a_close_does_not_answer_requests() -> Any:
    """Every ask is answered."""
    return _instead("fail_all_asks", lambda _old, *_: None, batches)


def a_close_does_not_end_the_restarts() -> Any:
    """No restart after the end was asked for."""

    def keep(old: Any, gang: Any, event: Any, decision: Any) -> None:
        kept = gang.batches, gang.batch_of, [dict(waiting) for waiting in gang.queue]
        old(gang, event, decision)
        gang.batches, gang.batch_of, gang.queue = kept

    return _instead("_stop_all", keep, batches)


def the_lower_ranks_are_stopped_too() -> Any:
    """The strategy says who is stopped."""

    def everyone(old: Any, gang: Any, ranks: Any, decision: Any) -> Any:
        return old(gang, range(gang.nprocs) if len(ranks) > 1 or ranks[0] else ranks, decision)

    return _instead("stop", everyone, batches)


def a_rank_that_a_restart_stopped_is_blamed() -> Any:
    """The root cause is not a victim."""

    def untold(old: Any, gang: Any, *rest: Any) -> Any:
        made = old(gang, *rest)
        for rank in made.ranks:
            gang.ranks[rank].told = False
        return made

    return _instead("stop", untold, batches)


def a_terminated_rank_starts_again() -> Any:
    """A terminated rank stays down."""

    def forget(old: Any, gang: Any, batch: Any, decision: Any) -> None:
        batch.down = set()
        old(gang, batch, decision)

    return _instead("leave_down", forget, batches)


def a_temporary_rank_starts_again_with_all() -> Any:
    """A restart of all ranks leaves it out."""
    return patch.object(Gang, "stays_down", lambda _self, rank: rank.terminated)


def a_failed_launch_answers_a_request() -> Any:
    """A restart is answered when the ranks run again."""

    def answered(old: Any, gang: Any, event: Any, decision: Any) -> None:
        batches.answer(gang, [event.local_rank], decision, "restart")
        old(gang, event, decision)

    return _instead("_life_failed_to_start", answered, decide)


def a_batch_forgets_who_was_signaled_in_the_batches_that_it_takes_over() -> Any:
    """A rank gets the first signal once."""
    return _instead("begin", lambda old, gang, batch, decision, *_told: old(gang, batch, decision), batches)


def a_killed_batch_spares_a_late_start() -> Any:
    """SIGKILL also ends a rank that reports its start after the grace."""

    def politely(old: Any, gang: Any, local_rank: int, decision: Any) -> None:
        batch = gang.batch_of.get(local_rank, gang.stop)
        killed, batch.killed = batch.killed, set()
        old(gang, local_rank, decision)
        batch.killed = killed

    return _instead("signal_started", politely, batches)


def a_batch_has_no_deadline() -> Any:
    """SIGKILL follows when the grace is over."""
    return _instead("_limit", lambda _old, *_: None, batches)


PLANTED_IN_BATCHES = (
    a_batch_forgets_who_was_signaled_in_the_batches_that_it_takes_over,
    a_killed_batch_spares_a_late_start,
    a_batch_has_no_deadline,
)
PLANTED_IN_LIVES = (
    a_restart_of_a_rank_is_not_counted,
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
