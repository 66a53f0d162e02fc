"""A gang as an asynchronous context manager."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import os
import sys
import uuid
import weakref
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from signal import SIGKILL, Signals
from threading import Thread
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeAlias, TypeVar, cast

import pykka
from pykka.messages import _ActorStop

from supervise import (
    Close,
    GangFinished,
    GangRestarting,
    GangStarted,
    GangStatus,
    Pids,
    RankStacks,
    Reload,
    RestartRanks,
    RunProcsResult,
    Signal,
    SpecError,
    Stacks,
    Start,
    Status,
    Subscribe,
    SuperviseError,
    Supervisor,
    SupervisorRef,
    TerminateRanks,
    Unsubscribe,
    Wait,
    WorkerExited,
    WorkerHung,
    WorkerReady,
    WorkerRestarting,
    WorkerStarted,
    WorkerStopped,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator
    from types import TracebackType

    from supervise.messages import Ask


# Cancellation of a task that must finish a step first


T = TypeVar("T")


class Cancellations:
    """The cancellations of the current task that arrive while it waits for a step that it must finish."""

    def __init__(self, cause: BaseException | None = None) -> None:
        """Store `cause`, the exception that made the step necessary; None if there is none."""
        self._cause = cause
        self._canceled = isinstance(cause, asyncio.CancelledError)
        self.caught: asyncio.CancelledError | None = None
        """The first cancellation during a step; None if there was none."""
        self._count = 0
        """`Task.cancelling` of the task when the first cancellation was caught."""

    async def outlast(self, step: Callable[[], Awaitable[T]], *, again: Callable[[], object] = lambda: None) -> T:
        """Await ``step()`` until it returns or raises, even if the task is canceled meanwhile.

        Args:
            step: Returns an awaitable that a canceled task may abandon; called again after each cancellation. Once it
                has a result, it must not suspend the task, which may be canceled at each turn of the event loop.
            again: Called at each cancellation that is not the first one of the task.
        """
        while True:
            try:
                return await step()
            except asyncio.CancelledError as error:
                if self._canceled:
                    again()
                self._canceled = True
                if self.caught is None:
                    self.caught = error
                    task = asyncio.current_task()
                    self._count = task.cancelling() if task is not None else 0

    def deliver(self) -> None:
        """Raise the first cancellation that was caught, if there is one.

        If the task is about to raise `cause`, that exception is not replaced: the cancellation is delivered at the
        next await of the task, unless the task has by then left the scope that canceled it (such as `asyncio.timeout`).

        Raises:
            CancelledError: The task was canceled during a step.
        """
        if self.caught is None or isinstance(self._cause, asyncio.CancelledError):
            return
        if self._cause is None:
            raise self.caught
        task = asyncio.current_task()
        if task is not None:
            asyncio.get_running_loop().call_soon(_cancel_again, task, self._count)


@contextlib.contextmanager
def _shielded_from_anyio() -> Iterator[None]:
    """A context in which the task is not canceled by the scopes of anyio that it is in.

    Such a scope cancels a task at each turn of the event loop until the task has left it, which would be the second
    cancellation at once.
    """
    cancel_scope = getattr(sys.modules.get("anyio"), "CancelScope", None)  # not while another thread imports it
    if cancel_scope is None:
        yield
        return
    task, scope = _current_task(), cancel_scope(shield=True)
    scope.__enter__()
    try:
        yield
    finally:
        if _current_task() is task:  # otherwise the task is being destroyed, perhaps during another one
            scope.__exit__(None, None, None)


def _cancel_again(task: asyncio.Task[object], count: int) -> None:
    """Cancel `task`, and leave its count of cancellations unchanged. Do nothing if `uncancel` has lowered the count."""
    if not task.done() and 0 < count <= task.cancelling():
        task.cancel()
        task.uncancel()


# The events of a gang as an asynchronous iterator with a bounded buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsDropped:
    """The buffer of a slow consumer has overflowed. The oldest `count` events are missing here."""

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
        """Create an empty mailbox that keeps the newest `size` messages."""
        self.actor_urn: str = uuid.uuid4().urn
        self._loop = loop
        self._messages: deque[tuple[int, Event]] = deque(maxlen=size)
        """Each message and its number; the first is 1. A gap in the numbers stands for dropped messages."""
        self._told = 0
        self._read = 0
        self._held: tuple[int, Event] | None = None
        """The message after a gap, which follows its `EventsDropped`."""
        self.last_told: bool = False
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
        self.last_told = isinstance(message, GangFinished)
        if not self._waking:
            self._waking = True
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError as error:
                raise pykka.ActorDeadError("the event loop of this subscriber is closed") from error

    def _wake(self) -> None:
        self._waking = False  # before the messages are read: a later message wakes again
        self._arrived.set()

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

    _ref: pykka.ActorRef[Any] | None = None

    def __init__(self, check: Callable[[], asyncio.AbstractEventLoop], *, buffer_size: int) -> None:
        """Create the iterator, not subscribed yet.

        Args:
            check: Function that returns the event loop of the gang, or raises in another one, or in another process.
            buffer_size: How many events are kept for the consumer.

        Raises:
            SpecError: `buffer_size` is not a positive number, or this is not the gang's event loop.
        """
        if not isinstance(buffer_size, int) or isinstance(buffer_size, bool) or buffer_size < 1:
            raise SpecError(f"buffer_size is {buffer_size!r}; give a number of events, at least 1")
        self._check = check
        self._mailbox = Mailbox(check(), buffer_size)

    def subscribe(self, ref: pykka.ActorRef[Any]) -> None:
        """Subscribe to the gang of this Supervisor."""
        self._ref = ref
        with contextlib.suppress(pykka.ActorDeadError):
            ref.tell(Subscribe(ref=cast("Any", self._mailbox)))

    def end(self, last: GangFinished) -> None:
        """Yield `last` as the last event, if the gang has not sent a last event."""
        if not self._mailbox.last_told:
            self._mailbox.tell(last)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        self._check()
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
        self._unsubscribe()


P = ParamSpec("P")

BUFFER_SIZE = 1024
"""How many unread events are kept for a consumer by default."""


def _keywords_of(
    _source: Callable[Concatenate[Any, P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give a method the keywords of another one, for type checkers and for `inspect.signature`."""

    def decorate(method: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        method.__signature__ = inspect.signature(_source)  # type: ignore[attr-defined]  # inspect reads it
        return cast("Callable[Concatenate[Any, P], None]", method)

    return decorate


class _Ending:
    """A subscriber that keeps the last message of a gang."""

    def __init__(self) -> None:
        self.actor_urn = f"{type(self).__name__}-{id(self)}"
        self.message: GangFinished | None = None

    def tell(self, message: object) -> None:
        if isinstance(message, GangFinished):
            self.message = message


class Gang:
    """One gang, which lives in an ``async with`` block.

    The body of the block runs when all ranks are ready. Leaving it, for any reason, closes the gang, and waits until no
    process of the gang is left. A canceled task leaves its block and so closes its gang: the ranks get SIGTERM and the
    gang's `grace`. A further cancellation of the task kills the ranks at once. Nothing blocks the event loop.

    A `Gang` accepts the keyword arguments of `Supervisor`. It runs once, in one event loop of the process that made it.

    Raises:
        TypeError: A keyword is not one of `Supervisor`.

    The block raises on entry:
        SpecError: A setting is not valid, or the `Gang` was used before. No process was started.
        OSError, SpawnError: A rank did not start. All others are reaped.

    The block raises on exit, if no other exception leaves it:
        UnkillableError: A process survived SIGKILL.
        SupervisorCrashed: A handler inside supervise raised; the ranks were killed.
    """

    @_keywords_of(Supervisor.__init__)
    def __init__(self, **settings: Any) -> None:
        try:
            inspect.signature(Supervisor).bind(**settings)
        except TypeError as error:
            raise TypeError(f"Gang() {error}") from None
        self._settings = settings
        self._name: str = settings["name"]
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop that used the gang first."""
        self._entered = self._left = False
        self._ref: SupervisorRef | None = None
        self._ending = _Ending()
        self._closing: pykka.Future[RunProcsResult] | None = None
        """The reply to the last `close` of the caller."""
        self._consumers: weakref.WeakSet[Events] = weakref.WeakSet()

    @property
    def name(self) -> str:
        """The name of the gang."""
        return self._name

    def __repr__(self) -> str:
        state = "left" if self._left else "entered" if self._entered else "new"
        return f"<{type(self).__name__} {self._name!r}, {state}>"

    def _repr_html_(self) -> str | None:
        """Return what a notebook shows: the result as a picture, or the state of each rank; None before the start."""
        ending, ref = self._ending.message, self._ref
        if ending is not None:
            return ending.result._repr_html_() if ending.result is not None else None
        return ref._repr_html_() if ref is not None and not self._forked else None

    # The process and the event loop of the gang

    @property
    def _forked(self) -> bool:
        """Whether this process was forked from the one that made the gang."""
        return os.getpid() != self._pid

    def _check(self) -> asyncio.AbstractEventLoop:
        """Return the running event loop. The first call records it as that of the gang.

        Raises:
            SpecError: This process or this event loop is not the one of the gang.
            RuntimeError: No event loop is running.
        """
        if self._forked:
            raise SpecError(
                f"gang {self._name!r} belongs to process {self._pid}, and process {os.getpid()} was forked from it;"
                " use the gang there, or make another one here"
            )
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise SpecError(
                f"gang {self._name!r} belongs to another event loop; use it there, from another thread by"
                " asyncio.run_coroutine_threadsafe, or make another gang here"
            )
        return loop

    # The block

    async def __aenter__(self) -> Self:
        self._check()
        if self._entered:
            raise SpecError(f"gang {self._name!r} was entered before; a Gang runs once, so make another one")
        self._entered = True
        # In a thread: the constructor pickles the arguments and makes the log folders. Not in one of the default
        # executor, which may be busy for long
        start = partial(contextvars.copy_context().run, partial(Supervisor.start, **self._settings))
        started: Future[SupervisorRef] = Future()
        cancellations = Cancellations()
        try:
            Thread(target=_resolve, args=(started, start), name="supervise-aio-start", daemon=True).start()
            starting = asyncio.wrap_future(started)
            self._ref = await cancellations.outlast(lambda: asyncio.shield(starting))
            self._ref.tell(Subscribe(ref=cast("Any", self._ending)))
            for consumer in tuple(self._consumers):
                consumer.subscribe(self._ref)
            cancellations.deliver()
            await self._ref.ask(Start(), block=False)
        except BaseException as error:
            await self._leave(error)
            cancellations.deliver()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, GeneratorExit) and _current_task() is None:  # a coroutine that is destroyed cannot wait
            self._request_end()
        elif error is None or not self._forked:  # in a forked child, the exception leaves the block unchanged
            self._check()
            await self._leave(error)

    def _request_end(self) -> None:
        if self._ref is not None:
            self._ref.ask(Close(), block=False)
            self._ref.ask(_ActorStop(), block=False)

    async def _leave(self, error: BaseException | None) -> None:
        """Close the gang and stop its actor. `error` is the exception that leaves the block or prevented its entry."""
        ref, cancellations = self._ref, Cancellations(error)
        problem: Exception | None = None
        if ref is not None:
            with _shielded_from_anyio():
                try:
                    await self._close(ref, error, cancellations)
                except pykka.ActorDeadError:  # the actor has crashed, or other code has stopped it: the gang is closed
                    crash = self._ending.message.error if self._ending.message is not None else None
                    problem = crash if isinstance(crash, SuperviseError) else None
                except Exception as raised:  # the actor is stopped in any case
                    problem = raised
                stopped = ref.ask(_ActorStop(), block=False)
                await cancellations.outlast(lambda: _settled(stopped), again=partial(_kill, ref))
        self._left, self._settings = True, {}
        self._end_events(error)
        leaving = error or cancellations.caught
        if problem is not None and leaving is None:
            raise problem
        if problem is not None and leaving is not None and leaving is not problem:
            leaving.add_note(f"and the gang {self._name!r} could not be closed: {problem}")
        cancellations.deliver()

    def _end_events(self, error: BaseException | None) -> None:
        if self._ending.message is None:
            reason = error or SuperviseError(f"{self._name}: the gang was closed before it started")
            self._ending.message = GangFinished(result=None, error=reason)
        for consumer in tuple(self._consumers):
            consumer.end(self._ending.message)

    async def _close(self, ref: SupervisorRef, error: BaseException | None, cancellations: Cancellations) -> None:
        kill = partial(_kill, ref)
        if isinstance(error, GeneratorExit):  # the collector may destroy the task during the wait
            self._request_end()
        if (earlier := self._closing) is not None:  # the caller has chosen the timeout of that close
            await cancellations.outlast(lambda: _settled(earlier), again=kill)
        closed = ref.ask(Close(), block=False)
        await cancellations.outlast(lambda: closed, again=kill)

    def _here(self) -> SupervisorRef:
        """Return the Supervisor. Raise before the block, and in another process or event loop than the gang's."""
        self._check()
        if self._ref is None:
            raise SpecError(f"gang {self._name!r} does not run yet; use it inside `async with`")
        return self._ref

    def _running(self) -> SupervisorRef:
        ref = self._here()
        if self._left:
            raise SpecError(f"the block of gang {self._name!r} was left, which has closed the gang; make another Gang")
        return ref

    async def _ask(self, message: Ask[T]) -> T:
        return await self._running().ask(message, block=False)

    # The operations of the actor

    async def wait(self) -> RunProcsResult:
        """Return the result when the gang has finished, also after the block. A canceled wait leaves nothing behind.

        Raises:
            SupervisorCrashed: A handler inside supervise raised; the ranks were killed.
            SpecError: The gang belongs to another process or event loop, or does not run yet.
        """
        self._check()
        if self._ending.message is not None:
            return _result(self._ending.message)
        return await _answer(self._here().ask(Wait(), block=False))

    async def close(  # the time until SIGKILL, as in `Close`
        self,
        timeout: float | None = None,  # noqa: ASYNC109
        *,
        death_sig: Signals | None = None,
    ) -> RunProcsResult:
        """Stop the gang, and return the result when none of its processes is left. Idempotent.

        If the task is canceled meanwhile, the close continues, and the block waits for it.

        Args:
            timeout: Seconds from the first signal to SIGKILL; None for the gang's `grace`.
            death_sig: The first signal; None for SIGTERM. SIGKILL kills the ranks at once.

        Raises:
            SpecError: An argument is not valid, or as for `wait`.
            UnkillableError: A process survived SIGKILL.
            SupervisorCrashed: A handler inside supervise raised; the ranks were killed.
        """
        self._check()
        if self._left and self._ending.message is not None:
            return _result(self._ending.message)
        self._closing = self._here().ask(Close(death_sig=death_sig, timeout=timeout), block=False)
        return await self._closing

    async def pids(self) -> dict[int, int]:
        """Return ``{rank: pid}`` of all ranks that were started, including those that have ended."""
        return await self._ask(Pids())

    async def status(self) -> GangStatus:
        """Return the current state of the gang and of each rank."""
        return await self._ask(Status())

    async def signal(self, sig: Signals, ranks: Iterable[int] | None = None, *, group: bool = False) -> frozenset[int]:
        """Send a signal to running ranks; return the ranks that were signaled.

        Args:
            sig: The signal.
            ranks: Which ranks; None for all.
            group: Whether the signal also goes to the processes that a rank has started, by its process group.

        Raises:
            SpecError: `sig` is not a signal, or a rank is not in the gang.
        """
        return await self._ask(Signal(sig=sig, ranks=_some(ranks), group=group))

    async def reload(self, ranks: Iterable[int] | None = None) -> dict[int, bool]:
        """Send ready ranks their `reload_signal`; return rank to whether it has reloaded. See `Reload`.

        Args:
            ranks: Which ranks; None for all.

        Raises:
            SpecError: A rank is not in the gang.
            SuperviseError: A rank has ended first, or was not ready again in time.
        """
        return await self._ask(Reload(ranks=_some(ranks)))

    async def restart_ranks(self, ranks: Iterable[int]) -> dict[int, int]:
        """Restart exactly these ranks; return their ``{rank: pid}`` when all of them run. See `RestartRanks`.

        Raises:
            SpecError: A rank is not in the gang, or the gang is stopping or has finished.
            SuperviseError: The gang has ended first, or a rank did not start.
        """
        return await self._ask(RestartRanks(cast("Any", _some(ranks))))

    async def terminate_ranks(self, ranks: Iterable[int]) -> dict[int, int]:
        """Stop exactly these ranks; return their ``{rank: pid}`` when no process of them is left. See `TerminateRanks`.

        Raises:
            SpecError: A rank is not in the gang, or the gang is stopping or has finished.
            SuperviseError: The gang has ended first.
        """
        return await self._ask(TerminateRanks(cast("Any", _some(ranks))))

    async def stacks(self, ranks: Iterable[int] | None = None) -> dict[int, RankStacks]:
        """Return the stacks of the threads of running ranks, in at most 2.5 s. See `Stacks`.

        Args:
            ranks: Which ranks; None for all.

        Raises:
            SpecError: A rank is not in the gang.
        """
        return await self._ask(Stacks(ranks=_some(ranks)))

    def events(self, *, buffer_size: int = BUFFER_SIZE) -> Events:
        """Return an iterator over the events of the gang. It begins with those of the current life of each rank.

        The iterator yields the messages of a Supervisor to its subscribers, and ends after `GangFinished`. Each call
        makes one consumer with its own buffer; a slow one delays neither the gang nor other consumers. If the buffer is
        full, the oldest events are dropped and `EventsDropped` takes their place, so `GangFinished` always arrives.
        Before the block is entered, the iterator waits for the start; after the block, it yields `GangFinished` alone.

        Args:
            buffer_size: How many unread events are kept for the consumer.

        Raises:
            SpecError: `buffer_size` is not a positive number, or the gang belongs to another process or event loop.
            RuntimeError: No event loop is running.
        """
        events = Events(self._check, buffer_size=buffer_size)
        if self._left and self._ending.message is not None:
            events.end(self._ending.message)
            return events
        self._consumers.add(events)
        if self._ref is not None:
            events.subscribe(self._ref)
        return events


def _kill(ref: SupervisorRef) -> None:
    ref.ask(Close(death_sig=SIGKILL), block=False)


def _some(ranks: Iterable[int] | None) -> frozenset[int] | None:
    """Return a set of ranks. A value that is not a collection is returned unchanged; the Supervisor refuses it."""
    try:
        return None if ranks is None else frozenset(ranks)
    except TypeError:
        return cast("frozenset[int]", ranks)


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop is running
        return None


async def _answer(reply: pykka.Future[T]) -> T:
    """Return the answer.

    After a cancellation, the exception of the task does not refer to `reply`. So `reply` is freed, which ends the wait.
    """
    try:
        return await reply
    except asyncio.CancelledError as error:
        raise error.with_traceback(None) from None  # the frames of its traceback hold the reply
    finally:
        del reply


def _resolve(future: Future[T], call: Callable[[], T]) -> None:
    """Resolve a future with what a call returns or raises."""
    try:
        future.set_result(call())
    except BaseException as error:
        future.set_exception(error)


async def _settled(reply: pykka.Future[Any]) -> None:
    """Wait for a reply, and ignore an error in it."""
    try:
        await reply
    except (SuperviseError, pykka.ActorDeadError):
        return


def _result(last: GangFinished) -> RunProcsResult:
    if last.error is not None:
        raise last.error
    assert last.result is not None  # noqa: S101 - one of the two is there
    return last.result
