"""The judgment of hangs: which ranks were silent for too long, and for which of them the other ranks wait.

This module is pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervise._record import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

LATE_NS = 250_000_000
"""Largest delay of a check.

If a check is later than that, the host got no processor time, so no rank is to blame.
"""
CHECKS = 4
"""Number of checks in a period. With several checks, one of them is late if the host did not run in between."""
_CLOSE_NS, _CLOSE_PARTS = 1_000_000_000, 10
"""Two last signs are close if they are less than a second, or than this part of the period, apart.

In short periods, they are close if they are less than the time between two checks apart.
"""
_LEAST_NS = 1_000_000
"""Minimum time between two checks."""


class Pulse(NamedTuple):
    """The last sign of a rank."""

    at_ns: int
    """Monotonic time."""
    step: int | None = None
    """The last step that the rank has reported."""


class Hang(NamedTuple):
    """A rank that hangs, and the ranks that are silent because they wait for it."""

    local_rank: int
    age_ns: int
    """Time since the last sign of the rank."""
    waiting: tuple[int, ...] = ()
    rivals: tuple[int, ...] = ()
    """Those of the waiting ranks that may hang instead, the most suspicious first.

    They have reported the same step, and fell silent at almost the same time.
    """


class Silence:
    """The deadlines of all ranks for one kind of sign. Times are monotonic nanoseconds, which the caller gives.

    A check has three parts: `near` names the ranks whose signs the caller reads once more, `excuse` grants a full
    period to a rank, and `judge` returns the hangs.
    """

    def __init__(self, period_ns: int, *, together: bool) -> None:
        """Begin without reports.

        Args:
            period_ns: Largest time between two signs of a rank.
            together: Whether the ranks depend on each other, so that a rank that hangs makes others silent.
        """
        self.period_ns = period_ns
        self._together = together
        self._granted_ns: dict[int, int] = {}
        """Rank to the beginning of the period that only this rank was granted."""
        self._all_granted_ns = 0
        self._reported: dict[int, int] = {}
        """For each rank that was reported, or was found to wait for a reported rank: its last sign at that time."""
        self._waits_for: dict[int, int] = {}
        """Rank to the reported rank for which it waits."""

    def is_late(self, due_ns: int, now_ns: int) -> bool:
        """Return whether a check that was due at `due_ns` is late. A late check grants every rank a full period."""
        if now_ns - due_ns <= LATE_NS:
            return False
        self._all_granted_ns = now_ns
        return True

    def excuse(self, local_rank: int, now_ns: int) -> None:
        """Grant a rank a full period.

        If the ranks depend on each other, grant one to all of them, since the others may wait for this rank.
        """
        if self._together:
            self._all_granted_ns = max(self._all_granted_ns, now_ns)
        else:
            self._granted_ns[local_rank] = now_ns

    def forget(self, local_rank: int) -> None:
        """Forget a life of a rank."""
        for told in (self._granted_ns, self._reported, self._waits_for):
            told.pop(local_rank, None)

    def note(self, local_rank: int, pulses: Mapping[int, Pulse]) -> None:
        """Note that a rank was reported for another reason. Its deadline then causes no second report."""
        if (pulse := pulses.get(local_rank)) is not None:
            self._reported[local_rank] = pulse.at_ns
            self._waits_for.pop(local_rank, None)

    def near(self, pulses: Mapping[int, Pulse], now_ns: int) -> list[int]:
        """Return the ranks that a judgment concerns.

        If a rank is overdue, these are all ranks that were silent for most of a period. Otherwise there are none.
        """
        self._release(pulses, now_ns)
        ages = {rank: now_ns - self._since(rank, pulse) for rank, pulse in pulses.items()}
        if not any(age >= self.period_ns and not self._is_reported(rank, pulses[rank]) for rank, age in ages.items()):
            return []
        return [rank for rank, age in ages.items() if 4 * age >= 3 * self.period_ns]

    def judge(self, pulses: Mapping[int, Pulse], now_ns: int) -> list[Hang]:
        """Return the hangs that were not reported yet.

        If the ranks depend on each other, one of the silent ranks is the culprit, and the others wait for it. The
        culprit is the rank with the lowest step; of several such ranks, the one with the oldest sign. Ranks with that
        step whose last signs are close to this one are its rivals: only their stacks may tell which of them hangs. The
        culprit is reported when it and its rivals are overdue. When the culprit has given a sign or has ended, the
        others get a full period.
        """
        silent = self.near(pulses, now_ns)
        overdue = [rank for rank in silent if now_ns - self._since(rank, pulses[rank]) >= self.period_ns]
        if not self._together:
            return [self._report(rank, pulses, now_ns) for rank in overdue if not self._is_reported(rank, pulses[rank])]
        if not silent:
            return []
        ordered = sorted(silent, key=lambda rank: (_step(pulses[rank]), pulses[rank].at_ns, rank))
        culprit = ordered[0]
        rivals = tuple(rank for rank in ordered[1:] if self._are_close(pulses[culprit], pulses[rank]))
        if not {culprit, *rivals} <= {*overdue}:
            return []
        known = self._is_reported(culprit, pulses[culprit])
        others = tuple(rank for rank in silent if rank != culprit)
        for rank in others:
            if not self._is_reported(rank, pulses[rank]):
                self._reported[rank] = pulses[rank].at_ns
                self._waits_for[rank] = culprit
        if known:
            return []
        return [self._report(culprit, pulses, now_ns)._replace(waiting=others, rivals=rivals)]

    def blame(self, hang: Hang, local_rank: int, pulses: Mapping[int, Pulse], now_ns: int) -> Hang:
        """Return a hang with one of its rivals as the culprit. The others wait for that rank.

        If the rival has given a sign since, return the hang as it is.
        """
        if local_rank not in hang.rivals or local_rank not in pulses:
            return hang
        if not self._is_reported(local_rank, pulses[local_rank]):
            return hang
        others = tuple(sorted({hang.local_rank, *hang.waiting} - {local_rank}))
        self._waits_for.pop(local_rank, None)
        self._waits_for.update(dict.fromkeys(others, local_rank))
        return Hang(local_rank, now_ns - self._since(local_rank, pulses[local_rank]), others)

    def next_ns(self, pulses: Mapping[int, Pulse], now_ns: int) -> int:
        """Return the time of the next check, at most a quarter of a period from now."""
        dues = (self._since(rank, pulse) + self.period_ns for rank, pulse in pulses.items())
        regular_ns = now_ns + max(self.period_ns // CHECKS, _LEAST_NS)
        return min([regular_ns, *(max(due_ns, now_ns + _LEAST_NS) for due_ns in dues if due_ns > now_ns)])

    def _are_close(self, one: Pulse, other: Pulse) -> bool:
        close_ns = min(max(_CLOSE_NS, self.period_ns // _CLOSE_PARTS), self.period_ns // CHECKS)
        return _step(one) == _step(other) and other.at_ns - one.at_ns < close_ns

    def _report(self, rank: int, pulses: Mapping[int, Pulse], now_ns: int) -> Hang:
        self._reported[rank] = pulses[rank].at_ns
        return Hang(rank, now_ns - self._since(rank, pulses[rank]))

    def _release(self, pulses: Mapping[int, Pulse], now_ns: int) -> None:
        """Grant a full period to each rank that waited for a culprit that has given a sign or has ended."""
        for rank, culprit in list(self._waits_for.items()):
            if culprit not in pulses or not self._is_reported(culprit, pulses[culprit]):
                self.forget(rank)
                self._granted_ns[rank] = now_ns

    def _since(self, rank: int, pulse: Pulse) -> int:
        return max(pulse.at_ns, self._granted_ns.get(rank, 0), self._all_granted_ns)

    def _is_reported(self, rank: int, pulse: Pulse) -> bool:
        """Return whether a rank was reported and has given no sign since then."""
        return self._reported.get(rank, -1) >= pulse.at_ns


def _step(pulse: Pulse) -> int:
    return -1 if pulse.step is None else pulse.step
