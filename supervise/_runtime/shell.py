"""The shell of a supervisor: the part of its actor that gangs, gangs over several hosts and trees have in common.

A supervisor is a shell around a pure core. Each supervisor adds the code that carries out the actions of its core and
describes the facts.
"""

from __future__ import annotations

import functools
import os
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, ParamSpec, TypeVar
from weakref import WeakKeyDictionary, ref

import pykka

from supervise._runtime.actor import LoopActor, tell_now
from supervise._runtime.future import Reply
from supervise._runtime.loop import NO_TIMER, Loop, Timer
from supervise._settings import check_seconds
from supervise.errors import SpecError
from supervise.events import log
from supervise.recording import repr_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    P = ParamSpec("P")
    T = TypeVar("T")

End = TypeVar("End")
"""The reply to `Wait`, once there is one."""


# Checks of the arguments of asks


def refusing(check: Callable[P, T]) -> Callable[P, T]:
    """Return `check`, which raises `SpecError` also if a method of the checked value raises, such as its `__repr__`.

    Any other exception of a check would end the supervisor, because the supervisor would take it for its own mistake.
    """

    @functools.wraps(check)
    def refused(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return check(*args, **kwargs)
        except SpecError:
            raise
        except BaseException as error:  # user code may raise anything
            raise SpecError(f"the message has a value that cannot be checked: it raised {repr_of(error)}") from error

    return refused


@refusing
def check_timeout(timeout: float | None) -> None:
    """Raise `SpecError` unless `timeout` is a number of seconds or None."""
    if timeout is not None:
        check_seconds("timeout", timeout)


@refusing
def check_ref(value: Any) -> None:
    """Raise `SpecError` for a value that is not the ref of an actor."""
    if isinstance(value, type) or not (hasattr(value, "actor_urn") and callable(getattr(value, "tell", None))):
        raise SpecError(f"ref is {repr_of(value)}; give the ref of an actor, such as its self.actor_ref")


# The pending replies of a supervisor


ReplyKind = Literal["start", "close", "stop"]


class PendingReplies(Generic[End]):
    """Pending replies to starts, requests, waits, closes and stops. Used on the supervisor's loop."""

    def __init__(self, loop: Loop) -> None:
        """Begin without pending replies."""
        self._loop = loop
        self._lists: dict[ReplyKind, list[Reply[Any]]] = {"start": [], "close": [], "stop": []}
        """The pending replies of each kind. All replies of a kind are set together."""
        self._waits: WeakKeyDictionary[Reply[End | None], Timer] = WeakKeyDictionary()
        """Waits whose caller still holds the future. The value is the timer of the wait's timeout, or NO_TIMER."""
        self._requests: dict[int, Reply[Any]] = {}
        """Requests about ranks or children, by key."""
        self.result: End | None = None
        self.error: BaseException | None = None
        """The reason why there will be no result; None if there is no such reason."""

    @property
    def over(self) -> bool:
        """Whether there is a result or an error."""
        return self.result is not None or self.error is not None

    @property
    def waiting(self) -> int:
        """Number of pending waits."""
        return len(self._waits)

    @property
    def awaited(self) -> bool:
        """Whether a start or a wait is pending."""
        return bool(self._lists["start"] or self._waits)

    @property
    def stopping(self) -> bool:
        """Whether a stop of the supervisor was requested."""
        return bool(self._lists["stop"])

    def begin(self, kind: ReplyKind) -> Reply[Any]:
        """Return the reply to a start; to a close, which is set when no process of the gang remains; or to a stop.

        That to a stop is set when the supervisor has left the registry.
        """
        reply: Reply[Any] = Reply()
        self._lists[kind].append(reply)
        return reply

    def _taken(self, kind: ReplyKind) -> list[Reply[Any]]:
        found, self._lists[kind] = self._lists[kind], []
        return found

    def begin_request(self, key: int) -> Reply[Any]:
        """Return the reply to the request with this key."""
        reply = self._requests[key] = Reply()
        return reply

    def answer_request(self, key: int, answer: object) -> None:
        """Answer the request with this key."""
        self._requests.pop(key).set(answer)

    def fail_requests(self, keys: Iterable[int], error: BaseException) -> None:
        """Answer the requests with these keys by an error."""
        for key in keys:
            self._requests.pop(key).fail(error)

    def wait(self, timeout: float | None) -> Reply[End | None]:
        """Return a reply with the result. After `timeout` seconds without a result, the reply is None.

        Raises:
            SpecError: `timeout` is not a number of seconds.
        """
        check_timeout(timeout)
        reply: Reply[End | None] = Reply()
        if self.over:
            self._give(reply, self.error)
            return reply
        self._waits[reply] = NO_TIMER
        if timeout is not None:
            self._waits[reply] = self._loop.call_later(timeout, partial(self._time_is_up, ref(reply)))
        return reply

    def poll(self) -> End | None:
        """Return the result, or None if there is none yet. Raise the error if there is one."""
        if self.error is not None:
            raise self.error
        return self.result

    def started(self, answer: object) -> None:
        """Answer every start, because all ranks or children run."""
        for reply in self._taken("start"):
            reply.set(answer)

    def publish(self, unfinished: BaseException) -> None:
        """Answer every wait: with `result` or with `error`. Fail what is pending with `error` or `unfinished`."""
        for start in self._taken("start"):
            start.fail(self.error or unfinished)
        self.fail_requests(tuple(self._requests), self.error or unfinished)
        waits, self._waits = self._waits, WeakKeyDictionary()
        for reply, timer in list(waits.items()):
            timer.cancel()
            self._give(reply, self.error)

    def closed(self, error: BaseException | None = None) -> None:
        """Answer every close: with `error` if there is one, otherwise with the result."""
        for reply in self._taken("close"):
            self._give(reply, error)

    def end_loop(self) -> None:
        """End the loop after the callbacks that are ready now. Then answer every stop."""
        self._loop.ended.add_done_callback(self._stopped)
        self._loop.end()

    def _stopped(self) -> None:
        for reply in self._taken("stop"):
            reply.set(None)

    def _give(self, reply: Reply[Any], error: BaseException | None) -> None:
        if error is not None:
            reply.fail(error)
        else:
            reply.set(self.result)

    def _time_is_up(self, waiting: ref[Reply[End | None]]) -> None:
        reply = waiting()
        if reply is not None and reply in self._waits:
            del self._waits[reply]
            reply.set(None)


# The actors that receive a supervisor's lifecycle messages


class CallbackSubscriber:
    """A subscriber that is not an actor: its `tell` is called on the supervisor's thread, and must not block.

    Each supervisor needs a subscriber of its own, because `GangFinished` does not name its gang.
    """

    def __init__(self, urn: str, tell: Callable[[object], object]) -> None:
        """Pass messages to `tell`. `urn` identifies the subscriber."""
        self.actor_urn = urn
        self.tell = tell


class Subscribers:
    """The subscribers of a supervisor.

    Those of a gang get all messages of the present attempt, in order. The last message is the only `GangFinished`.
    Those of a tree get messages about the children that are ready instead of past messages.
    """

    def __init__(self, *, keep: bool) -> None:
        """Begin without subscribers; with `keep`, keep the messages of the attempt for later subscribers."""
        self._refs: dict[str, pykka.ActorRef[Any]] = {}
        self._keep = keep
        self._history: list[object] = []
        self._finished = False

    def __len__(self) -> int:
        """Return the number of subscribers."""
        return len(self._refs)

    def admit(self, to: pykka.ActorRef[Any], present: Iterable[object] = ()) -> None:
        """Add `to`: send it all past messages, those in `present`, then all later ones. Idempotent.

        Raises:
            SpecError: `to` is not the ref of an actor, or is a supervisor, which would take the messages for those of
                its own ranks.
        """
        check_ref(to)
        if issubclass(getattr(to, "actor_class", object), SupervisorShell):
            raise SpecError(
                f"ref is {repr_of(to)}, a supervisor; subscribe another kind of actor, and let it forward the messages"
            )
        if to.actor_urn in self._refs:
            return
        self._refs[to.actor_urn] = to
        for message in [*self._history, *present]:
            self._say(to, message)

    def dismiss(self, to: pykka.ActorRef[Any]) -> None:
        """Remove `to`."""
        self._refs.pop(getattr(to, "actor_urn", ""), None)

    def tell(self, message: object) -> None:
        """Send a message to all subscribers."""
        if self._keep:
            self._history.append(message)
        for subscriber in [*self._refs.values()] if self._refs else ():
            self._say(subscriber, message)

    def begin_anew(self) -> None:
        """Begin another attempt. A later subscriber gets `GangRestarting`, then the messages of this attempt."""
        self._history = self._history[-1:]

    def forget(self, local_rank: int) -> None:
        """Drop the messages about the past life of a rank. A later subscriber gets only those about present lives."""
        self._history = [each for each in self._history if getattr(each, "local_rank", None) != local_rank]

    def finish(self, message: object) -> None:
        """Send the last message to all subscribers, only once."""
        if not self._finished:
            self._finished = True
            self.tell(message)

    def _say(self, to: pykka.ActorRef[Any], message: object) -> None:
        try:
            tell_now(to, message)
        except pykka.ActorDeadError:
            self._refs.pop(to.actor_urn, None)
        except (Exception, SystemExit) as error:  # `queue.Full`, or raised by code of the user
            self._refs.pop(to.actor_urn, None)
            log.warning("subscriber %s does not accept a message, and gets no more: %r", to, error)


# The actor


def with_jitter(delay_s: float) -> float:
    """Return a delay that differs by up to a quarter, so that machines do not restart in step.

    The module random is not used, because threads of gangs import nothing.
    """
    return delay_s * (0.75 + 0.5 * int.from_bytes(os.urandom(4), "little") / 2**32)


class SupervisorShell(LoopActor, Generic[End]):
    """The actor of a supervisor: its loop, its start, its pending replies, the treatment of its errors, its end.

    A subclass decides by its core, and carries out the core's actions. It defines `on_receive` for its messages,
    `on_crash`, `_acquire`, `_release` and `_stop_supervised`.
    """

    _mistakes: ClassVar[tuple[type[BaseException], ...]] = (Exception,)
    """Classes of exceptions that the arguments of an ask may cause. They do not end the supervisor."""

    def __init__(self, name: str, *, own_thread: bool = True) -> None:
        """Prepare an actor with a loop.

        Args:
            name: Name of the gang or tree, for that of the thread.
            own_thread: Whether to start a thread. Otherwise the thread that starts the actor runs the loop next.
        """
        super().__init__(Loop(f"supervise-{name}", lost=self._loop_lost, own_thread=own_thread))
        self._replies: PendingReplies[End] = PendingReplies(self.loop)

    # The start

    def _start_actor_loop(self) -> None:
        try:
            self.loop.start()
            try:
                self._acquire()
                super()._start_actor_loop()
            except BaseException:  # also of a signal handler
                self.loop.abandon()
                raise
        except BaseException:  # the caller gets no ref; and without a thread, no ask would be answered
            self._abandon()
            raise

    def _acquire(self) -> None:
        """Register for the exit of the interpreter, and take what else the supervisor holds while it lives."""
        raise NotImplementedError

    def _release(self) -> None:
        """Give back what `_acquire` has taken. Idempotent."""
        raise NotImplementedError

    def _abandon(self) -> None:
        """End an actor whose start has failed."""
        self._release()
        self.actor_inbox.actor = None
        pykka.ActorRegistry.unregister(self.actor_ref)

    # Steps and errors

    def _guarded(self, act: Callable[..., object], *args: Any) -> None:
        """Call `act`, unless the actor has ended. An exception is a crash, because it leaves the core inconsistent."""
        if self.actor_stopped.is_set():
            return
        try:
            act(*args)
        except BaseException as error:
            self.on_crash(error)

    def is_fatal(self, error: BaseException, *, asked: bool) -> bool:
        """Return whether an exception of a handler ends this actor; False if it is a mistake of the sender."""
        return not isinstance(error, SpecError) and not (asked and isinstance(error, self._mistakes))

    def _loop_lost(self, error: BaseException) -> None:
        """Handle a failure of the loop itself."""
        self.on_crash(error)

    # The end

    def on_stop_request(self) -> Reply[None]:
        """End all that is supervised, then leave the registry."""
        reply = self._replies.begin("stop")
        self._stop_supervised()
        return reply

    def _stop_supervised(self) -> None:
        """Begin the end of all that is supervised, after which the actor leaves."""
        raise NotImplementedError

    def leave(self) -> None:
        """End this actor, when all that it has supervised has ended."""
        self._release()
        super().leave()
