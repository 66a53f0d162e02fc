"""The inbox of a Tail: pykka's, with a moment at which it speaks by itself."""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pykka._envelope import Envelope

if TYPE_CHECKING:
    from pykka._actor import ActorInbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """The moment has come that the actor has set itself."""


class DueInbox:
    """Answers `Due` when the moment `due_ns` comes before the next message. Nothing wakes before that."""

    def __init__(self) -> None:
        """Start empty, with no moment set."""
        self._queue: queue.SimpleQueue[Envelope[Any]] = queue.SimpleQueue()
        self.due_ns: int | None = None
        """When to answer `Due` (monotonic); None: never. Only the actor itself sets it."""

    def put(self, envelope: Envelope[Any], /) -> None:
        """Add an envelope. From any thread."""
        self._queue.put(envelope)

    def get(self) -> Envelope[Any]:
        """Return the next envelope; what is there goes before what is due."""
        if self.due_ns is None:
            return self._queue.get()
        wait_s = max(0.0, (self.due_ns - time.monotonic_ns()) / 1e9)
        try:
            return self._queue.get(timeout=wait_s)
        except queue.Empty:
            self.due_ns = None
            return Envelope(Due())

    def empty(self) -> bool:
        """Whether no envelope is there."""
        return self._queue.empty()


if TYPE_CHECKING:

    def _is_an_inbox() -> ActorInbox:
        return DueInbox()
