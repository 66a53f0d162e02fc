"""The news of a host, as a queue of numbered items that the driver reads by long polls."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from supervise._hosts.orders import News
from supervise._runtime.future import Reply

if TYPE_CHECKING:
    from supervise._hosts.orders import NewsKind

_MOST_OUTPUT_BYTES = 4 << 20
"""Limit on the output that waits for the driver.

Further output stays in the log files until the driver has read this.
"""
_BATCH = 256


class NewsQueue:
    """Queue of the news that the driver has not confirmed. Thread-safe.

    A poll names the number of the last item that the driver has. The queue then forgets all items up to this one. So
    the driver can repeat a poll whose reply was lost, and loses no item.
    """

    def __init__(self) -> None:
        """Begin empty."""
        self._changed = threading.Condition()
        self._queue: deque[News] = deque()
        self._count = 0
        self._output_bytes = 0
        self._poll: Reply[list[News]] | None = None
        self._closed = False

    def add(self, kind: NewsKind, what: Any) -> None:
        """Add one item. An item of output blocks the caller while the driver has too much unread output."""
        size = len(what) if kind in ("stdout", "stderr") else 0
        with self._changed:
            if size:
                self._changed.wait_for(lambda: self._closed or self._output_bytes < _MOST_OUTPUT_BYTES)
            self._count += 1
            self._queue.append(News(self._count, kind, what))
            self._output_bytes += size
            poll, self._poll = self._poll, None
            found = self._found() if poll is not None else []
        if poll is not None:
            poll.set(found)

    def after(self, number: int) -> Reply[list[News]]:
        """Return a reply with the news after `number`. The reply is set as soon as there is any.

        The poll replaces an earlier one.
        """
        reply: Reply[list[News]] = Reply()
        with self._changed:
            while self._queue and self._queue[0].number <= number:
                read = self._queue.popleft()
                self._output_bytes -= len(read.what) if read.kind in ("stdout", "stderr") else 0
            self._changed.notify_all()
            earlier, self._poll = self._poll, None
            found = self._found()
            waits = not found and not self._closed
            if waits:
                self._poll = reply
        if earlier is not None:
            earlier.set([])
        if not waits:
            reply.set(found)
        return reply

    def close(self) -> None:
        """Answer the present poll, and let output that waits continue."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            poll, self._poll = self._poll, None
        if poll is not None:
            poll.set([])

    def _found(self) -> list[News]:
        return [each for each, _ in zip(self._queue, range(_BATCH), strict=False)]
