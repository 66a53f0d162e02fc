"""The interface of a gang's runner for the health of its ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from supervise._core import steps
    from supervise._core.model import Gang
    from supervise._gang.attempt import Attempt
    from supervise._gang.event_emitter import EventEmitter
    from supervise._gang.ranks import RankActors


class Host(Protocol):
    """What the health of ranks needs of the gang's runner. Used on the gang's loop."""

    attempt: Attempt
    """The present attempt of the gang."""
    gang: Gang
    events: EventEmitter
    ranks: RankActors

    def step(self, event: steps.Event) -> None:
        """Decide on an event."""
