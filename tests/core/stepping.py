"""The core as tests of it see it: a decision changes a copy of the gang, so that a test can go on from any moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervise._core import decide as core
from supervise._core.steps import TailsStarted, TimerExpired
from tests.model.live import copied

if TYPE_CHECKING:
    from supervise._core.model import Gang
    from supervise._core.steps import Action


def decide(gang: Gang, event: Any) -> tuple[Gang, list[Action]]:
    """Return the gang after an event, and what must be done."""
    after: Gang = copied(gang)
    return after, core.decide(after, event).actions


def expired(name: Any) -> TimerExpired:
    """Return the expiry of a timer of the gang."""
    return TimerExpired(name=name)


def with_tails(gang: Gang, count: int) -> Gang:
    """Return the gang with this many Tails to wait for."""
    return decide(gang, TailsStarted(count=count))[0]
