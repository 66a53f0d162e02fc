"""The state of the ranks, which the driver requests from the hosts for each `Status`.

Without a `Status`, there is no request.
"""

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
"""Time after which the driver answers without the hosts that have not replied."""


class Inquiry:
    """Requests to hosts for the state of their ranks.

    Concurrent callers share the replies. Used on the driver's loop.
    """

    def __init__(
        self, loop: Loop, answer: Callable[[], GangStatus], learn: Callable[[int, GangStatus], object]
    ) -> None:
        """Begin without a pending request.

        Args:
            loop: The driver's loop.
            answer: Returns the state of the gang.
            learn: Gets the number of a host, and the state that the host has reported.
        """
        self._loop = loop
        self._answer = answer
        self._learn = learn
        self._replies: list[Reply[GangStatus]] = []
        self._silent: set[int] = set()
        """The hosts that have not replied yet."""
        self._count = 0
        """Number of the present inquiry. A timer or a reply of an earlier inquiry has no effect on it."""

    def begin(self, links: Mapping[int, HostLink]) -> Reply[GangStatus]:
        """Return a reply with the state of the gang.

        It is set once these hosts have replied, or after a second.
        """
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
