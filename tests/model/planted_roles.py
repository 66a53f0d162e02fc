"""Bugs that the order of roles must not have, put into the core for a while: the search must find each."""

from typing import Any
from unittest.mock import patch

from supervise._core import batches, strategy
from supervise._core.model import Gang


def a_role_is_launched_too_early() -> Any:
    """A role waits for those that it needs."""
    return patch.object(Gang, "may_launch", lambda gang, _role: len(gang.starting) < gang.window)


def a_launch_ignores_a_need_that_is_not_launched_yet() -> Any:
    """A role waits for those that it needs, also if they come later in the file."""

    def ignoring(gang: Any, role: int) -> bool:
        busy = gang.starting | gang.unready
        return len(gang.starting) < gang.window and all(gang.role_of[rank] not in gang.needs[role] for rank in busy)

    return patch.object(Gang, "may_launch", ignoring)


def a_stop_signals_a_role_before_one_that_needs_it_is_gone() -> Any:
    """A role is stopped after those that need it."""
    old = batches.proceed

    def too_early(gang: Any, *rest: Any) -> None:
        gang.needed_by, kept = tuple(frozenset(list(roles)[1:]) for roles in gang.needed_by), gang.needed_by
        old(gang, *rest)
        gang.needed_by = kept

    return patch.object(batches, "proceed", too_early)


def a_role_that_nothing_needs_waits_for_another() -> Any:
    """Roles without a way between them are stopped at the same time."""
    old = batches.proceed

    def one_by_one(gang: Any, *rest: Any) -> None:
        every = range(gang.roles)
        gang.needed_by, kept = tuple(frozenset(every[role + 1 :]) for role in every), gang.needed_by
        old(gang, *rest)
        gang.needed_by = kept

    return patch.object(batches, "proceed", one_by_one)


def a_service_is_left_running() -> Any:
    """Services end after all others."""
    return patch.object(strategy, "stop_idle", lambda _gang, _decision: None)


def a_service_is_stopped_with_the_others() -> Any:
    """Services serve as long as another rank runs."""

    def early(gang: Any, decision: Any) -> None:
        ranks = [rank for rank in gang.services if rank in gang.running and not gang.ranks[rank].told]
        if gang.phase == "running" and ranks:
            batches.stop_for_good(gang, ranks, decision)

    return patch.object(strategy, "stop_idle", early)


def a_stopped_service_is_no_success() -> Any:
    """The result is a success."""
    old = strategy.stop_idle

    def forget(gang: Any, decision: Any) -> None:
        old(gang, decision)
        for rank in gang.services:
            gang.ranks[rank].dismissed = False

    return patch.object(strategy, "stop_idle", forget)


def a_close_signals_the_first_role_first() -> Any:
    """The last role is closed first."""
    old = batches.proceed

    def inverted(gang: Any, *rest: Any) -> None:
        gang.needed_by, kept = gang.needs, gang.needed_by
        old(gang, *rest)
        gang.needed_by = kept

    return patch.object(batches, "proceed", inverted)


def a_close_stays_at_the_last_role() -> Any:
    """A close ends."""
    old = batches.proceed

    def once(gang: Any, batch: Any, *rest: Any) -> None:
        if not batch.roles:
            old(gang, batch, *rest)

    return patch.object(batches, "proceed", once)


def a_grace_of_one_role_kills_all() -> Any:
    """Each role has its grace."""
    old = batches.kill
    return patch.object(
        batches, "kill", lambda gang, batch, _roles, decision: old(gang, batch, range(gang.roles), decision)
    )


PLANTED_IN_ROLES = (
    a_role_is_launched_too_early,
    a_launch_ignores_a_need_that_is_not_launched_yet,
    a_stop_signals_a_role_before_one_that_needs_it_is_gone,
    a_role_that_nothing_needs_waits_for_another,
    a_service_is_left_running,
    a_service_is_stopped_with_the_others,
    a_stopped_service_is_no_success,
    a_close_signals_the_first_role_first,
    a_close_stays_at_the_last_role,
    a_grace_of_one_role_kills_all,
)
