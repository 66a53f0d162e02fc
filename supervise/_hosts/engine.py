"""The interface that a driver needs of an engine: hosts for one attempt, and calls to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from supervise._hosts.orders import HostAddress, HostOrder

    Done = Callable[[Any, BaseException | None], object]
    """Called once, on any thread, with a value or an error."""


class HostDead(Exception):  # noqa: N818  says what happened, as SupervisorCrashed does
    """The engine reports that a host has died."""


class HostUnavailable(Exception):  # noqa: N818  as above
    """A call has not reached its host, or its reply was lost; the host may live."""


class EngineHost(Protocol):
    """One host of an attempt, as the driver sees it."""

    address: HostAddress

    def call(self, method: str, *args: Any, done: Done) -> None:
        """Call a method of `supervise._hosts.host.Host`. Must not block.

        Args:
            method: Its name.
            args: Its arguments.
            done: Gets the value, or the error: `HostDead`, `HostUnavailable`, or what the method has raised.
        """


class Engine(Protocol):
    """Places hosts. Its methods must not block."""

    def place(self, orders: Sequence[HostOrder], done: Done) -> None:
        """Make a host for each order, all or none; `done` gets them in the order of `orders`, or the error."""

    def release(self, epoch: int) -> None:
        """Release the resources of an attempt, also while it is being placed; kill the hosts' processes. Idempotent."""

    def close(self, done: Callable[[], object]) -> None:
        """Release everything; the last call. Call `done` on any thread when the engine does nothing more."""
