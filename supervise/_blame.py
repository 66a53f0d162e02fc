"""The order of causes: a death that is noticed late comes before the exceptions that it has caused."""

from __future__ import annotations

import re
from functools import cache
from signal import Signals
from typing import TYPE_CHECKING, TypeVar

from supervise._record import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_KILL_LATE_NS = 1_000_000_000
_EXIT_LATE_NS = 2_000_000_000
_DEATH_LATE_NS = 250_000_000
_CRASHES = frozenset({-Signals.SIGSEGV, -Signals.SIGBUS, -Signals.SIGILL, -Signals.SIGFPE})
_LOST_PEER = (
    r"(?i)^(?:\w+\.)*(?:Connection(?:Reset|Aborted)?Error|BrokenPipeError|IncompleteReadError|SSLEOFError|EOFError:?\s*$)"
    r"|\bconnection (?:was |has been )?(?:likely )?(?:reset|closed|aborted|lost)|broken pipe|\bclosed by (?:the )?peer"
    r"|\bpeer (?:has )?closed|\bsocket (?:was )?closed|\bclosed (?:the )?connection|\bserver disconnected"
    r"|\bremote process exited"
)
_compiled = cache(re.compile)  # at the first failure


class Cause(NamedTuple):
    """The known facts about one cause."""

    recorded_ns: int | None
    """When the rank recorded an exception; None if it recorded none."""
    ended_ns: int
    """When its death was noticed."""
    exitcode: int | None
    oom_kill: bool
    lost_peer: bool
    """Whether the exception says so: see `lost_peer`."""


def lost_peer(message: str) -> bool:
    """Return whether an exception says that a connection to another process broke.

    Args:
        message: The name of its class, perhaps with that of its module, a colon and its text.
    """
    return _compiled(_LOST_PEER).search(message[:2000]) is not None


def put_dead_first(causes: list[T], known: Callable[[T], Cause]) -> None:
    """Move each rank that died without an exception before the exceptions that its peers recorded as a consequence.

    The kernel closes the sockets of a dying process before it reports the death. So a peer may record its broken
    connection before the death is known. The reverse is rare: an exception of a peer hardly ever causes a SIGKILL, and
    seldom a crash. But a rank may well exit because a peer has failed. So another death is moved only before exceptions
    that say that a connection broke.

    Args:
        causes: The causes, by time.
        known: Returns the facts about a cause.
    """
    for index, cause in enumerate(causes):
        dead, to = known(cause), index
        for place in range(index - 1, -1, -1) if dead.recorded_ns is None else ():
            earlier = known(causes[place])
            if earlier.recorded_ns is None:
                break
            if dead.ended_ns - earlier.recorded_ns <= _late_ns(dead, earlier):
                to = place
        causes.insert(to, causes.pop(index))


def _late_ns(dead: Cause, earlier: Cause) -> int:
    """Return how long after an exception the death may be noticed that has caused it, in ns; -1: it has not."""
    if dead.oom_kill or dead.exitcode == -Signals.SIGKILL:
        return _KILL_LATE_NS
    if dead.exitcode in _CRASHES:
        return _DEATH_LATE_NS
    if not earlier.lost_peer:
        return -1
    return _EXIT_LATE_NS if (dead.exitcode or 0) > 0 else _DEATH_LATE_NS  # exit handlers and libraries take their time
