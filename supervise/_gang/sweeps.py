"""The sweeps of a gang: the sweep of the whole gang, and those of restart sets."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from supervise._core import steps
from supervise._gang.sweep import Sweep

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise._core.model import Gang
    from supervise._gang.attempt import Attempt
    from supervise._gang.event_emitter import EventEmitter
    from supervise._gang.timers import Timers
    from supervise._runtime.loop import Loop

_LEAST_S = 1.0
"""Minimum time from SIGTERM to SIGKILL for escaped processes, also if the process groups have used up the grace."""


class Sweeps:
    """The sweeps that the core requests.

    A sweep that only reports is skipped if events have no listener.
    """

    def __init__(
        self, gang: Gang, loop: Loop, *, events: EventEmitter, timers: Timers, step: Callable[[steps.Event], object]
    ) -> None:
        """Begin without sweeps.

        Args:
            gang: The state of the gang.
            loop: The gang's loop.
            events: The emitter of events, which knows whether events have a listener.
            timers: The timers of the gang.
            step: Function that lets the core decide on an event. It is called on the loop.
        """
        self._gang = gang
        self._loop = loop
        self._events = events
        self._timers = timers
        self._step = step
        self._whole: Sweep | None = None
        self._of_sets: dict[int, Sweep] = {}
        """Number of a restart set to its sweep."""

    def use(self, attempt: Attempt) -> None:
        """Sweep the processes of this attempt from now on."""
        self._attempt = attempt

    def begin(self, action: steps.SweepUp) -> None:
        """Sweep the processes that the whole gang has left; then report `Swept`."""
        self._cancel_sets()
        contained = self._attempt.contained
        if contained is None or not (contained.ends or self._events.listens()):
            self._loop.post(self._step, steps.Swept())
            return
        timeout_s, grace_left_s = action.timeout_s, self._timers.left_s("grace")
        if grace_left_s is not None:  # the groups had the same time, so use the rest of it, or the minimum
            timeout_s = min(timeout_s, max(grace_left_s, _LEAST_S))
        stuck = [found.pid for found in self._gang.unkillable.values()]
        sweep = Sweep(self._loop, contained, end=contained.ends, timeout_s=timeout_s, skip=stuck, done=self._done)
        self._whole = sweep
        sweep.begin()

    def _done(self, found: steps.Swept) -> None:
        self._whole = None
        if self._attempt.contained is not None:
            self._attempt.contained.close()
        self._step(found)

    def hurry(self, timeout_s: float) -> None:
        """Make the sweep of the gang send SIGKILL after this time, unless the sweep sends it sooner anyway."""
        if self._whole is not None:
            self._whole.hurry(timeout_s)

    def begin_set(self, action: steps.SweepRanks) -> None:
        """Sweep the processes that the present lives of these ranks have left; then report `RanksSwept`."""
        contained = self._attempt.contained
        if contained is None or not (contained.ends or self._events.listens()):
            self._loop.post(self._step, steps.RanksSwept(action.number))
            return
        self._of_sets[action.number] = sweep = Sweep(
            self._loop,
            contained,
            end=contained.ends,
            timeout_s=action.timeout_s,
            skip=(),
            ranks=action.ranks,
            done=partial(self._set_done, action.number),
        )
        sweep.begin()

    def _set_done(self, number: int, found: steps.Swept) -> None:
        del self._of_sets[number]
        self._step(steps.RanksSwept(number, found))

    def _cancel_sets(self) -> None:
        while self._of_sets:
            self._of_sets.popitem()[1].cancel()

    def cancel(self) -> None:
        """Cancel all sweeps."""
        self._cancel_sets()
        if self._whole is not None:
            self._whole.cancel()

    def end(self) -> None:
        """Cancel all sweeps and drop the callback."""
        self.cancel()
        self._step = _nothing


def _nothing(_: steps.Event) -> None:
    """Replace a callback that must not be called any more."""
