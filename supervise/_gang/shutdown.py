"""The shutdown of gangs that no caller closes.

After a crash of a handler: kill, reap, then report. At the interpreter's exit: close the gangs that are alive. In a
forked child: remove them.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import threading
import time
from _thread import RLock
from typing import TYPE_CHECKING, Any

import pykka

from supervise._gang.sweep import Sweep
from supervise._runtime import fork_hooks
from supervise._runtime.future import MUST_NOT_BLOCK
from supervise._runtime.wakeup import remaining
from supervise.events import log
from supervise.messages import Close

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pykka import ActorRef

    from supervise._core import steps
    from supervise._process.containment.escapees import Contained
    from supervise._process.exits.leader import ExitSlots, Process
    from supervise._runtime.loop import Loop

_DEADLINE_S = 5.0
"""Deadline for the ranks. The sweep has a deadline of its own."""
_SWEEP_S = 2 * _DEADLINE_S
"""Deadline for the sweep. After it, the shutdown ends without the sweep."""
_AGAIN_S = 0.01


class CrashShutdown:
    """Shutdown on the loop: it kills every group, reaps every rank, then kills escaped processes, all in bounded time.

    One of the actors has just failed. So the shutdown relies neither on the actors nor on the descriptors that they
    watch. Instead, it tries to reap each rank every ten milliseconds, until all are reaped.
    """

    def __init__(
        self, loop: Loop, slots: ExitSlots, contained: Iterable[Contained], done: Callable[[], object]
    ) -> None:
        """Prepare a shutdown.

        Args:
            loop: The gang's loop.
            slots: The gang's processes.
            contained: The containment of the roles.
            done: Function that is called once, when all processes have ended or a deadline has expired.
        """
        self._loop = loop
        self._slots = slots
        self._contained = [each for each in contained if each.ends]
        self._sweeping = len(self._contained)
        self._done: Callable[[], object] | None = done
        self._deadline_s = time.monotonic() + _DEADLINE_S

    def begin(self) -> None:
        """Send SIGKILL now. `done` is not called before this method returns."""
        try:
            self._slots.kill_all()
        finally:
            self._loop.call_later(0, self._reap)

    def _reap(self) -> None:
        self._slots.kill_all()  # once more, as a pending launch may have started a process in between
        processes = self._slots.processes
        for rank, process in list(processes.items()):
            if self._gone(process):
                self._loop.unwatch(process.fileno())
                processes.pop(rank, None)
                with contextlib.suppress(OSError):  # user code has closed its descriptor
                    process.close()
        if processes and time.monotonic() < self._deadline_s:
            self._loop.call_later(_AGAIN_S, self._reap)
        else:
            self._sweep()

    def _sweep(self) -> None:
        if not self._contained:
            self._finish()
            return
        self._loop.call_later(_SWEEP_S, self._finish)  # even if a sweep hangs
        for contained in self._contained:
            Sweep(self._loop, contained, end=True, timeout_s=0, skip=(), done=self._swept).begin()

    def _swept(self, _: steps.Swept) -> None:
        self._sweeping -= 1
        if not self._sweeping:
            self._finish()

    def _finish(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            for contained in self._contained:
                contained.close()
            done()

    @staticmethod
    def _gone(process: Process) -> bool:
        try:
            return process.fileno() < 0 or process.reap() is not None
        except Exception:
            log.exception("pid %d cannot be reaped", process.pid)
            return True


# The shutdown at the interpreter's exit


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


_hooked = _precedes_multiprocessing = False
_last: list[Callable[[], object]] = []
"""Functions to call at the exit, after the gangs are closed."""


def remember(ref: ActorRef[Any], grace_s: float) -> None:
    """Let the exit of the interpreter close the gang of `ref`, before it calls what was registered until now."""
    global _hooked, _precedes_multiprocessing  # noqa: PLW0603 - of the process
    atexit.unregister(_close_all)
    atexit.register(_close_all)
    _precedes_multiprocessing = "multiprocessing.util" in sys.modules
    _supervisors[ref.actor_urn] = ref, min(grace_s, _EXIT_GRACE_S)
    try:
        if not _hooked:
            _hooked = True
            threading._register_atexit(_put_multiprocessing_last)  # type: ignore[attr-defined]  # noqa: SLF001
        elif threading._SHUTTING_DOWN:  # type: ignore[attr-defined]  # noqa: SLF001
            _put_multiprocessing_last()
    except RuntimeError:  # the exit has begun
        _put_multiprocessing_last()


def _put_multiprocessing_last() -> None:
    """Let the exit call multiprocessing's exit function after the gangs are closed.

    That function joins processes, which may wait for the end of a gang. Called when the exit begins: threads that are
    no daemons still run then, and may import multiprocessing.
    """
    if not _supervisors or _precedes_multiprocessing:
        return
    try:
        from multiprocessing import util
    except (ImportError, OSError):  # the process may not read Python's files any more, or has no descriptor left
        return
    leave = util._exit_function  # type: ignore[attr-defined]  # noqa: SLF001
    atexit.unregister(leave)
    _last[:] = [leave]


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
    for act in _last:
        act()


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


fork_hooks.register("shutdown", in_child=_drop_in_child)
