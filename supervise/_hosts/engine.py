"""The interface of an engine: it makes the hosts for one attempt, and transfers calls from the driver to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from supervise._hosts.orders import HostAddress, HostOrder

    Done = Callable[[Any, BaseException | None], object]
    """Function that is called once, on any thread, with a value or an error."""


class HostDead(Exception):  # noqa: N818  says what happened, as SupervisorCrashed does
    """The engine reports that a host has died."""


class HostUnavailable(Exception):  # noqa: N818  as above
    """A call has not reached its host, or its reply was lost. The host may be alive."""


class EngineHost(Protocol):
    """One host of an attempt, as the driver sees it."""

    address: HostAddress

    def call(self, method: str, *args: Any, done: Done) -> None:
        """Call a method of `supervise._hosts.host.Host`. An implementation must not block.

        Args:
            method: Name of the method.
            args: Arguments of the method.
            done: Gets the value or an error. The error is `HostDead`, `HostUnavailable`, or the exception of the
                method.
        """


class Engine(Protocol):
    """Engine: it places hosts. Its methods must not block."""

    def place(self, orders: Sequence[HostOrder], done: Done) -> None:
        """Make a host for each order, or none at all.

        `done` gets the hosts in the order of `orders`, or the error.
        """

    def release(self, epoch: int) -> None:
        """Release the resources of an attempt, and kill the processes of its hosts. Idempotent.

        The caller may call this also while the attempt is being placed.
        """

    def close(self, done: Callable[[], object]) -> None:
        """Release everything. Call `done`, on any thread, when the engine does nothing more. This is the last call."""
