"""The inbox of a Tail: pykka's, with a moment at which it speaks by itself."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pykka._envelope import Envelope

from supervise._runtime.wakeup import Bell

if TYPE_CHECKING:
    from pykka._actor import ActorInbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """The moment has come that the actor has set itself."""


class DueInbox:
    """Answers `Due` when the moment `due_ns` comes before the next message. Nothing wakes before that."""

    def __init__(self) -> None:
        """Start empty, with no moment set."""
        self._queue: deque[Envelope[Any]] = deque()
        self._bell = Bell()
        self.due_ns: int | None = None
        """When to answer `Due` (monotonic); None: never. Only the actor itself sets it."""

    def put(self, envelope: Envelope[Any], /) -> None:
        """Add an envelope. From any thread."""
        self._queue.append(envelope)
        self._bell.ring()

    def get(self) -> Envelope[Any]:
        """Return the next envelope; what is there goes before what is due."""
        while not self._queue:
            wait_s = None if self.due_ns is None else (self.due_ns - time.monotonic_ns()) / 1e9
            if not self._bell.wait(wait_s) and not self._queue:
                self.due_ns = None
                return Envelope(Due())
        return self._queue.popleft()

    def empty(self) -> bool:
        """Whether no envelope is there."""
        return not self._queue


if TYPE_CHECKING:

    def _is_an_inbox() -> ActorInbox:
        return DueInbox()
