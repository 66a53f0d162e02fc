"""Differences planted in the live core; most break no invariant of the model. The comparison must find each."""

from typing import Any
from unittest.mock import patch

from supervise._core import decide, steps, stopping


def a_later_close_lengthens_the_grace() -> Any:
    """A further close may shorten the grace, never lengthen it."""
    old = stopping._hurry

    def hurry(gang: Any, event: Any, decision: Any) -> None:
        gang.stop.timeout_s = event.timeout_s + 1
        old(gang, event, decision)

    return patch.object(stopping, "_hurry", hurry)


def the_logs_have_no_least_time() -> Any:
    """A close that is in a hurry gives the logs a second all the same."""
    return patch.object(stopping, "_MIN_DRAIN_S", 0.0)


def a_rank_that_starts_during_a_stop_is_told_nothing() -> Any:
    """The polite signal also reaches a rank whose launch was under way."""
    old = stopping.signal_started

    def started(gang: Any, local_rank: int, decision: Any) -> None:
        if gang.stop.killed:
            old(gang, local_rank, decision)

    return patch.object(stopping, "signal_started", started)


def the_census_comes_behind_the_other_actions() -> Any:
    """The order of actions counts."""
    old = decide.decide

    def reversed_actions(gang: Any, event: Any) -> Any:
        decision = old(gang, event)
        decision.actions.sort(key=lambda action: type(action) is steps.ReapAll)
        return decision

    return patch("tests.model.live.decide", reversed_actions)


def a_rank_that_left_a_group_behind_has_not_ended_by_itself() -> Any:
    """The blame: which ranks had ended before stopping began."""
    old = decide.by_itself
    return patch.object(decide, "by_itself", lambda gang, event: old(gang, event) and not event.group_left)


PLANTED = (
    a_later_close_lengthens_the_grace,
    the_logs_have_no_least_time,
    a_rank_that_starts_during_a_stop_is_told_nothing,
    the_census_comes_behind_the_other_actions,
    a_rank_that_left_a_group_behind_has_not_ended_by_itself,
)
