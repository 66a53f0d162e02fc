"""Notification of the end of any pykka actor, without a thread and without polling.

When an actor ends, pykka only sets the actor's `threading.Event`. The event then releases the lock of each waiting
thread. This module adds an object with a `release` method to these locks. The thread that ends the actor calls
`release`. There, `sys.exc_info()` gives the exception that ends the actor. ``tests/contracts/test_tree_hooks.py`` tests
each private part of pykka and threading that this module uses.
"""

from __future__ import annotations

import _thread
import contextlib
import sys
import weakref
from typing import TYPE_CHECKING, Any

import pykka
from pykka._envelope import Envelope

from supervise._runtime.actor import put_soon
from supervise.errors import SpecError
from supervise.events import log
from supervise.trees import Down

if TYPE_CHECKING:
    from collections.abc import Callable

    Reason = BaseException | str | None

NOPROC = "noproc"
"""The reason for an actor that was already dead when the watch began."""
LOST = "lost"
"""The reason for an actor whose thread ended without a stop: a BaseException left `on_start`."""


def monitor(ref: pykka.ActorRef[Any], *, tell: pykka.ActorRef[Any]) -> None:
    """Send one `Down` to the actor `tell` when the actor of `ref` ends for any reason.

    The `Down` comes from the thread that ends the actor, before the actor's `on_stop` or `on_failure` has run. If the
    actor is dead already, the `Down` comes at once, with the reason ``"noproc"``. Each call causes one `Down`.

    Args:
        ref: The actor to watch: any pykka actor, a gang or a tree.
        tell: The actor that receives the `Down`. If that actor has ended by then, the `Down` is dropped. If its inbox
            is bounded and full, a thread waits for room.

    Raises:
        SpecError: `ref` or `tell` is not the ref of an actor.
    """
    for what, value in (("ref", ref), ("tell", tell)):
        if not isinstance(value, pykka.ActorRef):
            raise SpecError(f"{what} is {value!r}; give the ref of an actor, such as its self.actor_ref")

    def report(reason: Reason, normal: bool) -> None:
        if tell.is_alive():
            put_soon(tell.actor_inbox, Envelope(Down(ref=ref, reason=reason, normal=normal)))

    watch(ref, report)


def watch(ref: pykka.ActorRef[Any], report: Callable[[Reason, bool], object]) -> None:
    """Call ``report(reason, normal)`` once when the actor of `ref` ends.

    The call is on the thread that ends the actor.
    """
    watcher = _Watcher(report)
    stopped: Any = ref.actor_stopped
    watching = False
    if not stopped.is_set():  # in a forked child, another thread may have held the lock
        with stopped._cond:  # noqa: SLF001 - the thread that sets the event also needs this lock
            watching = not stopped.is_set()
            if watching:
                stopped._cond._waiters.append(watcher)  # noqa: SLF001
    actor = ref._actor_weakref()  # noqa: SLF001
    if not watching:
        watcher.fire(NOPROC, normal=False)
    elif actor is None:  # the actor was collected and never stopped
        watcher.fire(LOST, normal=False)
    else:
        watcher.follow(actor)


class _Watcher:
    """Substitute for the lock of a thread that waits for the end of an actor."""

    def __init__(self, report: Callable[[Reason, bool], object]) -> None:
        """Keep `report` until its only call."""
        self._report = [report]
        self._collected: weakref.finalize[Any, Any] | None = None

    def follow(self, actor: pykka.Actor) -> None:
        """Report also if `actor` is collected without a stop, which means that its thread has ended."""
        collected = weakref.finalize(actor, _lost, self)
        collected.atexit = False
        self._collected = collected
        if not self._report:  # it ended meanwhile
            collected.detach()

    def release(self) -> None:
        """Report the end. `threading.Condition.notify` calls this in place of the method of a lock."""
        reason = sys.exc_info()[1]
        self.fire(reason, normal=reason is None)

    def fire(self, reason: Reason, *, normal: bool) -> None:
        """Call the report, unless it was called before."""
        try:
            report = self._report.pop()
        except IndexError:  # another thread was first
            return
        if self._collected is not None:
            self._collected.detach()
        try:
            report(reason, normal)
        except Exception:
            log.exception("the end of an actor could not be reported")


def _lost(watcher: _Watcher) -> None:
    """Report a collected actor on a new thread.

    The collector may have interrupted a thread that holds a lock.
    """
    with contextlib.suppress(RuntimeError):  # the interpreter exits
        _thread.start_new_thread(watcher.fire, (LOST,), {"normal": False})
