"""What happens to gangs that still live when the interpreter exits, or when the host forks."""

from __future__ import annotations

import atexit
import multiprocessing.util  # noqa: F401 - its own exit function must be registered before ours, to run after it
import os
import signal
from typing import TYPE_CHECKING, Any

import pykka

from supervise.messages import Close

if TYPE_CHECKING:
    from pykka import ActorRef

_EXIT_GRACE_S = 5.0
"""An exit waits for a polite end no longer than this, whatever the gang's grace."""

_supervisors: dict[str, ActorRef[Any]] = {}


def remember(ref: ActorRef[Any]) -> None:
    """Close the gang of `ref` when the interpreter exits."""
    _supervisors[ref.actor_urn] = ref


def forget(ref: ActorRef[Any]) -> None:
    """Its gang is closed."""
    _supervisors.pop(ref.actor_urn, None)


def _close_all() -> None:
    pending = [
        (ref, ref.ask(Close(death_sig=signal.SIGTERM, timeout=_EXIT_GRACE_S), block=False))
        for ref in list(_supervisors.values())
    ]
    for ref, reply in pending:
        try:
            reply.get(timeout=2 * _EXIT_GRACE_S)
            ref.stop(timeout=_EXIT_GRACE_S)
        except Exception:  # noqa: S112 - unkillable or dead: the exit goes on
            continue


def _drop_in_child() -> None:
    """A forked child has none of our threads: it must not believe that it supervises anything."""
    for ref in _supervisors.values():
        ref.actor_inbox.bind(None)  # type: ignore[attr-defined]
        pykka.ActorRegistry.unregister(ref)
    _supervisors.clear()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_drop_in_child)
