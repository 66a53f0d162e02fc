"""One thread, one selector: envelopes, file descriptors and timers of a gang."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import math
import selectors
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from supervise import _threads
from supervise._runtime.future import MUST_NOT_BLOCK, Reply
from supervise._runtime.wakeup import WakeFd

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("supervise")

_LONGEST_SELECT_S = 86_400.0
_AT_ONCE = 32
"""How many callbacks are called before descriptors are looked at: an exit is noticed while a thousand ranks start."""


class Timer:
    """A callback that is due at a moment; `cancel` may come at any time, from the loop's thread."""

    __slots__ = ("_callback", "due_s")

    def __init__(self, callback: Callable[[], object], due_s: float) -> None:
        self._callback: Callable[[], object] | None = callback
        self.due_s = due_s

    def cancel(self) -> None:
        """Never call the callback; harmless when it was called already."""
        self._callback = None

    def fire(self) -> None:
        """Call the callback, once."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    @property
    def pending(self) -> bool:
        """Whether the callback is still to be called."""
        return self._callback is not None


class Loop:
    """The thread that runs everything of one gang.

    It wakes only for a posted callback, a ready file descriptor or a due timer. Callbacks run one
    at a time, in the order in which they became due, under one guard: no exception, not even a
    `SystemExit`, ends the loop or reaches another callback.
    """

    def __init__(self, name: str, *, lost: Callable[[BaseException], object], own_thread: bool = True) -> None:
        """Make a loop that is not running yet.

        Args:
            name: Of the thread.
            own_thread: Whether `start` starts a thread; otherwise the one that calls it calls `run` next.
            lost: Called on the loop's thread if its own machinery fails (the selector's descriptor
                was closed by a stranger); the loop ends after it.
        """
        self._name = name
        self._own_thread = own_thread
        self._lost = lost
        self.ended: Reply[None] = Reply()
        """Set when every callback has been called and the loop's descriptors are closed."""
        self._ready: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._watched: dict[int, Callable[[], object]] = {}
        self._selector: selectors.BaseSelector
        self._wake_fd: WakeFd | None = None
        self._awake = True
        self._ending = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self._claim = threading.Lock()
        """Whoever gets it gives the descriptors back: the thread, or a start that fails before the thread runs."""

    def start(self) -> None:
        """Start the thread, a daemon, since a non-daemon one would hang the interpreter's exit; or prepare `run`."""
        self._selector = selectors.DefaultSelector()
        try:
            self._wake_fd = WakeFd()
            self.watch(self._wake_fd.fileno(), self._wake_fd.clear)
            if not self._own_thread:
                self._thread = threading.current_thread()
                return
            self._thread = threading.Thread(target=self.run, name=self._name, daemon=True)
            _threads.start(self._thread, f"the supervisor {self._name!r}")
        except BaseException:  # no thread to be had; or a signal's handler has raised, and the thread may run
            self.abandon()
            raise

    def abandon(self) -> None:
        """Give everything back, or have the thread do it if it runs already: the start has failed."""
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
        """Whether posted callbacks will still be called."""
        return self._thread is not None and self._thread.is_alive()

    def join(self, timeout: float) -> bool:
        """Wait for the thread's end from another thread; tell whether it came."""
        if self._thread is not None and not self.in_loop:
            self._thread.join(timeout)
        return not self.running

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        """Have `callback(*args)` called on the loop. From any thread; never blocks."""
        self._ready.append((callback, args))
        if not self._awake and self._wake_fd is not None:
            self._wake_fd.set()
        elif self._closed:  # too late for the loop: its actors have ended and refuse what comes
            self._drain()

    def end(self) -> None:
        """End the thread once what is ready now has been called. From the loop's thread."""
        self._ending = True

    def call_at(self, when_s: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` at `when_s` (seconds of `time.monotonic`). From the loop's thread.

        Raises:
            ValueError: `when_s` is not a number, which would hold up every other timer.
        """
        if math.isnan(when_s):
            msg = "a timer cannot be due at nan"
            raise ValueError(msg)
        timer = Timer(callback, when_s)
        heapq.heappush(self._timers, (when_s, next(self._order), timer))
        return timer

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` in `delay_s` seconds. From the loop's thread."""
        return self.call_at(time.monotonic() + delay_s, callback)

    def watch(self, fd: int, callback: Callable[[], object]) -> None:
        """Call `callback` whenever `fd` is readable. From the loop's thread."""
        self._selector.register(fd, selectors.EVENT_READ)
        self._watched[fd] = callback

    def unwatch(self, fd: int) -> None:
        """Stop watching `fd`; do it before the descriptor is closed.

        A child between vfork and exec holds a copy of it, so closing alone leaves a stale entry in
        the kernel's set that stays ready for ever.
        """
        self._watched.pop(fd, None)
        try:
            self._selector.unregister(fd)
        except (KeyError, ValueError, OSError):
            log.debug("descriptor %d was not watched", fd)

    def poll(self) -> None:
        """Call the callbacks of the descriptors that are ready at this moment. From the loop's thread."""
        self._serve(self._selector.select(0))

    def run(self) -> None:
        """Be the loop, until `end`. Called by its thread."""
        if not self._claim.acquire(blocking=False):
            return
        MUST_NOT_BLOCK.add(threading.get_ident())
        try:
            while True:
                self._drain(_AT_ONCE)
                self._fire_timers()
                if self._ending and not self._ready:
                    break
                self._awake = False
                found = self._selector.select(0.0 if self._ready else self._until_timer())
                self._awake = True  # before the callbacks, which would wake us by what they post
                self._serve(found)
        except BaseException as error:
            self._awake = True
            self._guard(self._lost, error)
        finally:
            self._closed = True
            self._drain()
            MUST_NOT_BLOCK.discard(threading.get_ident())
            self._give_back()
            self._guard(self.ended.set, None)

    def _give_back(self) -> None:
        self._watched.clear()
        self._timers.clear()
        self._lost = _nobody  # the actor's own method, so actor and loop would keep each other alive
        self._guard(self._selector.close)
        if self._wake_fd is not None:
            self._guard(self._wake_fd.close)

    def _drain(self, at_most: int | None = None) -> None:
        ready = self._ready
        for _ in itertools.count() if at_most is None else range(at_most):
            if not ready:
                return
            try:
                callback, args = ready.popleft()
            except IndexError:  # at the end, a poster helps to drain
                return
            self._guard(callback, *args)

    def _fire_timers(self) -> None:
        timers = self._timers
        while timers and (timers[0][0] <= time.monotonic() or not timers[0][2].pending):
            self._guard(heapq.heappop(timers)[2].fire)

    def _until_timer(self) -> float:
        timers = self._timers
        while timers and not timers[0][2].pending:
            heapq.heappop(timers)
        if not timers:
            return _LONGEST_SELECT_S
        return min(max(0.0, timers[0][0] - time.monotonic()), _LONGEST_SELECT_S)

    def _serve(self, found: list[tuple[selectors.SelectorKey, int]]) -> None:
        ready = [(key.fd, self._watched.get(key.fd)) for key, _ in found]
        for fd, callback in ready:
            if callback is not None and self._watched.get(fd) is callback:  # nobody before it has unwatched it
                self._guard(callback)

    def _guard(self, callback: Callable[..., object], *args: Any) -> None:
        try:
            callback(*args)
        except BaseException:
            with contextlib.suppress(BaseException):  # a handler of the application's logging may raise, too
                log.exception("unhandled exception in a callback of %s", self._name)


def _nobody(_error: BaseException) -> None:
    """The loop has ended."""
