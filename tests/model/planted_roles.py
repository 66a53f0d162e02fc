"""Bugs that the order of roles must not have, put into the core for a while: the search must find each."""

from typing import Any
from unittest.mock import patch

from supervise._core import batches, strategy
from supervise._core.model import Gang


def a_role_is_launched_too_early() -> Any:
    """A role waits for the one below it."""
    return patch.object(Gang, "may_launch", lambda gang, _rank: len(gang.starting) < gang.window)


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
        gang.role_of, kept = tuple(gang.roles - 1 - role for role in gang.role_of), gang.role_of
        old(gang, *rest)
        gang.role_of = kept

    return patch.object(batches, "proceed", inverted)


def a_close_stays_at_the_last_role() -> Any:
    """A close ends."""
    old = batches.proceed

    def once(gang: Any, batch: Any, *rest: Any) -> None:
        if batch.turn == gang.roles:
            old(gang, batch, *rest)

    return patch.object(batches, "proceed", once)


def a_grace_of_one_role_kills_all() -> Any:
    """Each role has its grace."""
    old = batches.kill
    return patch.object(batches, "kill", lambda gang, batch, _turn, decision: old(gang, batch, 0, decision))


PLANTED_IN_ROLES = (
    a_role_is_launched_too_early,
    a_service_is_left_running,
    a_service_is_stopped_with_the_others,
    a_stopped_service_is_no_success,
    a_close_signals_the_first_role_first,
    a_close_stays_at_the_last_role,
    a_grace_of_one_role_kills_all,
)
