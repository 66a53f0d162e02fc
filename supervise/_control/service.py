"""The gang that clients of a control server ask, and the notification to the owner of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from signal import Signals

    import pykka


class StopAsked(NamedTuple):
    """A client asks for a stop of the gang."""

    sig: Signals | None
    """The first signal; None for that of the gang."""
    pid: int
    """Process ID of the client."""


class Service(NamedTuple):
    """The gang that the clients of a server ask, and the limits of their requests."""

    gang: pykka.ActorRef[Any]
    """The Supervisor."""
    on_stop: Callable[[StopAsked], object] | None
    """Called on the server's thread before a stop is requested. Must not block."""
    without: frozenset[str]
    """The requests that this kind of gang does not accept."""
