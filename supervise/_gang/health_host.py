"""The interface of the gang's runner that the health of its ranks needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from supervise._core import steps
    from supervise._core.model import Gang
    from supervise._gang.attempt import Attempt
    from supervise._gang.event_emitter import EventEmitter
    from supervise._gang.ranks import RankActors


class Host(Protocol):
    """The part of the gang's runner that is needed for the health of ranks. Used on the gang's loop."""

    attempt: Attempt
    """The present attempt of the gang."""
    gang: Gang
    events: EventEmitter
    ranks: RankActors

    def step(self, event: steps.Event) -> None:
        """Let the core decide on an event."""
