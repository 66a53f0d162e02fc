"""Hooks that run in a forked child, in one fixed order that does not depend on the order of imports.

A module registers its hook when it is imported, so a process runs no hooks of modules that it does not use. Every
spawned worker imports this file before the user's code, so this file imports only `os` and `sys`.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident

TYPE_CHECKING = False  # importing typing takes longer than all of this
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any
    from weakref import WeakSet

ORDER = (
    "lifeline",  # first, because a child that blocks in a later hook must not keep the pipe of a gang open
    "actor",  # before any hook that asks whether an actor is alive
    "future",
    "main_thread",
    "watch",
    "oom",
    "notify_sockets",
    "control",
    "inherited",
    "signals",
    "shutdown",  # after `actor`; removes the actors, which are dead in a child, from pykka's registry
    "fork_server",
    "multiprocessing",
    "trees",
)
"""The modules that have a hook, in the order in which a child runs them."""

_PACKAGES = sys.stdlib_module_names | {"supervise", "pykka", "psutil"}
"""The packages that supervise imports at first use, on threads of its caller."""
_in_child: dict[str, Callable[[], object]] = {}


def register(name: str, in_child: Callable[[], object]) -> None:
    """Register `in_child`, which every forked child calls, at the position of `name` in `ORDER`."""
    global _in_child  # noqa: PLW0603 - replaced as a whole: another thread may fork at any time
    hooks = {**_in_child, name: in_child}
    _in_child = {each: hooks[each] for each in sorted(hooks, key=ORDER.index)}


def instances(name: str) -> WeakSet[Any]:
    """Return a set for objects of a module: every forked child calls `close_in_child` of each. See `register`."""
    from weakref import WeakSet  # lazy: a worker has no such objects

    alive: WeakSet[Any] = WeakSet()

    def close() -> None:
        for each in list(alive):
            each.close_in_child()

    register(name, close)
    return alive


def _forget_imports() -> None:
    """Forget the imports of other threads: the lock of such a module stays locked, so that its import would hang.

    The next import executes a module again of which only a part was executed. ``tests/contracts/test_python.py`` tests
    these parts of Python.
    """
    locks = sys.modules["_frozen_importlib"]._module_locks
    for name, module_lock in list(locks.items()):
        lock = module_lock()
        if lock is not None and lock.owner not in (None, get_ident()) and name.partition(".")[0] in _PACKAGES:
            del locks[name]
            if getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False):
                del sys.modules[name]


def _run_in_child() -> None:
    """Run each hook. As with `os.register_at_fork`, a hook that raises does not prevent the others."""
    for hook in (_forget_imports, *_in_child.values()):
        try:
            hook()
        except BaseException:
            sys.excepthook(*sys.exc_info())


os.register_at_fork(after_in_child=_run_in_child)
