"""Bugs of the kinds that single restarts must not have, put into the core for a while: the search must find each."""

from typing import Any
from unittest.mock import patch

from supervise._core import decide, restart_sets, steps, stopping, strategy
from supervise._core.model import Gang


def _instead(name: str, new: Any, module: Any = restart_sets) -> Any:
    """Replace a function of the core by `new`, which is given the old one first."""
    old = getattr(module, name)
    return patch.object(module, name, lambda *args, **more: new(old, *args, **more))


def a_restart_is_not_counted() -> Any:
    """The intensity is never exceeded."""

    def forget(old: Any, gang: Any, *rest: Any) -> None:
        old(gang, *rest)
        gang.restarts_ns = ()

    return _instead("_restart", forget, strategy)


def a_set_does_not_wait_for_its_ranks() -> Any:
    """Never two lives of a rank."""

    def at_once(old: Any, gang: Any, found: Any, decision: Any) -> None:
        found.pending = set()
        old(gang, found, decision)

    return _instead("check_empty", at_once)


def a_set_is_not_swept() -> Any:
    """What a life has left is gone before the next begins."""

    def unswept(_old: Any, gang: Any, found: Any, decision: Any) -> None:
        if found.state == "stopping" and not found.pending:
            found.state = "sweeping"
            restart_sets.swept(gang, steps.RanksSwept(found.number), decision)

    return _instead("check_empty", unswept)


def a_request_is_never_answered() -> Any:
    """Every ask is answered."""
    return _instead("answer", lambda _old, *_: None)


def a_close_does_not_answer_requests() -> Any:
    """Every ask is answered."""
    return _instead("fail_asks", lambda _old, *_: None, stopping)


def a_close_does_not_end_the_restarts() -> Any:
    """No restart after the end was asked for."""

    def keep(old: Any, gang: Any, event: Any, decision: Any) -> None:
        sets, set_of, queue = gang.sets, gang.set_of, gang.queue
        old(gang, event, decision)
        gang.sets, gang.set_of, gang.queue = sets, set_of, queue

    return _instead("_stop", keep, stopping)


def the_lower_ranks_are_stopped_too() -> Any:
    """The strategy says who is stopped."""

    def everyone(old: Any, gang: Any, ranks: Any, decision: Any) -> Any:
        return old(gang, range(gang.nprocs) if len(ranks) > 1 or ranks[0] else ranks, decision)

    return _instead("begin", everyone)


def a_rank_that_a_restart_stopped_is_blamed() -> Any:
    """The root cause is not a victim."""

    def untold(old: Any, gang: Any, *rest: Any) -> Any:
        made = old(gang, *rest)
        for rank in made.ranks:
            gang.ranks[rank].told = False
        return made

    return _instead("begin", untold)


def a_terminated_rank_starts_again() -> Any:
    """A terminated rank stays down."""

    def forget(old: Any, gang: Any, found: Any, decision: Any) -> None:
        found.down = set()
        old(gang, found, decision)

    return _instead("leave_down", forget)


def a_temporary_rank_starts_again_with_all() -> Any:
    """A restart of all ranks leaves it out."""
    return patch.object(Gang, "stays_down", lambda _self, rank: rank.terminated)


def a_failed_launch_answers_a_request() -> Any:
    """A restart is answered when the ranks run again."""

    def answered(old: Any, gang: Any, event: Any, decision: Any) -> None:
        restart_sets.ready(gang, event.local_rank, decision)
        old(gang, event, decision)

    return _instead("_life_failed_to_start", answered, decide)


PLANTED_IN_LIVES = (
    a_restart_is_not_counted,
    a_set_does_not_wait_for_its_ranks,
    a_set_is_not_swept,
    a_request_is_never_answered,
    a_close_does_not_answer_requests,
    a_close_does_not_end_the_restarts,
    the_lower_ranks_are_stopped_too,
    a_rank_that_a_restart_stopped_is_blamed,
    a_terminated_rank_starts_again,
    a_temporary_rank_starts_again_with_all,
    a_failed_launch_answers_a_request,
)
