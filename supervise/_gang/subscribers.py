"""The actors that receive a gang's lifecycle messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pykka

if TYPE_CHECKING:
    from supervise.messages import GangFinished


class Subscribers:
    """The subscribers of a gang.

    Each of them gets all messages of the attempt, in order. The last message is the only `GangFinished`.
    """

    def __init__(self) -> None:
        """Begin without subscribers."""
        self._refs: dict[str, pykka.ActorRef[Any]] = {}
        self._history: list[object] = []
        self._finished = False

    def admit(self, ref: pykka.ActorRef[Any]) -> None:
        """Add `ref`: send it all past messages, then all later ones. Idempotent."""
        if ref.actor_urn in self._refs:
            return
        self._refs[ref.actor_urn] = ref
        for message in self._history:
            self._say(ref, message)

    def dismiss(self, ref: pykka.ActorRef[Any]) -> None:
        """Remove `ref`."""
        self._refs.pop(ref.actor_urn, None)

    def tell(self, message: object) -> None:
        """Send a message to all subscribers."""
        self._history.append(message)
        for ref in list(self._refs.values()):
            self._say(ref, message)

    def begin_anew(self) -> None:
        """Begin another attempt. A later subscriber gets `GangRestarting`, then the messages of this attempt."""
        self._history = self._history[-1:]

    def forget(self, local_rank: int) -> None:
        """Drop the messages about the past life of a rank. A later subscriber gets only those about present lives."""
        self._history = [each for each in self._history if getattr(each, "local_rank", None) != local_rank]

    def finish(self, message: GangFinished) -> None:
        """Send the last message to all subscribers, only once."""
        if not self._finished:
            self._finished = True
            self.tell(message)

    def _say(self, ref: pykka.ActorRef[Any], message: object) -> None:
        try:
            ref.tell(message)
        except pykka.ActorDeadError:
            self._refs.pop(ref.actor_urn, None)
