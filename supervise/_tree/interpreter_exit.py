"""The end of trees that are still alive when the interpreter exits.

Threads of plain actors are not daemons. At its exit, the interpreter joins these threads before it calls the functions
registered with `atexit`. So a function registered there would stop a tree too late: the join would never end.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

from supervise._runtime import fork_hooks
from supervise._runtime.wakeup import remaining

if TYPE_CHECKING:
    import pykka

_PATIENCE_S = 20.0
"""Limit on the time that the exit waits for all trees.

A gang that still exists after that is killed by the exit function of gangs.
"""
GRACE_S = 5.0
"""The longest time from SIGTERM to SIGKILL that a gang has at the interpreter's exit."""

_roots: dict[str, pykka.ActorRef[Any]] = {}
"""The trees that are not children of another tree, by urn, in the order of their start."""
_exits = threading.Event()


def remember(ref: pykka.ActorRef[Any]) -> None:
    """Let the exit of the interpreter stop this tree."""
    _roots[ref.actor_urn] = ref


def forget(ref: pykka.ActorRef[Any]) -> None:
    """Forget a tree that has ended or that another tree stops. The exit of the interpreter does not stop it."""
    _roots.pop(ref.actor_urn, None)


def gang_timeout_s(shutdown_s: float | None) -> float | None:
    """Return the timeout for the `Close` of a gang; None for the grace of the gang."""
    if not _exits.is_set():
        return shutdown_s
    return GRACE_S if shutdown_s is None else min(shutdown_s, GRACE_S)


def _stop_all() -> None:
    """Stop all trees, the newest first."""
    _exits.set()
    deadline_s = time.monotonic() + _PATIENCE_S
    for ref in reversed(list(_roots.values())):
        with contextlib.suppress(Exception):  # the tree is stuck or dead, and the exit continues
            ref.stop(timeout=remaining(deadline_s))


threading._register_atexit(_stop_all)  # type: ignore[attr-defined]  # noqa: SLF001 - a contract test
fork_hooks.register("trees", _roots.clear)
