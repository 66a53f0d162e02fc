"""The signal inbox, at which the main thread waits for signals, messages and replies. No handler raises."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import time
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType, TracebackType


_Message = TypeVar("_Message")


class SignalInbox(Generic[_Message]):
    """A queue of signals and messages behind one file descriptor. Created and read on the main thread.

    The signal handlers only note the time: the interpreter writes the signal's number to the wake-up pipe, on the
    thread that the kernel chose. So no handler can raise an exception between two bytecodes.
    """

    def __init__(self, signals: Iterable[signal.Signals], *, restore: bool) -> None:
        """Prepare; entering the block installs the handlers.

        Args:
            signals: Signals to receive. A signal that is ignored since the start of the process stays ignored.
            restore: Whether to restore the earlier handlers at the end. Otherwise the signals are ignored from then on.
        """
        self._signals = tuple(signals)
        self._restore = restore
        self._before: dict[signal.Signals, Any] = {}
        self._queue: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._noted: dict[int, list[float]] = {}
        """Number of each signal that was handled since the last `take` to its monotonic times."""
        self._arrivals: dict[int, list[float]] = {}

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)
        self._earlier_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for sig in self._signals:
            if (before := signal.getsignal(sig)) != signal.SIG_IGN:
                signal.signal(sig, self._note)
                self._before[sig] = before
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._before)  # the starter of this process may have blocked them
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._earlier_fd)
        for sig, before in self._before.items():
            # SIG_IGN until the process ends: at exit the interpreter resets handlers, and a late Ctrl-C would kill it.
            signal.signal(sig, before if self._restore else signal.SIG_IGN)
        write, self._write = self._write, -1  # first, since a reply may still call `wake`
        os.close(self._read)
        os.close(write)

    def fileno(self) -> int:
        """Return the descriptor, which is readable while a wake-up is pending."""
        return self._read

    def put(self, item: _Message) -> None:
        """Add a message. Thread-safe; never blocks."""
        self._queue.put(item)
        self.wake()

    def wake(self) -> None:
        """Wake the main thread. Thread-safe; never blocks."""
        with contextlib.suppress(OSError):  # the pipe is full: a wake-up is pending; or closed: the run has ended
            os.write(self._write, b"\0")

    def take(self, timeout_s: float | None) -> list[signal.Signals | _Message]:
        """Wait for a wake-up, a reply or `timeout_s` seconds; return the signals and messages that have arrived."""
        if not self._poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000):
            return []
        received: list[signal.Signals | _Message] = []
        with contextlib.suppress(BlockingIOError):
            received += [signal.Signals(number) for number in os.read(self._read, 65536) if number]
        self._arrivals, self._noted = self._noted, {}  # after the read: what was read has been handled
        return received + [self._queue.get_nowait() for _ in range(self._queue.qsize())]

    def arrival_s(self, sig: signal.Signals) -> float:
        """Return the monotonic time at which a signal arrived, in their order for the signals of the last `take`.

        The main thread may take a signal late, for example because it has written to a stderr that blocked.
        """
        times = self._arrivals.get(sig, [])
        if not times:
            return time.monotonic()
        return times.pop(0) if len(times) > 1 else times[0]  # the interpreter may handle several at once

    def _note(self, number: int, _frame: FrameType | None) -> None:
        """Note the time. The interpreter has written the number to the pipe."""
        self._noted.setdefault(number, []).append(time.monotonic())
