"""Early imports of the modules that a thread of supervise may use.

An import on a thread of supervise fails if the host has no free descriptor, and blocks the loop of a gang. If the host
forks during the import, the child imports the module again (see `fork_hooks`), but no module of another package. So
these threads import nothing: the first attempt of a gang imports on the caller's thread what the gang may need later.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from supervise import _platform as platform

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise._gang.spec import GangSpec


def _methods(spec: GangSpec) -> set[str | None]:
    """Return the start methods of the functions of a gang."""
    return {part.start_method for part in spec.parts if part.kind == "function"}


_STACKS = ("supervise._gang.stack_requests",)
_TAILS = ("supervise._gang.tail",)
_NEEDED: tuple[tuple[Callable[[GangSpec], object], tuple[str, ...]], ...] = (
    (lambda _: True, ("supervise._gang.runner", "json")),  # json reads the error files of ranks
    (lambda _: not platform.PIDFD, ("supervise._process.exits.thread",)),
    # Return values, and what a rank that is forked runs before and after its function
    (_methods, ("mmap", "ast", "tokenize", "traceback", "unicodedata", "multiprocessing.util")),
    # A fork, and the traceback of an exception in a rank that was forked
    (
        lambda spec: "fork" in _methods(spec),
        (
            *(("multiprocessing.resource_tracker",) if sys.version_info >= (3, 14) else ()),
            *(("_colorize",) if sys.version_info >= (3, 15) else ()),
        ),
    ),
    # From Python 3.14 on, each request to a fork server is signed
    (lambda spec: "forkserver" in _methods(spec), ("supervise._process.launch.fork_server", "hmac")),
    (lambda spec: spec.log_max_bytes is not None, ("supervise._logs.trim",)),
    (
        lambda spec: spec.control is not None,
        ("supervise._control.server", "supervise._control.clients", *_STACKS),
    ),
    (lambda spec: spec.watches, (*_STACKS, "supervise._core.evidence")),
    (lambda spec: spec.hold_returned, ("supervise._process.launch.hold",)),
    (lambda spec: spec.checks_health, ("supervise._gang.health",)),
    (lambda spec: spec.probes, ("supervise._gang.probing", "encodings.idna")),  # the codec of names of hosts
    (lambda spec: any(probe.startswith("http") for probe in spec.probes), ("http.client",)),
    (lambda _: _is_traced(), ("subprocess",)),
)
"""What may need modules later, and the modules."""
_OF_THE_START = (
    "supervise._gang.attempt",
    "supervise._gang.inherited",
    "supervise._gang.rank_variables",
    "supervise._core.role_order",
    "supervise._gang.validation",
    "supervise._process.launch.forks",
    "supervise._process.launch.function",
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
    _import(*(name for needs, names in _NEEDED if needs(spec) for name in names), *(_TAILS if tails else ()))


def load_stacks() -> None:
    """Import what a request for stacks needs."""
    _import(*_STACKS)


def load_all() -> None:
    """Import what any gang may need, for a tree: the thread of a tree checks settings, and starts gangs."""
    _import(*(name for _, names in _NEEDED for name in names), *_TAILS, *_OF_THE_START)


def _import(*names: str) -> None:
    for name in names:
        import_module(name)


def _is_traced() -> bool:
    """Return whether a tracer has replaced a function that starts a process. A start may then need `subprocess`."""
    native = sys.modules.get("_posixsubprocess")
    return any(not isinstance(each, type(os.getpid)) for each in (os.posix_spawn, getattr(native, "fork_exec", len)))
