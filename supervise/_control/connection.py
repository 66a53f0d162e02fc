"""One client of the control server: its buffers, with their bounds, and the requests that wait for an answer."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from supervise._control.protocol import MOST_LINE_BYTES, Refusal

if TYPE_CHECKING:
    from supervise._runtime.future import Reply

MOST_PENDING = 8
"""How many requests of a client may wait for an answer. More stay in the socket, whose buffer is bounded."""
_CALM_BYTES = 256 << 10
"""A client with more unread answers than this is not read."""


class Connection:
    """A connected client. Used on the server's thread; no method blocks."""

    def __init__(self, end: socket.socket, pid: int) -> None:
        """Take over a connected socket.

        Args:
            end: The socket.
            pid: Process ID of the client.
        """
        end.setblocking(False)
        self.end = end
        self.pid = pid
        self.pending: dict[int, tuple[str, str | int | None, Reply[Any]]] = {}
        """Number to name, ``id`` and reply of each request that waits for its answer."""
        self.unsent_bytes = 0
        self.progress_s = time.monotonic()
        """When the client last sent a request, or read a part of an answer."""
        self.events = select.EPOLLIN
        """What the server's epoll set watches."""
        self.is_half_closed = False
        """Whether the client has closed its sending side."""
        self._received = bytearray()
        self._unsent: deque[memoryview] = deque()

    def receive(self) -> bool:
        """Read what has arrived, up to the length of a line; return whether more may come.

        Raises:
            OSError: The connection is broken.
        """
        try:
            data = self.end.recv(MOST_LINE_BYTES)
        except (BlockingIOError, InterruptedError):
            return True
        self._received += data
        self.is_half_closed = not data
        return bool(data)

    @property
    def may_ask(self) -> bool:
        """Whether its next request may be handled."""
        return len(self.pending) < MOST_PENDING and self.unsent_bytes < _CALM_BYTES

    @property
    def has_line(self) -> bool:
        """Whether a request has arrived and is not handled yet."""
        return b"\n" in self._received

    def next_line(self) -> bytes | None:
        """Return the next request; None until it is complete.

        Raises:
            Refusal: It is longer than allowed.
        """
        end = self._received.find(b"\n", 0, MOST_LINE_BYTES)
        if end < 0:
            if len(self._received) >= MOST_LINE_BYTES:
                raise Refusal("too-long", f"the line has more than {MOST_LINE_BYTES} bytes")
            return None
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        self.progress_s = time.monotonic()
        return line

    def send(self, line: bytes) -> None:
        """Send a line, now or when the client reads.

        Raises:
            OSError: The connection is broken.
        """
        if not self._unsent:
            self.progress_s = time.monotonic()
        self._unsent.append(memoryview(line))
        self.unsent_bytes += len(line)
        self.flush()

    def flush(self) -> None:
        """Send as much as the client's socket takes.

        Raises:
            OSError: The connection is broken.
        """
        while self._unsent:
            try:
                sent = self.end.send(self._unsent[0], socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                return
            self.unsent_bytes -= sent
            self.progress_s = time.monotonic()
            rest = self._unsent[0][sent:]
            if rest:
                self._unsent[0] = rest
            else:
                self._unsent.popleft()

    def wanted_events(self) -> int:
        """Return the events to watch: input unless a request is waiting, and output if an answer is waiting."""
        reads = self.may_ask and not self.is_half_closed and not self.has_line
        return (select.EPOLLIN if reads else 0) | (select.EPOLLOUT if self._unsent else 0)

    @property
    def is_over(self) -> bool:
        """Whether the client has closed its sending side and has received all its answers."""
        return self.is_half_closed and not self.pending and not self._unsent and not self.has_line

    @property
    def is_served(self) -> bool:
        """Whether the client has received the answers to all its requests."""
        return not self.pending and not self._unsent

    def close(self) -> None:
        """Close the connection and abandon its requests."""
        self.pending.clear()
        self._unsent.clear()
        with contextlib.suppress(OSError):  # not connected any more
            self.end.shutdown(socket.SHUT_RDWR)  # a forked child may hold a copy of the descriptor
        self.end.close()
