"""The sweep: it searches for escaped processes, and ends them."""

from __future__ import annotations

import signal
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from supervise._core import steps
from supervise.events import log

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from supervise._process.containment.escapees import Contained, Escaped
    from supervise._runtime.loop import Loop, Timer


_AFTER_KILL_S = 5.0
"""Deadline after SIGKILL, for processes that do not die or that fork again and again."""
_AGAIN_S = 0.05


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
        self._live: dict[int, Escaped] = {}
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
        except Exception as error:
            self._loop.post(self._not_seen, error)
        else:
            self._loop.post(self._seen, found, False, in_motion)

    def _not_seen(self, error: Exception) -> None:
        if isinstance(error, OSError):  # such as EMFILE: it is not known whether a process has ended
            log.debug("looking for escaped processes failed and is repeated: %s", error)
            self._seen(None, False, False)
        else:
            log.error("looking for escaped processes failed", exc_info=error)
            self._seen([], True, False)

    def _seen(self, found: list[Escaped] | None, failed: bool, in_motion: bool) -> None:
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
            self._timers.append(self._loop.call_later(_AGAIN_S, self._look))
        elif not self._live:
            self._look()  # a process that has ended meanwhile may have left children

    def _take(self, escaped: Escaped) -> None:
        if escaped.pid in self._live:
            escaped.close()
            return
        self._live[escaped.pid] = escaped
        if escaped.fileno() >= 0:
            self._loop.watch(escaped.fileno(), partial(self._gone, escaped))
        elif len(self._live) == 1:
            self._timers.append(self._loop.call_later(_AGAIN_S, self._look_again_without_pidfd))
        if self._killing:
            escaped.send(signal.SIGKILL)
        else:
            escaped.send(signal.SIGTERM)
            escaped.send(signal.SIGCONT)  # a suspended process handles SIGTERM only after SIGCONT

    def _gone(self, escaped: Escaped) -> None:
        self._loop.unwatch(escaped.fileno())
        self._drop(escaped)

    def _drop(self, escaped: Escaped) -> None:
        del self._live[escaped.pid]
        escaped.close()
        if not self._live:
            self._look()  # the process may have left children

    def _look_again_without_pidfd(self) -> None:
        """Poll for the ends of processes. This is the fallback without pidfd."""
        for escaped in [each for each in self._live.values() if not each.alive()]:
            self._drop(escaped)
        if self._live:
            self._timers.append(self._loop.call_later(_AGAIN_S, self._look_again_without_pidfd))

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
            escaped = self._live.popitem()[1]
            if escaped.fileno() >= 0:
                self._loop.unwatch(escaped.fileno())
            escaped.close()
