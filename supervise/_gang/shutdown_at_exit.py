"""What happens to gangs that still live when the interpreter exits, or when the host forks."""

from __future__ import annotations

import atexit
import threading
import time
from typing import TYPE_CHECKING, Any

import pykka

from supervise._runtime import fork_hooks
from supervise._runtime.future import MUST_NOT_BLOCK
from supervise._runtime.wakeup import remaining
from supervise.messages import Close

if TYPE_CHECKING:
    from collections.abc import Callable

    from pykka import ActorRef

_EXIT_GRACE_S = 5.0
"""An exit waits for a polite end no longer than this, whatever the gang's grace."""

_supervisors: dict[str, tuple[ActorRef[Any], float]] = {}
"""By urn: the Supervisor, and the grace of its ranks at an exit, in seconds."""


_first: list[Callable[[], object]] = []
"""Called at an exit before any gang is closed."""


def before_closing(act: Callable[[], object]) -> None:
    """Have `act` called at the interpreter's exit, before the gangs are closed; once, however often it is given."""
    if act not in _first:
        _first.append(act)


def remember(ref: ActorRef[Any], grace_s: float) -> None:
    """Close the gang of `ref` when the interpreter exits."""
    import multiprocessing.util  # noqa: F401 - its own exit function must be registered before ours, to run after it

    atexit.unregister(_close_all)
    atexit.register(_close_all)
    _supervisors[ref.actor_urn] = ref, min(grace_s, _EXIT_GRACE_S)


def forget(ref: ActorRef[Any]) -> None:
    """Its gang is closed."""
    _supervisors.pop(ref.actor_urn, None)


def _close_all() -> None:
    for act in _first:
        act()
    pending = [(ref, ref.ask(Close(timeout=grace_s), block=False)) for ref, grace_s in list(_supervisors.values())]
    deadline_s = time.monotonic() + 3 * _EXIT_GRACE_S  # the ranks, what is outside of their groups, SIGKILL
    for ref, reply in pending:
        try:
            reply.get(timeout=remaining(deadline_s))
            ref.stop(timeout=remaining(deadline_s))
        except Exception:  # noqa: S112 - unkillable or dead: the exit goes on
            continue


def _drop_in_child() -> None:
    """A forked child has none of our threads: to it, all our actors are dead."""
    registry: Any = pykka.ActorRegistry
    registry._actor_refs_lock = threading.RLock()  # noqa: SLF001 - a thread that is no more may have held it
    refs = registry._actor_refs  # noqa: SLF001
    refs[:] = [ref for ref in refs if not getattr(ref.actor_class, "ends_with_its_thread", False)]
    MUST_NOT_BLOCK.clear()  # the thread that forked may have been a loop
    _supervisors.clear()


fork_hooks.register("shutdown_at_exit", in_child=_drop_in_child)
