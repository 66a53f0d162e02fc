"""The inbox of a Tail: pykka's inbox with a deadline."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from pykka._envelope import Envelope

from supervise._runtime.wakeup import Bell
from supervise.messages import Bare

if TYPE_CHECKING:
    from pykka._actor import ActorInbox


class Due(Bare):
    """The deadline of the inbox has expired."""


class DueInbox:
    """Inbox that returns `Due` if no message arrives before the deadline `due_ns`.

    The thread that waits does not wake up before the deadline.
    """

    def __init__(self) -> None:
        """Begin empty and without a deadline."""
        self._queue: deque[Envelope[Any]] = deque()
        self._bell = Bell()
        self.due_ns: int | None = None
        """Monotonic time at which to return `Due`; None for never. Only the thread of the actor sets it."""

    def put(self, envelope: Envelope[Any], /) -> None:
        """Add an envelope. Thread-safe."""
        self._queue.append(envelope)
        self._bell.ring()

    def get(self) -> Envelope[Any]:
        """Return the next envelope. A message comes before `Due`."""
        while not self._queue:
            wait_s = None if self.due_ns is None else (self.due_ns - time.monotonic_ns()) / 1e9
            if not self._bell.wait(wait_s) and not self._queue:
                self.due_ns = None
                return Envelope(Due())
        return self._queue.popleft()

    def messages(self) -> list[Any]:
        """Return the messages that were not handled. Thread-safe."""
        return [envelope.message for envelope in self._queue.copy()]

    def empty(self) -> bool:
        """Whether there is no envelope."""
        return not self._queue


if TYPE_CHECKING:

    def _is_an_inbox() -> ActorInbox:
        return DueInbox()
