"""Bugs of the kinds that a supervisor must not have, put into the core for a while: the search must find each."""

from typing import Any
from unittest.mock import patch

from supervise._core import batches, decide, steps, stopping, verdict


def _instead(name: str, new: Any, module: Any = decide) -> Any:
    """Replace a function of the core by `new`, which is given the old one first."""
    old = getattr(module, name)
    return patch.object(module, name, lambda *args: new(old, *args))


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

    return _instead("_close_in_phase", forget, stopping)


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

    return _instead("finish", twice, stopping)


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
