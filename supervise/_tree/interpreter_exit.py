"""The end of trees that still live when the interpreter exits.

At its exit the interpreter joins the threads of plain actors, which are not daemons, before it calls the functions
registered with `atexit`. Such a function would stop a tree too late, because the join would never end.
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
"""How long the exit waits for all trees. A gang that still exists then is killed by its own exit function."""
GRACE_S = 5.0
"""The longest time from SIGTERM to SIGKILL that a gang has at the interpreter's exit."""

_roots: dict[str, pykka.ActorRef[Any]] = {}
"""The trees that are in no other tree, by urn, in the order of their start."""
_exits = threading.Event()


def remember(ref: pykka.ActorRef[Any]) -> None:
    """Stop this tree when the interpreter exits."""
    _roots[ref.actor_urn] = ref


def forget(ref: pykka.ActorRef[Any]) -> None:
    """Do not stop this tree at the exit: it has ended, or another tree stops it."""
    _roots.pop(ref.actor_urn, None)


def gang_timeout_s(shutdown_s: float | None) -> float | None:
    """Return the timeout of a gang's `Close`; None is the gang's grace."""
    if not _exits.is_set():
        return shutdown_s
    return GRACE_S if shutdown_s is None else min(shutdown_s, GRACE_S)


def _stop_all() -> None:
    """Stop all trees, the newest first."""
    _exits.set()
    deadline_s = time.monotonic() + _PATIENCE_S
    for ref in reversed(list(_roots.values())):
        with contextlib.suppress(Exception):  # stuck or dead: the exit continues
            ref.stop(timeout=remaining(deadline_s))


threading._register_atexit(_stop_all)  # type: ignore[attr-defined]  # noqa: SLF001 - a contract test
fork_hooks.register("trees", _roots.clear)
