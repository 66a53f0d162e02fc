"""Pending waits and subscribers of a tree."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import pykka

from supervise._runtime.future import Reply
from supervise._seconds import check_seconds
from supervise.errors import SpecError
from supervise.recording import repr_of
from supervise.trees import ChildStarted, TreeFinished

if TYPE_CHECKING:
    from supervise._runtime.loop import Loop, Timer


class Waits:
    """Pending replies to `Wait`. A reply to which no other object has a reference is dropped."""

    def __init__(self, loop: Loop) -> None:
        """Begin without pending replies."""
        self._loop = loop
        self._replies: WeakKeyDictionary[Reply[TreeFinished | None], Timer | None] = WeakKeyDictionary()

    def __len__(self) -> int:
        """Return the number of pending replies."""
        return len(self._replies)

    def add(self, timeout_s: float | None) -> Reply[TreeFinished | None]:
        """Return a reply. It is set when the tree ends, or to None after `timeout_s`.

        Raises:
            SpecError: `timeout_s` is not a number of seconds.
        """
        reply: Reply[TreeFinished | None] = Reply()
        if timeout_s is not None:
            check_seconds("timeout", timeout_s)
        timer = None if timeout_s is None else self._loop.call_later(timeout_s, partial(self._expire, ref(reply)))
        self._replies[reply] = timer
        return reply

    def finish(self, message: TreeFinished) -> None:
        """Set all pending replies to the message. If the message has an error, set them to the error."""
        for reply, timer in list(self._replies.items()):
            if timer is not None:
                timer.cancel()
            if message.error is None:
                reply.set(message)
            else:
                reply.fail(message.error)
        self._replies.clear()

    def _expire(self, waiting: ref[Reply[TreeFinished | None]]) -> None:
        reply = waiting()
        if reply is not None and reply in self._replies:
            del self._replies[reply]
            reply.set(None)


class Subscribers:
    """Subscribers: actors that receive a message when a child starts, ends or restarts."""

    def __init__(self) -> None:
        """Begin without subscribers."""
        self._refs: dict[str, pykka.ActorRef[Any]] = {}

    def __len__(self) -> int:
        """Return the number of subscribers."""
        return len(self._refs)

    def admit(self, to: pykka.ActorRef[Any], ready: dict[str, pykka.ActorRef[Any]]) -> None:
        """Send `to` one `ChildStarted` for each started child, then every later message. Idempotent.

        Raises:
            SpecError: `to` is not the ref of an actor.
        """
        if isinstance(to, type) or not (hasattr(to, "actor_urn") and callable(getattr(to, "tell", None))):
            raise SpecError(f"ref is {repr_of(to)}; give the ref of an actor, such as its self.actor_ref")
        if to.actor_urn in self._refs:
            return
        self._refs[to.actor_urn] = to
        for name, child in ready.items():
            self._say(to, ChildStarted(id=name, ref=child))

    def dismiss(self, to: pykka.ActorRef[Any]) -> None:
        """Send no further messages to `to`."""
        self._refs.pop(getattr(to, "actor_urn", ""), None)

    def tell(self, message: object) -> None:
        """Send a message to all subscribers."""
        for to in list(self._refs.values()):
            self._say(to, message)

    def _say(self, to: pykka.ActorRef[Any], message: object) -> None:
        try:
            to.tell(message)
        except pykka.ActorDeadError:
            self._refs.pop(to.actor_urn, None)
