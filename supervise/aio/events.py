"""The events of a gang as an asynchronous iterator with a bounded buffer."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import pykka

from supervise import (
    GangFinished,
    GangRestarting,
    GangStarted,
    SpecError,
    Subscribe,
    Unsubscribe,
    WorkerExited,
    WorkerHung,
    WorkerReady,
    WorkerRestarting,
    WorkerStarted,
    WorkerStopped,
)

if TYPE_CHECKING:
    from typing import Self

    from supervise.aio.home import Home


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsDropped:
    """The buffer of a slow consumer has overflowed. `count` events, the oldest ones, are missing at this place."""

    count: int


Event: TypeAlias = (
    GangStarted
    | WorkerStarted
    | WorkerReady
    | WorkerStopped
    | WorkerHung
    | WorkerExited
    | WorkerRestarting
    | GangRestarting
    | GangFinished
    | EventsDropped
)
"""What `Events` yields: the messages of a gang to its subscribers, and `EventsDropped`."""


class Mailbox:
    """A subscriber of a gang that keeps messages for a task of one event loop. It takes the place of an actor's ref.

    `tell` runs on the gang's thread, everything else on the event loop's.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, size: int) -> None:
        """Make an empty mailbox that keeps the newest `size` messages."""
        self.actor_urn: str = uuid.uuid4().urn
        self._loop = loop
        self._messages: deque[tuple[int, Event]] = deque(maxlen=size)
        """Each message and its number; the first is 1. A gap in the numbers stands for dropped messages."""
        self._told = 0
        self._read = 0
        self._held: tuple[int, Event] | None = None
        """The message after a gap, which follows its `EventsDropped`."""
        self._last_told = False
        self._arrived = asyncio.Event()
        self._waking = False
        """Whether the event loop has a pending wake-up, so that a blocked loop does not accumulate wake-ups."""
        self._over = False

    def tell(self, message: Event) -> None:
        """Keep a message, in place of the oldest one if the mailbox is full.

        Raises:
            pykka.ActorDeadError: The event loop is closed.
        """
        self._told += 1
        self._messages.append((self._told, message))
        self._last_told = isinstance(message, GangFinished)
        if not self._waking:
            self._waking = True
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError as error:
                raise pykka.ActorDeadError("the event loop of this subscriber is closed") from error

    def _wake(self) -> None:
        self._waking = False  # before the messages are read: a later message wakes again
        self._arrived.set()

    def end(self, last: GangFinished) -> None:
        """Add the last message, if the gang has ended without one."""
        if not self._last_told:
            self.tell(last)

    def abandon(self) -> None:
        """Drop all messages; `take` has no more."""
        self._over = True
        self._messages.clear()
        self._arrived.set()

    async def take(self) -> Event | None:
        """Return the next message when there is one; None after the last."""
        while not self._over:
            if self._held is not None or self._messages:
                return self._next()
            self._arrived.clear()
            if not self._messages:  # a message may have arrived before the clear
                await self._arrived.wait()
        return None

    def _next(self) -> Event:
        number, message = self._held or self._messages.popleft()
        dropped = number - self._read - 1
        if dropped:
            self._held, self._read = (number, message), number - 1
            return EventsDropped(count=dropped)
        self._held, self._read = None, number
        if isinstance(message, GangFinished):
            self.abandon()  # also ends the waits of other tasks
        return message


class Events:
    """The events of one gang for one consumer; see `Gang.events`. Ends after `GangFinished`.

    The subscription ends with `aclose`, with the block of ``async with``, or when the iterator is garbage-collected.
    """

    def __init__(self, home: Home, *, buffer_size: int) -> None:
        """Make the iterator, not subscribed yet.

        Args:
            home: Process and event loop of the gang.
            buffer_size: How many events are kept for the consumer.

        Raises:
            SpecError: `buffer_size` is not a positive number, or this is not the gang's event loop.
        """
        if not isinstance(buffer_size, int) or isinstance(buffer_size, bool) or buffer_size < 1:
            raise SpecError(f"buffer_size is {buffer_size!r}; give a number of events, at least 1")
        self._ref: pykka.ActorRef[Any] | None = None
        self._home = home
        self._mailbox = Mailbox(home.check(), buffer_size)

    def subscribe(self, ref: pykka.ActorRef[Any]) -> None:
        """Subscribe to the gang of this Supervisor."""
        self._ref = ref
        with contextlib.suppress(pykka.ActorDeadError):
            ref.tell(Subscribe(ref=cast("Any", self._mailbox)))

    def end(self, last: GangFinished) -> None:
        """Yield `last` as the last event, if the gang has not sent a last event."""
        self._mailbox.end(last)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        self._home.check()
        event = await self._mailbox.take()
        if event is None:
            raise StopAsyncIteration
        return event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the subscription; the iterator ends. Idempotent."""
        self._mailbox.abandon()
        self._unsubscribe()

    def _unsubscribe(self) -> None:
        if self._ref is not None:
            with contextlib.suppress(pykka.ActorDeadError):
                self._ref.tell(Unsubscribe(ref=cast("Any", self._mailbox)))

    def __del__(self) -> None:
        if getattr(self, "_ref", None) is not None:
            self._unsubscribe()
