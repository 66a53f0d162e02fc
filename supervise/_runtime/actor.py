"""pykka actors that share their gang's loop instead of having a thread each."""

from __future__ import annotations

import logging
import sys
import threading
from typing import TYPE_CHECKING, Any

import pykka
from pykka import messages as pykka_messages

from supervise._runtime import fork_hooks
from supervise._runtime.future import Reply

if TYPE_CHECKING:
    from pykka._envelope import Envelope

    from supervise._runtime.loop import Loop

log = logging.getLogger("supervise")


class Inbox:
    """Where senders put envelopes: straight onto the loop's queue."""

    __slots__ = ("_actor", "loop")

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._actor: LoopActor | None = None

    def bind(self, actor: LoopActor | None) -> None:
        """Deliver to `actor` from now on; None: it has ended, and what comes is refused."""
        self._actor = actor

    def put(self, envelope: Envelope[Any], /) -> None:
        """Post `envelope` to the actor; a future behind an actor that has ended fails at once."""
        actor = self._actor
        if actor is None:
            refuse(envelope, "actor")
        else:
            self.loop.post(actor.dispatch, envelope)

    def get(self) -> Envelope[Any]:
        """Never called: the loop hands envelopes over."""
        msg = "an inbox of a loop is not read"
        raise NotImplementedError(msg)

    def empty(self) -> bool:
        """True: nothing is kept here."""
        return True


def refuse(envelope: Envelope[Any], who: object) -> None:
    """Answer an envelope that nobody will handle: a stop with None, as pykka does, others with an error."""
    reply = envelope.reply_to
    if reply is None:
        return
    if isinstance(envelope.message, pykka_messages._ActorStop):
        reply.set(None)
        return
    error = pykka.ActorDeadError(f"{who} stopped before handling the message")
    reply.set_exception((pykka.ActorDeadError, error, None))


class _Stopped(threading.Event):
    """Whether an actor has stopped. In a forked child, where nobody would ever set it, it is set.

    Without being touched: a rank that is forked off would copy the pages of all that were forked before it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._process = _process

    def is_set(self) -> bool:
        return self._process is not _process or super().is_set()

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set() or super().wait(timeout)


_process = object()
"""This process: a forked child has another."""


def _begin_anew_in_child() -> None:
    global _process  # noqa: PLW0603 - of the process
    _process = object()


fork_hooks.register("actor", in_child=_begin_anew_in_child)


class LoopActor(pykka.Actor):
    """An actor whose messages are handled on its gang's loop, in the order in which they were put.

    To everybody else it is an ordinary pykka actor: refs, `ask`, `tell` and proxies work. Different
    from pykka's own: an exception that leaves a `tell` handler, of whatever class, goes to
    `on_crash` of this actor alone.
    """

    ends_with_its_thread = True
    """A forked child has no such thread: to it, this actor is dead."""

    def __init__(self, loop: Loop) -> None:
        """Make the actor; `start` also registers it and queues `on_start` as its first envelope."""
        self.loop = loop
        super().__init__()
        self.actor_stopped = self.actor_ref.actor_stopped = _Stopped()

    def _create_actor_inbox(self) -> Inbox:  # type: ignore[override]  # pykka calls it on the instance
        return Inbox(self.loop)

    @staticmethod
    def _create_future() -> Reply[Any]:
        return Reply()

    def _start_actor_loop(self) -> None:
        inbox = self.actor_inbox
        assert isinstance(inbox, Inbox)  # noqa: S101 - made by us, above
        inbox.bind(self)  # strong: a ref holds its actor only weakly
        self.loop.post(self._begin)

    def _begin(self) -> None:
        try:
            self.on_start()
        except BaseException as error:
            self._crashed(error)

    def dispatch(self, envelope: Envelope[Any]) -> None:
        """Handle one envelope. On the loop's thread."""
        if self.actor_stopped.is_set():
            refuse(envelope, self.actor_ref)
            return
        reply = envelope.reply_to
        try:
            response = self._handle_receive(envelope.message)
        except BaseException as error:
            if reply is not None:
                reply.set_exception(sys.exc_info())
            if self.is_fatal(error, asked=reply is not None):
                self._crashed(error)
            elif reply is None:
                log.warning("%s refused a message that was told: %s", self, error)
        else:
            if reply is not None:
                reply.set(response)

    def _handle_receive(self, message: Any) -> Any:
        if isinstance(message, pykka_messages._ActorStop):
            return self.on_stop_request()
        return super()._handle_receive(message)

    def on_stop_request(self) -> Reply[None] | None:
        """Somebody asked this actor to stop; the answer (a `Reply` defers it) is the asker's reply."""
        self.leave()
        return None

    def leave(self) -> None:
        """End this actor now: out of the registry, its inbox refuses what comes."""
        if not self.actor_stopped.is_set():
            self._stop()
            self._unbind()

    def _unbind(self) -> None:
        inbox = self.actor_inbox
        assert isinstance(inbox, Inbox)  # noqa: S101
        inbox.bind(None)

    def is_fatal(self, error: BaseException, *, asked: bool) -> bool:
        """Whether an error that left a handler ends this actor: as in pykka, any of a message that was told does."""
        return not asked or not isinstance(error, Exception)

    def on_crash(self, error: BaseException) -> None:
        """Clean up after `error` left a handler. The actor has not been stopped yet; unless overridden, it is now."""
        self._fail(error)

    def _crashed(self, error: BaseException) -> None:
        try:
            self.on_crash(error)
        except BaseException as worse:
            self._fail(worse)

    def _fail(self, error: BaseException) -> None:
        """End as pykka's own actors do: said to its log, and without `on_stop`."""
        if not self.actor_stopped.is_set():
            self._handle_failure(type(error), error, error.__traceback__)
            self._unbind()
