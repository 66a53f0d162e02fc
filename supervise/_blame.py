"""The order of causes: a death that the kernel reports late comes before the exceptions that it has caused."""

from __future__ import annotations

from signal import Signals
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_KILL_LATE_NS = 1_000_000_000
_CRASH_LATE_NS = 250_000_000
_CRASHES = frozenset({-Signals.SIGSEGV, -Signals.SIGBUS, -Signals.SIGILL, -Signals.SIGFPE})


def put_killed_first(causes: list[T], known: Callable[[T], tuple[int | None, int, int]]) -> None:
    """Move each rank that a signal killed to the front of the exceptions that its peers recorded as a consequence.

    The kernel closes the sockets of a dying process before it reports the death. So a peer may record its broken
    connection before the death is known. The reverse is rare: an exception of a peer hardly ever causes a SIGKILL, and
    seldom a crash.

    Args:
        causes: The causes, by time.
        known: Returns when the rank recorded an exception (None: it did not), when its death was noticed, and the
            result of `late_ns`.
    """
    for index, cause in enumerate(causes):
        recorded_ns, ended_ns, late = known(cause)
        to = index
        while recorded_ns is None and late and to:
            earlier_ns = known(causes[to - 1])[0]
            if earlier_ns is None or ended_ns - earlier_ns > late:
                break
            to -= 1
        causes.insert(to, causes.pop(index))


def late_ns(exitcode: int | None, *, oom_kill: bool) -> int:
    """Return the longest time, in ns, from the death of a rank until the kernel reports the death."""
    if oom_kill or exitcode == -Signals.SIGKILL:
        return _KILL_LATE_NS
    return _CRASH_LATE_NS if exitcode in _CRASHES else 0
