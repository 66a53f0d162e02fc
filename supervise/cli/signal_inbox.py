"""Where the main thread waits: for signals, for what the gang says, for replies. Nothing is raised in between."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType, TracebackType

    from supervise._runtime.future import Reply

Letter = signal.Signals | dict[str, Any]
"""A signal that we got, or an event of the gang."""


class Mailbox:
    """Turns signals into letters, which lie behind one file descriptor. Made and read on the main thread.

    The handlers do nothing: the interpreter itself writes a signal's number into our pipe, from whatever thread
    the kernel chose. So no handler can raise in the middle of something.
    """

    def __init__(self, signals: Iterable[signal.Signals], *, restore: bool) -> None:
        """Prepare; nothing is installed yet.

        Args:
            signals: Which to receive; those that this process was started with ignored stay ignored.
            restore: Put the earlier handlers back at the end; otherwise these signals are ignored from then on.
        """
        self._signals = tuple(signals)
        self._restore = restore
        self._before: dict[signal.Signals, Any] = {}
        self._letters: queue.SimpleQueue[Letter] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)
        self._earlier_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for sig in self._signals:
            if (before := signal.getsignal(sig)) != signal.SIG_IGN:
                signal.signal(sig, _nothing)
                self._before[sig] = before
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._earlier_fd)
        for sig, before in self._before.items():
            # Ignored to the very end: the interpreter, as it exits, resets handlers, and a late Ctrl-C would kill it.
            signal.signal(sig, before if self._restore else signal.SIG_IGN)
        write, self._write = self._write, -1  # a reply may still come
        os.close(self._read)
        os.close(write)

    def put(self, letter: Letter) -> None:
        """Put a letter in, from any thread; never blocks."""
        self._letters.put(letter)
        self.wake()

    def expect(self, reply: Reply[Any]) -> None:
        """End the wait when `reply` is there."""
        reply.add_done_callback(self.wake)

    def wake(self) -> None:
        """End the wait, if there is one. From any thread; never blocks."""
        with contextlib.suppress(OSError):  # full: it is awake; closed: nobody waits
            os.write(self._write, b"\0")

    def take(self, timeout_s: float | None) -> list[Letter]:
        """Wait until something arrives, a reply perhaps; return the letters, none after `timeout_s`."""
        if not self._poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000):
            return []
        letters: list[Letter] = []
        with contextlib.suppress(BlockingIOError):
            letters += [signal.Signals(number) for number in os.read(self._read, 65536) if number]
        while True:
            try:
                letters.append(self._letters.get_nowait())
            except queue.Empty:
                return letters


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Be a handler: the number is in the pipe already."""
