"""The actors to whom a gang's lifecycle is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pykka

if TYPE_CHECKING:
    from supervise.messages import GangFinished


class Subscribers:
    """Subscribers: each gets the whole life in order, or that of the attempt, ending in exactly one `GangFinished`."""

    def __init__(self) -> None:
        """Begin without any."""
        self._refs: dict[str, pykka.ActorRef[Any]] = {}
        self._history: list[object] = []
        self._finished = False

    def admit(self, ref: pykka.ActorRef[Any]) -> None:
        """Tell `ref` what has happened so far, and what happens from now on. Idempotent."""
        if ref.actor_urn in self._refs:
            return
        self._refs[ref.actor_urn] = ref
        for message in self._history:
            self._say(ref, message)

    def dismiss(self, ref: pykka.ActorRef[Any]) -> None:
        """Tell `ref` nothing more."""
        self._refs.pop(ref.actor_urn, None)

    def tell(self, message: object) -> None:
        """Tell all subscribers."""
        self._history.append(message)
        for ref in list(self._refs.values()):
            self._say(ref, message)

    def begin_anew(self) -> None:
        """Begin another attempt: a later subscriber is told its life only, behind the message that it is a restart."""
        self._history = self._history[-1:]

    def finish(self, message: GangFinished) -> None:
        """Tell all subscribers the last message, once."""
        if not self._finished:
            self._finished = True
            self.tell(message)

    def _say(self, ref: pykka.ActorRef[Any], message: object) -> None:
        try:
            ref.tell(message)
        except pykka.ActorDeadError:
            self._refs.pop(ref.actor_urn, None)
