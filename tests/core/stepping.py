"""The core as tests of it see it: a decision changes a copy of the gang, so that a test can go on from any moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervise._core import decide as core
from supervise._core.model import Gang
from supervise._core.steps import TailsStarted, TimerExpired
from tests.model.live import copied

if TYPE_CHECKING:
    from supervise._core.steps import Action


def decide(gang: Gang, event: Any) -> tuple[Gang, list[Action]]:
    """Return the gang after an event, the same object if nothing has changed, and what must be done."""
    after: Gang = copied(gang)
    actions = core.decide(after, event).actions
    return (gang if _state(after) == _state(gang) else after), actions


def run(gang: Gang, *events: Any) -> tuple[Gang, list[Action]]:
    """Return the gang after all events, and all that must be done."""
    done: list[Action] = []
    for event in events:
        gang, actions = decide(gang, event)
        done += actions
    return gang, done


def expired(name: Any) -> TimerExpired:
    """Return the expiry of a timer of the gang."""
    return TimerExpired(name=name)


def with_tails(gang: Gang, count: int) -> Gang:
    """Return the gang with this many Tails to wait for."""
    return decide(gang, TailsStarted(tails=count))[0]


def _state(value: Any) -> Any:
    """Return a gang, or a part of one, as something that can be compared."""
    if isinstance(value, list):
        return [_state(each) for each in value]
    if type(value).__module__ != Gang.__module__ or isinstance(value, tuple):
        return value
    names = vars(value) if isinstance(value, Gang) else value.__slots__
    return {name: _state(getattr(value, name)) for name in names}
