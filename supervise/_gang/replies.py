"""The pending replies of a Supervisor."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from supervise._runtime.future import Reply

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervise._runtime.loop import Loop, Timer
    from supervise.result import RunProcsResult


class PendingReplies:
    """Pending replies to starts, waits, closes and stops. Used on the gang's loop."""

    def __init__(self, loop: Loop) -> None:
        """Begin without pending replies."""
        self._loop = loop
        self._waits: WeakKeyDictionary[Reply[RunProcsResult | None], Timer | None] = WeakKeyDictionary()
        """Waits whose caller still holds the future. The value is the timer of the wait's timeout."""
        self._closes: list[Reply[RunProcsResult | None]] = []
        self._stops: list[Reply[None]] = []
        self._requests: dict[int, Reply[dict[int, int]]] = {}
        """Requests to restart or to terminate ranks, by key."""
        self.start: Reply[dict[int, int]] | None = None
        """The reply to the start; None if no start is pending."""
        self.result: RunProcsResult | None = None
        self.error: BaseException | None = None
        """The reason why there will be no result; None if there is no such reason."""

    @property
    def over(self) -> bool:
        """Whether the gang has a result or an error."""
        return self.result is not None or self.error is not None

    @property
    def waiting(self) -> int:
        """Number of pending waits."""
        return len(self._waits)

    @property
    def stopping(self) -> bool:
        """Whether a stop of the Supervisor was requested."""
        return bool(self._stops)

    def begin_start(self) -> Reply[dict[int, int]]:
        """Return the reply to a start that begins now."""
        self.start = Reply()
        return self.start

    def begin_request(self, key: int) -> Reply[dict[int, int]]:
        """Return the reply to the request with this key."""
        reply = self._requests[key] = Reply()
        return reply

    def answer_request(self, key: int, pids: dict[int, int]) -> None:
        """Answer the request with this key."""
        self._requests.pop(key).set(pids)

    def fail_requests(self, keys: Iterable[int], error: BaseException) -> None:
        """Answer the requests with these keys by an error."""
        for key in keys:
            self._requests.pop(key).fail(error)

    def wait(self, timeout: float | None) -> Reply[RunProcsResult | None]:
        """Return a reply with the result. After `timeout` seconds without a result, the reply is None."""
        reply: Reply[RunProcsResult | None] = Reply()
        if self.over:
            self._give(reply)
            return reply
        self._waits[reply] = None
        if timeout is not None:
            self._waits[reply] = self._loop.call_later(max(0.0, timeout), partial(self._time_is_up, ref(reply)))
        return reply

    def close(self) -> Reply[RunProcsResult | None]:
        """Return a reply that is set when no process of the gang remains."""
        reply: Reply[RunProcsResult | None] = Reply()
        self._closes.append(reply)
        return reply

    def stop(self) -> Reply[None]:
        """Return a reply that is set when the Supervisor has left the registry."""
        reply: Reply[None] = Reply()
        self._stops.append(reply)
        return reply

    def started(self, pids: dict[int, int]) -> None:
        """Answer the start, because every rank runs."""
        start, self.start = self.start, None
        if start is not None:
            start.set(pids)

    def publish(self, start_error: BaseException) -> None:
        """Answer every wait: with `result` or with `error`. Answer a pending start with `start_error`."""
        start, self.start = self.start, None
        if start is not None:
            start.fail(self.error or start_error)
        self.fail_requests(tuple(self._requests), self.error or start_error)
        waits, self._waits = self._waits, WeakKeyDictionary()
        for reply, timer in list(waits.items()):
            if timer is not None:
                timer.cancel()
            self._give(reply)

    def closed(self, error: BaseException | None = None) -> None:
        """Answer every close: with `error` if there is one, otherwise with the result."""
        closes, self._closes = self._closes, []
        for reply in closes:
            if error is not None:
                reply.fail(error)
            else:
                reply.set(self.result)

    def stopped(self) -> None:
        """Answer every stop."""
        stops, self._stops = self._stops, []
        for reply in stops:
            reply.set(None)

    def _give(self, reply: Reply[Any]) -> None:
        if self.error is not None:
            reply.fail(self.error)
        else:
            reply.set(self.result)

    def _time_is_up(self, waiting: ref[Reply[RunProcsResult | None]]) -> None:
        reply = waiting()
        if reply is not None and reply in self._waits:
            del self._waits[reply]
            reply.set(None)
