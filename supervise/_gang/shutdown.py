"""The ends of processes without their Workers: the sweep of escaped processes, and shutdowns that no caller requests.

After a crash of a handler: kill, reap, sweep, then report. At the interpreter's exit: close the gangs that are alive.
In a forked child: remove them.
"""

from __future__ import annotations

import atexit
import contextlib
import signal
import sys
import threading
import time
from _thread import RLock
from functools import partial
from typing import TYPE_CHECKING, Any

import pykka

from supervise._core import steps
from supervise._runtime import fork_hooks
from supervise._runtime.future import MUST_NOT_BLOCK
from supervise._runtime.wakeup import remaining
from supervise.events import log
from supervise.messages import Close

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from pykka import ActorRef

    from supervise._process.containment.escapees import Contained
    from supervise._process.containment.groups import Member
    from supervise._process.exits.leader import ExitSlots, Process
    from supervise._runtime.loop import Loop, Timer

# The sweep: it searches for escaped processes, and ends them


_AFTER_KILL_S = 5.0
"""Deadline after SIGKILL, for processes that do not die or that fork again and again."""
_LOOK_AGAIN_S = 0.05


class Sweep:
    """One scan of all processes. If escaped processes must be ended, scans are repeated until a scan finds none.

    A scan takes milliseconds, so a thread makes it. Everything else happens on the loop, and the scan as well if no
    thread can be started.
    """

    def __init__(
        self,
        loop: Loop,
        contained: Contained,
        *,
        end: bool,
        timeout_s: float,
        skip: Collection[int],
        ranks: Collection[int] | None = None,
        done: Callable[[steps.Swept], object],
    ) -> None:
        """Prepare a sweep. `begin` starts it.

        Args:
            loop: The gang's loop.
            contained: The gang's containment. The sweep does not close it.
            end: Whether to end escaped processes: SIGTERM and SIGCONT, then SIGKILL.
            timeout_s: Seconds from `begin` to SIGKILL; 0 kills at once.
            skip: Pids of live ranks. The sweep leaves out these processes and their groups.
            ranks: The ranks whose present lives are swept; None for the whole gang.
            done: Function that is called on the loop, exactly once, with the message for the Supervisor.
        """
        self._loop = loop
        self._contained = contained
        self._end = end
        self._timeout_s = timeout_s
        self._skip = frozenset(skip)
        self._ranks = ranks
        self._done: Callable[[steps.Swept], object] | None = done
        self._leaked: dict[int | None, set[int]] = {}
        self._live: dict[int, Member] = {}
        """Escaped processes that have not ended, by pid."""
        self._looking = False
        self._killing = False
        self._give_up_at_s = float("inf")
        self._timers: list[Timer] = []

    def begin(self) -> None:
        """Begin to scan. Call this on the loop's thread. `done` is not called before this method returns."""
        if self._end and self._timeout_s <= 0:
            self._kill()
            return
        if self._end:
            self._timers.append(self._loop.call_later(self._timeout_s, self._kill))
        self._look()

    def hurry(self, timeout_s: float) -> None:
        """Send SIGKILL after `timeout_s`, if that is sooner than planned. Call this on the loop's thread."""
        if self._end and self._done is not None:
            self._timers.append(self._loop.call_later(timeout_s, self._kill))

    def cancel(self) -> None:
        """Stop without a call of `done`. Call this on the loop's thread. Idempotent."""
        self._done = None
        self._release()

    def _look(self) -> None:
        if self._looking:
            return
        self._looking = True
        try:
            threading.Thread(target=self._find, name="supervise-sweep", daemon=True).start()
        except RuntimeError:  # there is no thread, as the interpreter is exiting or a limit is reached
            self._find()

    def _find(self) -> None:
        """Scan, and post the result to the loop."""
        try:
            found, in_motion = self._contained.find(self._skip, killing=self._killing, ranks=self._ranks)
        except OSError as error:  # such as EMFILE: it is not known whether a process has ended
            log.debug("looking for escaped processes failed and is repeated: %s", error)
            self._loop.post(self._seen, None, False, False)
        except Exception:
            log.exception("looking for escaped processes failed")
            self._loop.post(self._seen, [], True, False)
        else:
            self._loop.post(self._seen, found, False, in_motion)

    def _seen(self, found: list[Member] | None, failed: bool, in_motion: bool) -> None:
        self._looking = False
        wanted = self._done is not None and self._loop.in_loop  # False after `cancel` or the loop's end
        if wanted and found:
            for escaped in found:
                self._leaked.setdefault(escaped.local_rank, set()).add(escaped.pid)
        if not wanted or not self._end or failed:
            for escaped in found or ():
                escaped.close()
            if wanted:
                self._finish(ended=False)
            return
        for escaped in found or ():
            self._take(escaped)
        if not self._live and found is not None and not in_motion:
            self._finish(ended=True)
        else:
            self._go_on(blind=found is None)

    def _go_on(self, *, blind: bool) -> None:
        if time.monotonic() >= self._give_up_at_s:
            self._finish(ended=False)
        elif blind:
            self._timers.append(self._loop.call_later(_LOOK_AGAIN_S, self._look))
        elif not self._live:
            self._look()  # a process that has ended meanwhile may have left children

    def _take(self, escaped: Member) -> None:
        if escaped.pid in self._live:
            escaped.close()
            return
        self._live[escaped.pid] = escaped
        if escaped.fileno() >= 0:
            self._loop.watch(escaped.fileno(), partial(self._drop, escaped))
        elif len(self._live) == 1:
            self._timers.append(self._loop.call_later(_LOOK_AGAIN_S, self._look_again_without_pidfd))
        if self._killing:
            escaped.send(signal.SIGKILL)
        else:
            escaped.send(signal.SIGTERM)
            escaped.send(signal.SIGCONT)  # a suspended process handles SIGTERM only after SIGCONT

    def _drop(self, escaped: Member) -> None:
        """Let go of a process that has ended."""
        self._let_go(self._live.pop(escaped.pid))
        if not self._live:
            self._look()  # the process may have left children

    def _let_go(self, escaped: Member) -> None:
        self._loop.unwatch(escaped.fileno())
        escaped.close()

    def _look_again_without_pidfd(self) -> None:
        """Poll for the ends of processes. This is the fallback without pidfd."""
        for escaped in [each for each in self._live.values() if not each.alive()]:
            self._drop(escaped)
        if self._live:
            self._timers.append(self._loop.call_later(_LOOK_AGAIN_S, self._look_again_without_pidfd))

    def _kill(self) -> None:
        if self._killing:
            return
        self._killing = True
        self._give_up_at_s = time.monotonic() + _AFTER_KILL_S
        self._timers.append(self._loop.call_later(_AFTER_KILL_S, self._give_up))
        self._contained.kill(self._ranks)
        for escaped in self._live.values():
            escaped.send(signal.SIGKILL)
        self._look()

    def _give_up(self) -> None:
        if not self._looking:  # otherwise the result of the pending scan ends the sweep
            self._finish(ended=False)

    def _finish(self, *, ended: bool) -> None:
        self._release()
        done, self._done = self._done, None
        if done is not None:
            ranks = sorted(self._leaked, key=lambda rank: (rank is None, rank))
            done(steps.Swept(leaked={rank: tuple(sorted(self._leaked[rank])) for rank in ranks}, ended=ended))

    def _release(self) -> None:
        for timer in self._timers:
            timer.cancel()
        while self._live:
            self._let_go(self._live.popitem()[1])


# The shutdown after a crash


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
        self._loop.call_later(0, self._reap)
        self._slots.kill_all()

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
        for act in _first:
            act()
        pending = [(ref, ref.ask(Close(timeout=grace_s), block=False)) for ref, grace_s in list(_supervisors.values())]
        deadline_s = time.monotonic() + 3 * _EXIT_GRACE_S  # for ranks, for escaped processes, and for SIGKILL
        for ref, reply in pending:
            with contextlib.suppress(Exception):  # unkillable or dead: the exit continues
                reply.get(timeout=remaining(deadline_s))
                ref.stop(timeout=remaining(deadline_s))
    finally:
        _exiting = False
    for act in _last:
        act()


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
