"""The shutdown of gangs that are alive at the interpreter's exit, and their removal in a forked child."""

from __future__ import annotations

import atexit
import time
from _thread import RLock
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
"""Upper limit on a gang's grace at the interpreter's exit."""

_supervisors: dict[str, tuple[ActorRef[Any], float]] = {}
"""Urn to two values: the Supervisor, and the grace of its ranks at the exit, in seconds."""


_exiting = False
_first: list[Callable[[], object]] = []
"""Functions to call at the exit, before any gang is closed."""


def before_closing(act: Callable[[], object]) -> None:
    """Let the exit of the interpreter call `act` once, before the gangs are closed. Idempotent."""
    if act not in _first:
        _first.append(act)


_alone = False


def alone() -> None:
    """Declare that this process only runs a gang of programs, so none of its code will import multiprocessing."""
    global _alone  # noqa: PLW0603 - about the process
    _alone = True


def remember(ref: ActorRef[Any], grace_s: float) -> None:
    """Let the exit of the interpreter close the gang of `ref`."""
    if not _alone:
        import multiprocessing.util  # noqa: F401 - registers its exit function first, so that it runs last

    atexit.unregister(_close_all)
    atexit.register(_close_all)
    _supervisors[ref.actor_urn] = ref, min(grace_s, _EXIT_GRACE_S)


def forget(ref: ActorRef[Any]) -> None:
    """Remove a Supervisor whose gang is closed."""
    _supervisors.pop(ref.actor_urn, None)


def is_exiting() -> bool:
    """Return whether the interpreter is exiting. If so, every stop concerns all roles at once."""
    return _exiting


def _close_all() -> None:
    global _exiting  # noqa: PLW0603 - of the process
    _exiting = True
    try:
        _close_each()
    finally:
        _exiting = False


def _close_each() -> None:
    for act in _first:
        act()
    pending = [(ref, ref.ask(Close(timeout=grace_s), block=False)) for ref, grace_s in list(_supervisors.values())]
    deadline_s = time.monotonic() + 3 * _EXIT_GRACE_S  # for ranks, for escaped processes, and for SIGKILL
    for ref, reply in pending:
        try:
            reply.get(timeout=remaining(deadline_s))
            ref.stop(timeout=remaining(deadline_s))
        except Exception:  # noqa: S112 - unkillable or dead: the exit continues
            continue


def _drop_in_child() -> None:
    """Clear the registries in a forked child, which lacks the threads of the actors."""
    global _exiting  # noqa: PLW0603 - of the process
    registry: Any = pykka.ActorRegistry
    registry._actor_refs_lock = RLock()  # noqa: SLF001 - a thread that the child lacks may hold it
    refs = registry._actor_refs  # noqa: SLF001
    refs[:] = [ref for ref in refs if not getattr(ref.actor_class, "ends_with_its_thread", False)]
    _supervisors.clear()
    MUST_NOT_BLOCK.clear()  # because the thread that forked may have been a loop
    _exiting = False


fork_hooks.register("shutdown_at_exit", in_child=_drop_in_child)
