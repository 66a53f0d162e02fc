"""Future of the gang's actors. It has no shared lock, can defer a reply, and can be awaited without blocking."""

from __future__ import annotations

import queue
import sys
import time
import weakref
from _thread import get_ident
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pykka

from supervise._runtime import fork_hooks
from supervise._runtime.wakeup import bell_for_this_thread, remaining, waits
from supervise.events import log

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from types import TracebackType

    ExcInfo = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]
    Outcome = tuple[Any, BaseException | None]

T = TypeVar("T")
M = TypeVar("M")

MUST_NOT_BLOCK: set[int] = set()
"""Identifiers of the threads that run a loop. On such a thread, a wait for a reply would deadlock."""


_forks = 0
"""Number of forks between this process and the first process that imported this module."""


class Reply(pykka.Future[T]):
    """A future whose setter and getters share no lock.

    A signal handler may raise at any moment inside `get`. If `get` held a lock that the setter also needs, the lock
    would then stay locked, and the setter, which is the loop, would block forever. Here, one atomic operation puts the
    result into its slot. Each waiter has a private lock, which only the waiter acquires.

    To defer a reply, an actor sets it to a second `Reply`. The result of the second reply resolves both. The first
    reply holds a reference to the second one. The second reply holds only a weak reference to the first one, so that an
    abandoned reply is collected.
    """

    def __init__(self) -> None:
        super().__init__()
        self._slot: dict[str, Outcome] = {}
        self._awaited: Reply[T] | None = None
        self._forks = _forks
        self._waiters: deque[Callable[[], object]] = deque()
        self._sources: tuple[Reply[Any], ...] = ()

    def get(self, *, timeout: float | None = None) -> T:
        """Block until there is a result; return the value or raise the exception.

        Args:
            timeout: Seconds (monotonic) to wait; None waits without limit.

        Raises:
            pykka.Timeout: There was no result in time. The caller may use the future again.
        """
        if not self._settled:
            deadline = None if timeout is None else time.monotonic() + timeout
            self._block(timeout)
            timeout = remaining(deadline)
        if self._get_hook is not None:
            return super().get(timeout=timeout)
        value, error = self._slot["result"]
        if type(error) is pykka.ActorDeadError:  # a new error: a traceback holds a frame, which holds this reply
            raise pykka.ActorDeadError(*error.args)
        if error is not None:
            raise error
        return cast("T", value)

    def check_process(self) -> None:
        """Refuse to wait in a process that will not receive the reply.

        Raises:
            pykka.ActorDeadError: This process was forked from the process that asked.
        """
        if self._forks != _forks and not self._settled:
            raise pykka.ActorDeadError(
                "this process was forked from the one that asked; only that process receives the reply"
            )

    @waits
    def _block(self, timeout: float | None) -> None:
        self.check_process()
        if get_ident() in MUST_NOT_BLOCK:
            raise RuntimeError("get() on a supervisor's own thread would deadlock; use tell, or return the reply")
        deadline = None if timeout is None else time.monotonic() + timeout
        with bell_for_this_thread() as bell:
            ring = bell.ring
            self.add_done_callback(ring)
            while not self._settled:
                if not bell.wait(remaining(deadline)) and not self._settled:
                    self.forget(ring)
                    raise pykka.Timeout(f"{timeout} seconds")

    def forget(self, callback: Callable[[], object]) -> bool:
        """Remove a callback; return whether the setter will not call it. Idempotent, also after the call."""
        try:
            self._waiters.remove(callback)
        except ValueError:  # the setter has called it or is calling it
            return False
        return True

    @property
    def _settled(self) -> bool:
        """Whether the result exists, or a get-hook will compute it."""
        return bool(self._slot) or self._get_hook is not None

    def done(self) -> bool:
        """Return whether `get` would return at once. A reply with a get-hook is not done."""
        return bool(self._slot)

    def error(self) -> BaseException | None:
        """Return the exception if the result is one; None if there is a value, or no result yet."""
        return self._slot["result"][1] if self._slot else None

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Call `callback` in the setter's thread once there is a result.

        If there is a result already, call it at once.
        """
        self._waiters.append(callback)
        if self._settled and self.forget(callback):  # and no other, which an exception of a signal handler would lose
            callback()

    def _wake(self) -> None:
        while self._waiters:
            try:
                callback = self._waiters.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                callback()
            except Exception:  # a bug in this callback must not keep the others from being called
                log.exception("a done-callback raised")

    def set(self, value: T | Reply[T] | None = None) -> None:
        """Resolve with `value`. If `value` is a `Reply`, its result resolves this one.

        Raises:
            queue.Full: There is a result already.
        """
        if isinstance(value, Reply):
            if self._awaited is not None or self._settled:
                raise queue.Full
            self._awaited = value
            value.add_done_callback(partial(_follow, weakref.ref(self)))
            return
        self._resolve(value, None)

    def set_exception(self, exc_info: ExcInfo | None = None) -> None:
        """Resolve with an exception: with `exc_info`, or without it with the exception that is being handled.

        Raises:
            queue.Full: There is a result already.
        """
        kind, error, traceback = exc_info or sys.exc_info()
        if error is None:
            error = (kind or RuntimeError)()
        if isinstance(error, pykka.ActorDeadError):
            # A traceback holds the frame of the ask, which holds this reply
            traceback = error.__traceback__ = None
        if traceback is not None and error.__traceback__ is not traceback:
            error = error.with_traceback(traceback)
        self._resolve(None, error)

    def fail(self, error: BaseException) -> None:
        """Resolve with `error`, unless there is a result already."""
        if not self._slot:
            self._slot.setdefault("result", (None, error))
            self._wake()

    def _follow(self) -> None:
        """Take over the result of the `Reply` that was given to `set`."""
        source = self._awaited
        assert source is not None  # noqa: S101 - `source` calls this method
        if source._get_hook is not None:
            self._sources = (source,)
            self._get_hook = lambda timeout: source.get(timeout=timeout)
        else:
            self._slot.setdefault("result", source._slot["result"])
        self._wake()

    def _resolve(self, value: object, error: BaseException | None) -> None:
        outcome: Outcome = (value, error)
        foreseen = self._awaited is not None or self._get_hook is not None
        if foreseen or self._slot.setdefault("result", outcome) is not outcome:
            raise queue.Full
        self._wake()

    def set_get_hook(self, func: Callable[[float | None], T]) -> None:
        """Compute the result by `func` in the getter's thread. This is pykka's contract for `map` and `stop`."""
        if self._slot or self._awaited is not None:
            raise queue.Full
        super().set_get_hook(func)
        self._wake()

    def _derived(self, future: pykka.Future[M], *sources: pykka.Future[Any]) -> pykka.Future[M]:
        ours = tuple(source for source in sources if isinstance(source, Reply))
        if len(ours) == len(sources):  # not so with a future of another class, which has no done-callback
            cast("Reply[M]", future)._sources = ours
        return future

    def filter(self: Reply[Any], func: Callable[[Any], bool]) -> pykka.Future[Any]:
        """Do the same as `pykka.Future.filter`. An ``await`` of the result does not block the event loop."""
        return self._derived(super().filter(func), self)

    def join(self, *futures: pykka.Future[Any]) -> pykka.Future[Iterable[Any]]:
        """Do the same as `pykka.Future.join`. An ``await`` of the result does not block the event loop."""
        return self._derived(super().join(*futures), self, *futures)

    def map(self, func: Callable[[T], M]) -> pykka.Future[M]:
        """Do the same as `pykka.Future.map`. An ``await`` of the result does not block the event loop."""
        return self._derived(super().map(func), self)

    def reduce(self: Reply[Any], func: Callable[[Any, Any], Any], *args: Any) -> pykka.Future[Any]:
        """Do the same as `pykka.Future.reduce`. An ``await`` of the result does not block the event loop."""
        return self._derived(super().reduce(func, *args), self)

    def __await__(self) -> Generator[Any, None, T]:
        """Wait in an asyncio task, without blocking the event loop of the task."""
        import asyncio

        self.check_process()
        loop = asyncio.get_running_loop()
        if (yield from self._at_hand(loop)):
            return self.get(timeout=0)
        return (yield from loop.run_in_executor(None, self.get).__await__())

    __iter__ = __await__

    def _at_hand(self, loop: Any) -> Generator[Any, None, bool]:
        """Wait for the known sources of the result.

        Return False if there may be other sources; `get` may then block.
        """
        if not self._settled:  # as with a future of asyncio, the wait for a result that exists suspends no task
            yield from _arrival(self, loop)
        if self._get_hook is None:
            return True
        for source in self._sources:
            if not (yield from source._at_hand(loop)):
                return False
        return bool(self._sources)


def _follow(follower: weakref.ref[Reply[Any]]) -> None:
    """Resolve a reply that was set to another reply, unless the first one was collected."""
    reply = follower()
    if reply is not None:
        reply._follow()


def _arrival(reply: Reply[Any], loop: Any) -> Generator[Any, None, None]:
    """Wait in a task of `loop` until `reply` has a result. A canceled task removes its callback.

    Meanwhile the loop holds the future, and so the task. Otherwise the loop holds the task only weakly, and only the
    task holds the reply.
    """
    arrived = loop.create_future()
    held = getattr(loop, "__dict__", {}).setdefault("_supervise_arrivals", set())  # none: a loop of another language
    held.add(arrived)

    def settle() -> None:
        if not arrived.done():
            arrived.set_result(None)

    def hand_over() -> None:
        try:
            loop.call_soon_threadsafe(settle)
        except RuntimeError:  # the event loop was closed, so its tasks have ended
            return

    reply.add_done_callback(hand_over)
    try:
        yield from arrived
    finally:
        held.discard(arrived)
        reply.forget(hand_over)


def _count_forks() -> None:
    global _forks  # noqa: PLW0603 - the process has one count
    _forks += 1


fork_hooks.register("future", in_child=_count_forks)
