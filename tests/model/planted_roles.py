"""Bugs that the order of roles must not have, put into the core for a while: the search must find each."""

from typing import Any
from unittest.mock import patch

from supervise._core import restart_sets, role_close, services
from supervise._core.model import Gang


def a_role_is_launched_too_early() -> Any:
    """A role waits for the one below it."""
    return patch.object(Gang, "may_launch", lambda gang, _rank: len(gang.starting) < gang.window)


def a_service_is_left_running() -> Any:
    """Services end after all others."""
    return patch.object(services, "stop_idle", lambda _gang, _decision: None)


def a_service_is_stopped_with_the_others() -> Any:
    """Services serve as long as another rank runs."""

    def early(gang: Any, decision: Any) -> None:
        ranks = [rank for rank in gang.services if rank in gang.running and not gang.ranks[rank].told]
        if gang.phase == "running" and ranks:
            restart_sets.stop_for_good(gang, ranks, decision)

    return patch.object(services, "stop_idle", early)


def a_stopped_service_is_no_success() -> Any:
    """The result is a success."""
    old = services.stop_idle

    def forget(gang: Any, decision: Any) -> None:
        old(gang, decision)
        for rank in gang.services:
            gang.ranks[rank].dismissed = False

    return patch.object(services, "stop_idle", forget)


def a_close_signals_the_first_role_first() -> Any:
    """The last role is closed first."""
    old = role_close.proceed

    def inverted(gang: Any, decision: Any) -> None:
        gang.role_of, kept = tuple(gang.roles - 1 - role for role in gang.role_of), gang.role_of
        old(gang, decision)
        gang.role_of = kept

    return patch.object(role_close, "proceed", inverted)


def a_close_stays_at_the_last_role() -> Any:
    """A close ends."""
    old = role_close.proceed

    def once(gang: Any, decision: Any) -> None:
        if gang.stop.turn == gang.roles:
            old(gang, decision)

    return patch.object(role_close, "proceed", once)


def a_grace_of_one_role_kills_all() -> Any:
    """Each role has its grace."""
    return patch.object(role_close, "kill", lambda _gang, _decision: False)


PLANTED_IN_ROLES = (
    a_role_is_launched_too_early,
    a_service_is_left_running,
    a_service_is_stopped_with_the_others,
    a_stopped_service_is_no_success,
    a_close_signals_the_first_role_first,
    a_close_stays_at_the_last_role,
    a_grace_of_one_role_kills_all,
)
