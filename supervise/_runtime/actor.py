"""pykka actors that run on the loop of their gang, not on a thread for each actor."""

from __future__ import annotations

import _thread
import contextlib
import itertools
import queue
import sys
import threading
import uuid
from typing import TYPE_CHECKING, Any, Self, cast

import pykka
from pykka import messages as pykka_messages
from pykka._envelope import Envelope

from supervise._runtime import fork_hooks
from supervise._runtime.future import Reply
from supervise.events import log

if TYPE_CHECKING:
    from types import TracebackType

    from supervise._runtime.loop import Loop


# Messages to the application's actors, whose inboxes may be bounded: pykka's `tell` waits for room in such an inbox


def tell_now(to: pykka.ActorRef[Any], message: Any) -> None:
    """Do the same as `to.tell`, but never wait.

    Raises:
        pykka.ActorDeadError: The actor has ended.
        queue.Full: The inbox of the actor has no room.
    """
    inbox = getattr(to, "actor_inbox", None)
    if not _is_bounded(inbox):
        to.tell(message)
    elif not to.is_alive():
        raise pykka.ActorDeadError(f"{to} not found")
    elif not put_now(inbox, Envelope(message)):
        raise queue.Full


def put_now(inbox: Any, envelope: Envelope[Any]) -> bool:
    """Put an envelope into an inbox, unless the inbox has no room; return whether it had room."""
    try:
        inbox.put_nowait(envelope) if _is_bounded(inbox) else inbox.put(envelope)
    except queue.Full:
        return False
    return True


def put_soon(inbox: Any, envelope: Envelope[Any]) -> None:
    """Put an envelope into an inbox. If the inbox has no room, a thread waits for room."""
    if not put_now(inbox, envelope):
        with contextlib.suppress(RuntimeError):  # no thread is available
            _thread.start_new_thread(inbox.put, (envelope,))


def _is_bounded(inbox: object) -> bool:
    return isinstance(inbox, queue.Queue) and inbox.maxsize > 0


class LoopRef(pykka.ActorRef[Any]):
    """A reference to a `LoopActor`. A ``with`` block stops the actor at its end."""

    actor_inbox: Inbox
    actor_stopped: _Stopped

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Stop the actor; return when it has ended."""
        self.stop()

    def tell(self, message: Any) -> None:
        """Send a message without a reply, as any pykka ref does, but in a third of its calls.

        Raises:
            pykka.ActorDeadError: The actor has ended.
        """
        inbox, stopped = self.actor_inbox, self.actor_stopped
        actor = inbox.actor
        if actor is None or stopped._flag or stopped._process is not _process:  # `is_set` without its call
            raise pykka.ActorDeadError(f"{self} not found")
        inbox.loop.post(actor.dispatch, message)


class Inbox:
    """Inbox of an actor. It posts each message to the loop."""

    __slots__ = ("actor", "loop")

    def __init__(self, loop: Loop) -> None:
        self.loop: Loop = loop
        self.actor: LoopActor | None = None
        """The actor between its start and its end. Without it, `put` refuses envelopes."""

    def put(self, envelope: Envelope[Any], /) -> None:
        """Post `envelope` to the actor. If the actor has ended, `envelope` gets an error as its reply at once."""
        actor = self.actor
        if actor is None:
            self.refuse(envelope.message, envelope.reply_to, "actor")
        else:
            self.loop.post(actor.dispatch, envelope.message, envelope.reply_to)

    def get(self) -> Envelope[Any]:
        """Raise, because the loop delivers messages and no thread reads an inbox."""
        raise NotImplementedError

    def empty(self) -> bool:
        """Return True, because the inbox stores no envelope."""
        return True

    def refuse(self, message: Any, reply: pykka.Future[Any] | None, who: object) -> None:
        """Reply to a message that no actor will handle: None to a stop, as pykka does; an error to other messages."""
        if reply is None:
            return
        if isinstance(message, pykka_messages._ActorStop):
            reply.set(None)
            return
        error = pykka.ActorDeadError(f"{who} stopped before handling the message")
        reply.set_exception((pykka.ActorDeadError, error, None))


class _Stopped(threading.Event):
    """Event that is set once the actor has stopped.

    It is also set in every forked child, which lacks the actor's thread.

    The child does not write to the event, because writes would make a forked rank copy the memory pages of all events.
    """

    _flag: bool
    """The flag of the base class.

    Each message needs the flag several times, and `is_set` of the base class takes longer.
    """

    _waiters: threading.Condition | None = None
    """The condition of the base class. It is made for the first waiter, because most events have none."""

    def __init__(self) -> None:  # not that of the base class, which makes the condition
        self._flag = False
        self._process = _process

    @property
    def _cond(self) -> threading.Condition:
        return cast("threading.Condition", vars(self).setdefault("_waiters", threading.Condition(threading.Lock())))

    def is_set(self) -> bool:
        return self._process is not _process or self._flag

    def set(self) -> None:
        self._flag = True  # first: a waiter that makes the condition after the next line looks at the flag
        waiters = self._waiters
        if waiters is not None:
            with waiters:
                waiters.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set() or super().wait(timeout)


_process = object()
"""Identity of this process. A forked child gets a new object."""
_urn = uuid.uuid4().urn[:-12]
"""The URN of each actor of this process without the last twelve digits, which are a count.

A random URN for each actor takes nine calls.
"""
_count = itertools.count()


def _replace_in_child() -> None:
    global _process, _urn
    _process, _urn = object(), uuid.uuid4().urn[:-12]


fork_hooks.register("actor", in_child=_replace_in_child)


_OF_PYKKA = frozenset(
    {
        pykka_messages._ActorStop,
        pykka_messages.ProxyCall,
        pykka_messages.ProxyGetAttr,
        pykka_messages.ProxySetAttr,
    }
)


class LoopActor(pykka.Actor):
    """An actor that handles its messages on the loop of its gang, in the order of their arrival.

    Refs, `ask`, `tell` and proxies work as with every pykka actor, with one difference. If an exception leaves the
    handler of a `tell`, also a `BaseException`, only `on_crash` of this actor is called.
    """

    ends_with_its_thread = True
    """Whether a forked child, which lacks the actor's thread, removes the actor from pykka's registry.

    Otherwise `pykka.ActorRegistry.stop_all` would wait there for the actor forever.
    """

    actor_ref: Any = None
    """The reference to this actor: an attribute, where pykka has a property."""
    _ref_class: type[LoopRef] = LoopRef

    def __init__(self, loop: Loop) -> None:
        """Make the actor. `start` also registers the actor and queues `on_start` as its first callback."""
        self.loop: Loop = loop
        self.actor_urn: str = f"{_urn}{next(_count):012x}"  # the constructor of pykka makes a second event and ref
        self.actor_inbox: Inbox = self._create_actor_inbox()
        self.actor_stopped: _Stopped = _Stopped()
        self.actor_ref = self._ref_class(self)

    def _create_actor_inbox(self) -> Inbox:  # type: ignore[override]  # called on the instance
        return Inbox(self.loop)

    @staticmethod
    def _create_future() -> Reply[Any]:
        return Reply()

    def _start_actor_loop(self) -> None:
        self.actor_inbox.actor = self  # strong: a ref holds its actor only weakly
        if type(self).on_start is not pykka.Actor.on_start:
            self.loop.post(self._begin)

    def _begin(self) -> None:
        try:
            self.on_start()
        except BaseException as error:
            self._crashed(error)

    def dispatch(self, message: Any, reply: pykka.Future[Any] | None = None) -> None:
        """Handle one message. The loop's thread calls this method."""
        stopped = self.actor_stopped
        if stopped._flag or stopped._process is not _process:
            self.actor_inbox.refuse(message, reply, self.actor_ref)
            return
        try:
            response = (self._handle_receive if type(message) in _OF_PYKKA else self.on_receive)(message)
        except BaseException as error:
            if reply is not None:
                reply.set_exception(sys.exc_info())
            if self.is_fatal(error, asked=reply is not None):
                self._crashed(error)
            elif reply is None:
                log.warning("%s refused a message of tell(): %s", self, error)
        else:
            if reply is not None:
                reply.set(response)

    def _handle_receive(self, message: Any) -> Any:
        if isinstance(message, pykka_messages._ActorStop):
            return self.on_stop_request()
        return super()._handle_receive(message)

    def on_stop_request(self) -> Reply[None] | None:
        """Handle a request to stop; return the reply to the request. To defer the reply, return a `Reply`."""
        self.leave()
        return None

    def leave(self) -> None:
        """End this actor now: remove it from pykka's registry, and let its inbox refuse further messages.

        The steps are those of `pykka.Actor._stop`, without its record of debugging, which formats the actor's name.
        """
        stopped = self.actor_stopped
        if stopped._flag or stopped._process is not _process:  # `is_set` without its call
            return
        pykka.ActorRegistry.unregister(self.actor_ref)
        stopped.set()
        try:
            self.on_stop()
        except Exception:
            self._handle_failure(*sys.exc_info())
        self.actor_inbox.actor = None

    def is_fatal(self, error: BaseException, *, asked: bool) -> bool:
        """Return whether an error that left a handler ends this actor.

        As in pykka, every error in a `tell` does.
        """
        return not asked or not isinstance(error, Exception)

    def on_crash(self, error: BaseException) -> None:
        """Handle an `error` that left a handler. The actor is still running. By default, stop it."""
        self._fail(error)

    def _crashed(self, error: BaseException) -> None:
        try:
            self.on_crash(error)
        except BaseException as worse:
            self._fail(worse)

    def _fail(self, error: BaseException) -> None:
        """End the actor as pykka does after an error: log the error, but do not call `on_stop`."""
        if not self.actor_stopped.is_set():
            self._handle_failure(type(error), error, error.__traceback__)
            self.actor_inbox.actor = None
