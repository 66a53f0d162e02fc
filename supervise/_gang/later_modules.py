"""Imports, before a thread of supervise needs them, of the modules that it may use.

The host may fork at any moment. If a thread of supervise were importing a module then, the lock of that module would
stay locked in the child, and a gang of the child would wait for it forever. So these threads import nothing: the first
attempt of a gang imports on the caller's thread what the gang may need later.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from supervise import _platform as platform

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervise._gang.spec import GangSpec

_ALWAYS = ("supervise._gang.runner", "json")
"""Modules of every gang. json reads the error files of ranks."""
_WITHOUT_PIDFDS = ("supervise._process.exits.thread",)
_FUNCTIONS = ("mmap", "ast", "tokenize", "traceback", "unicodedata", "multiprocessing.util")
"""Modules for return values, and for what a rank that is forked runs before and after its function."""
_FORKS = (
    *(("multiprocessing.resource_tracker",) if sys.version_info >= (3, 14) else ()),
    *(("_colorize",) if sys.version_info >= (3, 15) else ()),
)
"""Modules for a fork, and for the traceback of an exception in a rank that was forked."""
_FORK_SERVER = ("supervise._process.launch.fork_server", "hmac")
"""Modules for fork servers. From Python 3.14 on, each request to the server is signed."""
_BOUND = ("supervise._logs.trim",)
_CONTROL = ("supervise._control.server", "supervise._control.clients", "supervise._gang.stack_requests")
_STACKS = ("supervise._gang.stack_requests",)
_HANGS = (*_STACKS, "supervise._core.evidence")
_HEALTH = ("supervise._gang.health",)
_TAILS = ("supervise._gang.tail",)
_HOLD = ("supervise._process.launch.hold",)
_OF_THE_START = (
    "supervise._core.evidence",
    "supervise._gang.attempt",
    "supervise._gang.health",
    "supervise._gang.inherited",
    "supervise._gang.probing",
    "supervise._gang.rank_variables",
    "supervise._core.role_order",
    "supervise._gang.validation",
    "supervise._process.launch.forks",
    "supervise._process.launch.function",
    "encodings.idna",
    "shlex",
    "tempfile",
    "supervise.watchdog",
    "difflib",
    "graphlib",
    *(f"multiprocessing.{name}" for name in ("popen_forkserver", "popen_spawn_posix", "forkserver", "spawn")),
)
"""Modules for the check of the settings and the start."""


def load(spec: GangSpec, *, tails: bool) -> None:
    """Import what a gang with these settings may need.

    Args:
        spec: The settings.
        tails: Whether the gang has Tails.
    """
    _import(*_always(), *(_TAILS if tails else ()), *_needed(spec))


def load_stacks() -> None:
    """Import what a request for stacks needs."""
    _import(*_STACKS)


def load_all() -> None:
    """Import what any gang may need, for a tree: the thread of a tree checks settings, and starts gangs."""
    _import(*_always(), *_FUNCTIONS, *_FORKS, *_FORK_SERVER, *_BOUND, *_CONTROL, *_TAILS, *_HOLD, *_OF_THE_START)


def _always() -> tuple[str, ...]:
    return _ALWAYS if platform.PIDFD else _ALWAYS + _WITHOUT_PIDFDS


def _needed(spec: GangSpec) -> Iterator[str]:
    methods = {part.start_method for part in spec.parts if part.kind == "function"}
    yield from _FUNCTIONS if methods else ()
    yield from _FORKS if "fork" in methods else ()
    yield from _FORK_SERVER if "forkserver" in methods else ()
    yield from _BOUND if spec.log_max_bytes is not None else ()
    yield from _CONTROL if spec.control is not None else ()
    yield from _HANGS if spec.watches else ()
    yield from _HOLD if spec.hold_returned else ()
    yield from _HEALTH if spec.checks_health else ()
    yield from ("supervise._gang.probing", "encodings.idna") if spec.probes else ()  # the codec of names of hosts
    yield from ("http.client",) if any(probe.startswith("http") for probe in spec.probes) else ()
    yield from ("subprocess",) if _is_traced() else ()


def _import(*names: str) -> None:
    for name in names:
        import_module(name)


def _is_traced() -> bool:
    """Return whether a tracer has replaced a function that starts a process. A start may then need `subprocess`."""
    native = sys.modules.get("_posixsubprocess")
    return any(not isinstance(each, type(os.getpid)) for each in (os.posix_spawn, getattr(native, "fork_exec", len)))
