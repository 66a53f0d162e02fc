"""Event loop of a gang: one thread and one selector for messages, file descriptors and timers."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import os
import select
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from supervise import _platform as platform
from supervise._runtime.future import MUST_NOT_BLOCK, Reply
from supervise._runtime.wakeup import WakeFd
from supervise.events import log

if TYPE_CHECKING:
    from collections.abc import Callable

_LONGEST_SELECT_S = 86_400.0
_AT_ONCE = 32
"""Number of callbacks between two polls of the descriptors.

The limit keeps the start of many ranks from delaying exits.
"""


class Timer:
    """A callback with a due time."""

    __slots__ = ("_callback", "due_s")

    def __init__(self, callback: Callable[[], object] | None, due_s: float) -> None:
        self._callback = callback
        self.due_s: float = due_s

    def cancel(self) -> None:
        """Drop the callback. Call this only on the loop's thread. Idempotent, also after the callback was called."""
        self._callback = None

    def fire(self) -> None:
        """Call the callback, once."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    @property
    def pending(self) -> bool:
        """Whether the callback was neither called nor dropped."""
        return self._callback is not None


NO_TIMER = Timer(None, math.inf)
"""A timer that is not pending, in place of one that is not set yet."""


class Loop:
    """The thread that runs all actors of one gang.

    The thread wakes up only for a posted callback, a ready file descriptor or a due timer. Callbacks run one at a time,
    in the order in which they became due. The loop catches and logs every exception of a callback, also `SystemExit`.
    """

    def __init__(self, name: str, *, lost: Callable[[BaseException], object], own_thread: bool = True) -> None:
        """Make a loop that is not running yet.

        Args:
            name: Name of the thread.
            own_thread: Whether `start` starts a thread. Otherwise the thread that calls `start` calls `run` next.
            lost: Function that is called on the loop's thread if the loop itself fails, for instance because user code
                has closed the selector's descriptor. Then the loop watches no descriptor any more, but goes on until
                `end`. After a second failure, the function is called again, and the loop ends.
        """
        self._name = name
        self._own_thread = own_thread
        self._lost = lost
        self.ended: Reply[None] = Reply()
        """Resolved once every callback was called and the loop's descriptors are closed."""
        self._ready: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._watched: dict[int, Callable[[], object]] = {}
        self.events: int = 0
        """What epoll has reported of the descriptor whose callback is called now."""
        self._selector: select.epoll
        self._wake_fd: WakeFd | None = None
        self._awake = True
        self._ending = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self._claim = threading.Lock()
        """Lock whose owner closes the descriptors.

        The owner is the thread, or a start that fails before the thread runs.
        """

    def start(self) -> None:
        """Start the thread, or prepare `run`.

        The thread is a daemon. Any other thread would block the exit of the interpreter.
        """
        self._selector = platform.needed(select.epoll)
        try:
            self._watch_wake_ups()
            if not self._own_thread:
                self._thread = threading.current_thread()
                return
            self._thread = threading.Thread(target=self.run, name=self._name, daemon=True)
            platform.start_thread(self._thread, f"the supervisor {self._name!r}")
        except BaseException:  # no thread is available; or a signal handler has raised, and the thread may run
            self.abandon()
            raise

    def abandon(self) -> None:
        """Close all descriptors after a failed start. If the thread already runs, the thread closes them."""
        if self._claim.acquire(blocking=False):
            self._give_back()
        else:
            self.post(self.end)

    @property
    def in_loop(self) -> bool:
        """Whether the caller runs on this loop's thread."""
        return self._thread is not None and threading.get_ident() == self._thread.ident

    @property
    def running(self) -> bool:
        """Whether the loop will still call posted callbacks."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def wakes_up(self) -> bool:
        """Whether a post reaches the loop's thread: user code has closed no descriptor of it."""
        try:
            for source in (self._selector, self._wake_fd):
                os.fstat(-1 if source is None else source.fileno())
        except (OSError, ValueError):
            return False
        return True

    def join(self, timeout: float) -> bool:
        """Wait in another thread until the loop's thread has ended; return whether it has."""
        if self._thread is not None and not self.in_loop:
            self._thread.join(timeout)
        return not self.running

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        """Schedule `callback(*args)` on the loop. Callable from any thread. Never blocks."""
        self._ready.append((callback, args))
        if not self._awake and self._wake_fd is not None:
            self._wake_fd.set()
        elif self._closed:  # the loop and its actors have ended, and the actors refuse every message
            self._drain()

    def end(self) -> None:
        """End the thread after the callbacks that are ready now. Call this on the loop's thread."""
        self._ending = True

    def call_at(self, when_s: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` at `when_s` (seconds of `time.monotonic`). Call this on the loop's thread.

        Raises:
            ValueError: `when_s` is nan, which would break the order of the heap and delay other timers.
        """
        if math.isnan(when_s):
            raise ValueError(f"when_s is {when_s}")
        timer = Timer(callback, when_s)
        heapq.heappush(self._timers, (when_s, next(self._order), timer))
        return timer

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` in `delay_s` seconds. Call this on the loop's thread."""
        return self.call_at(time.monotonic() + delay_s, callback)

    def watch(self, fd: int, callback: Callable[[], object]) -> None:
        """Call `callback` whenever `fd` is readable. Call this on the loop's thread."""
        self._selector.register(fd, select.EPOLLIN)
        self._watched[fd] = callback

    def watch_for(self, fd: int, events: int) -> None:
        """Call the callback of a watched descriptor at these events from now on. Call this on the loop's thread."""
        self._selector.modify(fd, events)

    def unwatch(self, fd: int) -> None:
        """Stop watching `fd`. Call this before the descriptor is closed.

        A child between vfork and exec holds a copy of the descriptor. So if the descriptor were closed without
        `unwatch`, the kernel's epoll set would keep a stale entry that stays ready.
        """
        if self._watched.pop(fd, None) is not None:
            try:  # noqa: SIM105 - a context manager would cost four calls for each descriptor
                self._selector.unregister(fd)
            except (OSError, ValueError):  # user code has closed one of the descriptors
                pass

    def poll(self) -> None:
        """Call the callbacks of the descriptors that are ready now. Call this on the loop's thread."""
        self._serve(self._poll(0))

    def run(self) -> None:
        """Run the loop until `end`. The loop's thread calls this method."""
        if not self._claim.acquire(blocking=False):
            return
        MUST_NOT_BLOCK.add(threading.get_ident())
        try:
            for _ in range(2):  # after the first failure, the loop goes on, so that its owner can end what it has begun
                try:
                    self._run()
                    break
                except BaseException as error:
                    self._awake = True
                    self._guard(self._renew)
                    self._guard(self._lost, error)
        finally:
            self._closed = True
            self._drain()
            MUST_NOT_BLOCK.discard(threading.get_ident())
            self._give_back()
            self._guard(self.ended.set, None)

    def _run(self) -> None:
        while True:
            self._drain(_AT_ONCE)
            self._fire_timers()
            if self._ending and not self._ready:
                break
            self._awake = False
            found = self._poll(0 if self._ready else self._until_timer())
            self._awake = True  # before the callbacks, because a post by one of them needs no wake-up
            self._serve(found)

    def _renew(self) -> None:
        """Replace the selector, which then watches no descriptor but that of the wake-up event."""
        self._close()  # first, because a new descriptor may get the number of a closed one
        self._selector = platform.needed(select.epoll)
        self._watch_wake_ups()

    def _watch_wake_ups(self) -> None:
        self._wake_fd = WakeFd()
        self.watch(self._wake_fd.fileno(), self._wake_fd.clear)

    def _close(self) -> None:
        self._watched.clear()
        self._guard(self._selector.close)
        if self._wake_fd is not None:
            self._guard(self._wake_fd.close)

    def _give_back(self) -> None:
        self._timers.clear()
        self._lost = lambda _: None  # the actor's method would keep actor and loop alive in a cycle
        self._close()

    def _drain(self, at_most: int | None = None) -> None:
        ready = self._ready
        for _ in itertools.count() if at_most is None else range(at_most):
            if not ready:
                return
            try:
                callback, args = ready.popleft()
            except IndexError:  # after the end, a thread that posts also empties the queue
                return
            try:
                callback(*args)
            except BaseException:
                self._log_unhandled()

    def _fire_timers(self) -> None:
        timers = self._timers
        while timers and (timers[0][0] <= time.monotonic() or not timers[0][2].pending):
            self._guard(heapq.heappop(timers)[2].fire)

    def _until_timer(self) -> float:
        timers = self._timers
        if not timers:  # `_fire_timers` has just removed those that were canceled
            return _LONGEST_SELECT_S
        return min(max(0.0, timers[0][0] - time.monotonic()), _LONGEST_SELECT_S)

    def _poll(self, timeout_s: float) -> list[tuple[int, int]]:
        return self._selector.poll(timeout_s, max(1, len(self._watched)))

    def _serve(self, found: list[tuple[int, int]]) -> None:
        ready = [(fd, events, self._watched.get(fd)) for fd, events in found]
        for fd, events, callback in ready:
            if callback is not None and self._watched.get(fd) is callback:  # no earlier callback has unwatched it
                self.events = events
                try:  # not by `_guard`, which would cost another call for each descriptor
                    callback()
                except BaseException:
                    self._log_unhandled()

    def _guard(self, callback: Callable[..., object], *args: Any) -> None:
        try:
            callback(*args)
        except BaseException:
            self._log_unhandled()

    def _log_unhandled(self) -> None:
        with contextlib.suppress(BaseException):  # a logging handler of the application may raise, too
            log.exception("unhandled exception in a callback of %s", self._name)
