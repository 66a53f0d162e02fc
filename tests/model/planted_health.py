"""Bugs that readiness and faults must not have, put into the core for a while: the search must find each."""

from typing import Any
from unittest.mock import patch

from supervise._core import batches, decide, strategy
from supervise._core.model import Gang


def _instead(owner: Any, name: str, new: Any) -> Any:
    """Replace a function of the core by `new`, which is given the old one first."""
    old = getattr(owner, name)
    return patch.object(owner, name, lambda *args, **more: new(old, *args, **more))


def the_start_does_not_wait_for_readiness() -> Any:
    """The reply to a start means that all ranks are ready."""

    def forget(old: Any, gang: Any, *rest: Any) -> None:
        old(gang, *rest)
        gang.unready.clear()

    return _instead(Gang, "move", forget)


def an_end_before_readiness_is_a_success() -> Any:
    """A rank that ends before it is ready has failed, whatever its code."""
    return _instead(Gang, "failed", lambda _old, _gang, end: end.exitcode != 0)


def a_request_is_answered_before_readiness() -> Any:
    """A restart is answered when the ranks are ready."""

    def early(old: Any, gang: Any, event: Any, decision: Any) -> None:
        old(gang, event, decision)
        if gang.phase == "running" and event.local_rank not in gang.batch_of:
            batches.ready(gang, event.local_rank, decision)

    return _instead(decide, "_started", early)


def a_rank_that_hangs_is_left_alone() -> Any:
    """A rank that hangs is stopped."""
    return _instead(strategy, "faulted", lambda _old, *_: None)


def a_rank_that_hung_is_not_blamed() -> Any:
    """A fault is a cause, whatever the exit code."""

    def forget(old: Any, gang: Any, event: Any, decision: Any) -> None:
        old(gang, event, decision)
        gang.ranks[event.local_rank].fault = None

    return _instead(decide, "_faulted", forget)


PLANTED_IN_HEALTH = (
    the_start_does_not_wait_for_readiness,
    an_end_before_readiness_is_a_success,
    a_request_is_answered_before_readiness,
    a_rank_that_hangs_is_left_alone,
    a_rank_that_hung_is_not_blamed,
)
