"""A gang as an asynchronous context manager."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import weakref
from functools import partial
from signal import SIGKILL, Signals
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

import pykka
from pykka.messages import _ActorStop

from supervise import (
    Close,
    GangFinished,
    GangStatus,
    Pids,
    RankStacks,
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
    Wait,
)
from supervise.aio.cancellation import Cancellations
from supervise.aio.events import Events
from supervise.aio.home import Home

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType
    from typing import Self

P = ParamSpec("P")
T = TypeVar("T")

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

    The block is entered when all ranks are ready. Leaving it, for any reason, closes the gang, and waits until no
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
        self._home = Home(self._name)
        self._entered = self._left = False
        self._ref: pykka.ActorRef[Supervisor] | None = None
        self._ending = _Ending()
        self._closing: pykka.Future[Any] | None = None
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
        return ref._repr_html_() if isinstance(ref, SupervisorRef) and not self._home.forked else None

    # The block

    async def __aenter__(self) -> Self:
        loop = self._home.check()
        if self._entered:
            raise SpecError(f"gang {self._name!r} was entered before; a Gang runs once, so make another one")
        self._entered = True
        # In a thread: the constructor pickles the arguments and makes the log folders
        start = partial(contextvars.copy_context().run, partial(Supervisor.start, **self._settings))
        starting = loop.run_in_executor(None, start)
        cancellations = Cancellations()
        await cancellations.outlast(lambda: asyncio.wait((starting,)))
        try:
            self._ref = starting.result()
            self._subscribe(self._ref)
            cancellations.deliver()
            await self._ref.ask(Start(), block=False)
        except BaseException as error:
            await self._leave(error)
            cancellations.deliver()
            raise
        return self

    def _subscribe(self, ref: pykka.ActorRef[Supervisor]) -> None:
        ref.tell(Subscribe(ref=cast("Any", self._ending)))
        for consumer in tuple(self._consumers):
            consumer.subscribe(ref)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, GeneratorExit) and not _in_task():  # a coroutine that is destroyed cannot wait
            self._request_end()
        elif error is None or not self._home.forked:  # in a forked child, the exception leaves the block unchanged
            self._home.check()
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

    async def _close(
        self, ref: pykka.ActorRef[Supervisor], error: BaseException | None, cancellations: Cancellations
    ) -> None:
        kill = partial(_kill, ref)
        if isinstance(error, GeneratorExit):  # the collector may destroy the task during the wait
            self._request_end()
        if (earlier := self._closing) is not None:  # the caller has chosen the timeout of that close
            await cancellations.outlast(lambda: _settled(earlier), again=kill)
        closed = ref.ask(Close(), block=False)
        await cancellations.outlast(lambda: closed, again=kill)

    def _here(self) -> pykka.ActorRef[Supervisor]:
        """Return the Supervisor. Raise before the block, and in another process or event loop than the gang's."""
        self._home.check()
        if self._ref is None:
            raise SpecError(f"gang {self._name!r} does not run yet; use it inside `async with`")
        return self._ref

    def _running(self) -> pykka.ActorRef[Supervisor]:
        ref = self._here()
        if self._left:
            raise SpecError(f"the block of gang {self._name!r} was left, which has closed the gang; make another Gang")
        return ref

    async def _ask(self, message: object) -> Any:
        return await self._running().ask(message, block=False)

    # The operations of the actor

    async def wait(self) -> RunProcsResult:
        """Return the result when the gang has finished, also after the block. A canceled wait leaves nothing behind.

        Raises:
            SupervisorCrashed: A handler inside supervise raised; the ranks were killed.
            SpecError: The gang belongs to another process or event loop, or does not run yet.
        """
        ref = self._here()
        if self._ending.message is not None:
            return _result(self._ending.message)
        found: RunProcsResult = await _answer(ref.ask(Wait(), block=False))
        return found

    async def close(self, timeout_s: float | None = None, *, death_sig: Signals | None = None) -> RunProcsResult:
        """Stop the gang, and return the result when none of its processes is left. Idempotent.

        If the task is canceled meanwhile, the gang is closed all the same, and the block waits for that.

        Args:
            timeout_s: Seconds from the first signal to SIGKILL; None for the gang's `grace`.
            death_sig: The first signal; None for SIGTERM. SIGKILL kills the ranks at once.

        Raises:
            SpecError: An argument is not valid, or as for `wait`.
            UnkillableError: A process survived SIGKILL.
            SupervisorCrashed: A handler inside supervise raised; the ranks were killed.
        """
        ref = self._here()
        if self._left and self._ending.message is not None:
            return _result(self._ending.message)
        self._closing = ref.ask(Close(death_sig=death_sig, timeout=timeout_s), block=False)
        found: RunProcsResult = await self._closing
        return found

    async def pids(self) -> dict[int, int]:
        """Return ``{rank: pid}`` of all ranks that were started, including those that have ended."""
        found: dict[int, int] = await self._ask(Pids())
        return found

    async def status(self) -> GangStatus:
        """Return the present state of the gang and of each rank."""
        found: GangStatus = await self._ask(Status())
        return found

    async def signal(self, sig: Signals, ranks: Iterable[int] | None = None) -> frozenset[int]:
        """Send a signal to the process groups of running ranks; return the ranks that were signaled.

        Args:
            sig: The signal.
            ranks: Which ranks; None for all.

        Raises:
            SpecError: `sig` is not a signal, or a rank is not in the gang.
        """
        found: frozenset[int] = await self._ask(Signal(sig=sig, ranks=_some(ranks)))
        return found

    async def restart_ranks(self, ranks: Iterable[int]) -> dict[int, int]:
        """Restart exactly these ranks; return their ``{rank: pid}`` when all of them run. See `RestartRanks`.

        Raises:
            SpecError: A rank is not in the gang, or the gang is stopping or has finished.
            SuperviseError: The gang has ended first, or a rank did not start.
        """
        found: dict[int, int] = await self._ask(RestartRanks(cast("Any", _some(ranks))))
        return found

    async def terminate_ranks(self, ranks: Iterable[int]) -> dict[int, int]:
        """Stop exactly these ranks; return their ``{rank: pid}`` when no process of them is left. See `TerminateRanks`.

        Raises:
            SpecError: A rank is not in the gang, or the gang is stopping or has finished.
            SuperviseError: The gang has ended first.
        """
        found: dict[int, int] = await self._ask(TerminateRanks(cast("Any", _some(ranks))))
        return found

    async def stacks(self, ranks: Iterable[int] | None = None) -> dict[int, RankStacks]:
        """Return the stacks of the threads of running ranks, in at most 2.5 s. See `Stacks`.

        Args:
            ranks: Which ranks; None for all.

        Raises:
            SpecError: A rank is not in the gang.
        """
        found: dict[int, RankStacks] = await self._ask(Stacks(ranks=_some(ranks)))
        return found

    def events(self, *, buffer_size: int = BUFFER_SIZE) -> Events:
        """Return an iterator over the events of the gang. It begins with those of the present life of each rank.

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
        events = Events(self._home, buffer_size=buffer_size)
        if self._left and self._ending.message is not None:
            events.end(self._ending.message)
            return events
        self._consumers.add(events)
        if self._ref is not None:
            events.subscribe(self._ref)
        return events


def _kill(ref: pykka.ActorRef[Supervisor]) -> None:
    ref.ask(Close(death_sig=SIGKILL), block=False)


def _some(ranks: Iterable[int] | None) -> frozenset[int] | None:
    """Return a set of ranks. A value that is not a collection is returned unchanged; the Supervisor refuses it."""
    try:
        return None if ranks is None else frozenset(ranks)
    except TypeError:
        return cast("frozenset[int]", ranks)


def _in_task() -> bool:
    try:
        return asyncio.current_task() is not None
    except RuntimeError:  # no event loop is running
        return False


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
