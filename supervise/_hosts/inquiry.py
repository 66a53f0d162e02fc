"""The state of the ranks, requested from the hosts when a `Status` asks for it. Costs nothing otherwise."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from supervise._runtime.future import Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervise._hosts.link import HostLink
    from supervise._runtime.loop import Loop
    from supervise.messages import GangStatus

_LONGEST_S = 1.0
"""Time after which the driver answers without the hosts that are silent."""


class Inquiry:
    """Requests the state of ranks from their hosts. Concurrent callers share the answers. Used on the driver's loop."""

    def __init__(
        self, loop: Loop, answer: Callable[[], GangStatus], learn: Callable[[int, GangStatus], object]
    ) -> None:
        """Begin without a pending request.

        Args:
            loop: The driver's loop.
            answer: Returns the state of the gang.
            learn: Gets the number of a host, and the state that it has reported.
        """
        self._loop = loop
        self._answer = answer
        self._learn = learn
        self._replies: list[Reply[GangStatus]] = []
        self._silent: set[int] = set()
        """The hosts that have not answered yet."""
        self._count = 0
        """Number of the present inquiry, on which a timer or an answer of an earlier inquiry has no effect."""

    def begin(self, links: Mapping[int, HostLink]) -> Reply[GangStatus]:
        """Return a reply with the state of the gang, once these hosts have answered, or a second has passed."""
        reply: Reply[GangStatus] = Reply()
        self._replies.append(reply)
        if len(self._replies) == 1:
            self._count += 1
            self._silent = set(links)
            self._loop.call_later(_LONGEST_S, partial(self._late, self._count))
            for number, link in links.items():
                link.call_once("status", done=partial(self._answered, self._count, number))
            self._look()
        return reply

    def _answered(self, count: int, number: int, status: GangStatus | None, _error: BaseException | None) -> None:
        if status is not None:
            self._learn(number, status)
        if count == self._count:
            self._silent.discard(number)
            self._look()

    def _look(self) -> None:
        if not self._silent:
            self.settle()

    def _late(self, count: int) -> None:
        if count == self._count:
            self.settle()

    def settle(self) -> None:
        """Answer all callers."""
        replies, self._replies = self._replies, []
        for reply in replies:
            reply.set(self._answer())
