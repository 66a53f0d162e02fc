"""The watch for ranks that hang.

It checks heartbeats and logs, and reports ranks that were silent for too long.
"""

from __future__ import annotations

import contextlib
import os
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from supervise import messages as say
from supervise._core.hangs import Pulse, Silence
from supervise._gang.hung import Hung

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from supervise._core.hangs import Hang
    from supervise._gang.hang_reports import HangReports
    from supervise._gang.health_host import Host
    from supervise._gang.notify_sockets import NotifySockets
    from supervise._runtime.loop import Loop, Timer
    from supervise.watchdog import HangTier, Watchdog


_MOST_TRIGGERS = 10
_BETWEEN_TRIGGERS_NS = 1_000_000_000
"""Minimum time between two reports that a rank itself requests. So a rank cannot flood its host."""


class _Triggered(NamedTuple):
    """The last report that a rank itself has requested."""

    life: tuple[int, int | None] | None
    """Number of the rank's life, and its last heartbeat."""
    at_ns: int
    number: int


class _Growth(NamedTuple):
    """A check of the logs of a rank."""

    found: tuple[tuple[int, int], ...]
    """Size and modification time (ns of the wall clock) of each."""
    at_ns: int | None
    """When the rank last wrote to them; None if they have been empty so far."""
    seen_ns: int
    """Time of the check."""


class _Tier:
    """One kind of sign, its deadlines and the timer of its next check."""

    def __init__(self, name: HangTier, silence: Silence, pulses: Callable[[], dict[int, Pulse]]) -> None:
        self.name: HangTier = name
        self.silence = silence
        self.pulses = pulses
        self.due_ns = 0
        self.timer: Timer | None = None


class HangWatch:
    """Watch that checks all ranks four times a period, and when a rank is overdue. Used on the gang's loop."""

    def __init__(
        self, watchdog: Watchdog, host: Host, loop: Loop, sockets: NotifySockets, reports: HangReports
    ) -> None:
        """Begin without ranks.

        Args:
            watchdog: The deadlines.
            host: The gang's runner.
            loop: The gang's loop.
            sockets: The notify sockets, which have the heartbeats of the ranks.
            reports: The reporter of hangs.
        """
        self._host: Host | None = host
        self._reports = reports
        self._gang = gang = host.gang
        self._loop = loop
        self._sockets = sockets
        self._ready_ns: dict[int, int] = {}
        """Rank to the time at which its present life became ready. Only for ranks that report that they are ready."""
        self._grown: dict[int, _Growth] = {}
        """Rank to the last check of its logs."""
        self._held: set[int] = set()
        """The ranks that were suspended or traced at the last check."""
        self._dropped: dict[int, int] = {}
        """Rank to the number of dropped datagrams of its life at the last check of heartbeats."""
        self._triggered: dict[int, _Triggered] = {}
        """Rank to the last report that it requested by ``WATCHDOG=trigger``."""
        together = gang.strategy != "one_for_one"
        self._tiers: list[_Tier] = []
        if watchdog.heartbeat_timeout_s is not None:
            silence = Silence(int(watchdog.heartbeat_timeout_s * 1e9), together=together)
            self._tiers.append(_Tier("heartbeat", silence, self._heartbeats))
        if watchdog.output_timeout_s is not None:
            silence = Silence(int(watchdog.output_timeout_s * 1e9), together=together)
            self._tiers.append(_Tier("output", silence, self._outputs))

    def started(self, rank: int) -> None:
        """Watch a new life of a rank."""
        self._ready_ns.pop(rank, None)
        self._grown.pop(rank, None)
        self._held.discard(rank)
        self._dropped.pop(rank, None)
        for tier in self._tiers:
            tier.silence.forget(rank)
            if tier.timer is None:
                self._schedule(tier)

    def ready(self, rank: int, at_ns: int) -> None:
        """Note that a rank has reported that it is ready."""
        self._ready_ns[rank] = at_ns

    def trigger(self, rank: int) -> None:
        """Report a rank that requests it. Until the rank's next heartbeat, ignore further requests."""
        now_ns, beat_ns = time.monotonic_ns(), self._sockets.state(rank).beat_ns
        life = (self._gang.ranks[rank].attempt, beat_ns)
        last = self._triggered.get(rank) or _Triggered(None, 0, 0)
        floods = last.number >= _MOST_TRIGGERS and now_ns - last.at_ns < _BETWEEN_TRIGGERS_NS
        if self._is_watched(rank) and life != last.life and not floods:
            self._triggered[rank] = _Triggered(life, now_ns, last.number + 1)
            at_ns = beat_ns or self._ready_ns.get(rank) or self._gang.ranks[rank].started_ns
            self._report("heartbeat", rank, now_ns - at_ns, ())
            for tier in self._tiers:
                if tier.name == "heartbeat":
                    tier.silence.note(rank, tier.pulses())

    def settle(self) -> None:
        """Fail the ranks that were reported, before the core decides on the exit of a rank."""
        self._reports.settle()

    def end(self) -> None:
        """Cancel all checks."""
        for tier in self._tiers:
            if tier.timer is not None:
                tier.timer.cancel()
        self._tiers = []
        self._host = None
        self._reports.end()

    # Checks

    def _schedule(self, tier: _Tier) -> None:
        now_ns = time.monotonic_ns()
        tier.due_ns = tier.silence.next_ns(tier.pulses(), now_ns)
        tier.timer = self._loop.call_later((tier.due_ns - now_ns) / 1e9, partial(self._check, tier))

    def _check(self, tier: _Tier) -> None:
        now_ns = time.monotonic_ns()
        self._excuse([rank for rank in self._watched() if _was_continued(self._pid(rank))], now_ns)
        if not tier.silence.is_late(tier.due_ns, now_ns):
            near = tier.silence.near(tier.pulses(), now_ns)
            for rank in near:
                self._sockets.read_now(rank)
            self._held = {rank for rank in self._held.union(near) if self._is_watched(rank) and self._is_held(rank)}
            self._excuse(self._held, now_ns)
            if tier.name == "heartbeat":
                self._excuse_flooded(tier.silence, now_ns)
            for hang in tier.silence.judge(tier.pulses(), now_ns):
                self._hangs(tier, hang)
        if self._host is not None:
            self._schedule(tier)

    def _hangs(self, tier: _Tier, hang: Hang) -> None:
        self._report(tier.name, hang.local_rank, hang.age_ns, hang.waiting)

    def _report(self, tier: HangTier, rank: int, age_ns: int, waiting: tuple[int, ...]) -> None:
        notes = self._sockets.state(rank)
        message = say.WorkerHung(
            local_rank=rank,
            attempt=self._gang.ranks[rank].attempt,
            tier=tier,
            age_s=age_ns / 1e9,
            step=notes.step,
            status=notes.status,
        )
        self._reports.report(Hung(message, waiting))

    def _is_watched(self, rank: int) -> bool:
        """Return whether the silence of a rank counts.

        The rank runs, and neither the rank nor supervise is about to end it.
        """
        gang = self._gang
        runs = rank in gang.running and not gang.ranks[rank].told and gang.phase in ("starting", "running")
        return runs and gang.ranks[rank].fault is None and not self._sockets.state(rank).stopping

    def _watched(self) -> list[int]:
        return [rank for rank in sorted(self._gang.running) if self._is_watched(rank)]

    def _heartbeats(self) -> dict[int, Pulse]:
        found = {}
        for rank in self._watched():
            notes = self._sockets.state(rank)
            at_ns = self._since_ready(rank, notes.beat_ns)
            if at_ns is not None:
                found[rank] = Pulse(at_ns, notes.step)
        return found

    def _outputs(self) -> dict[int, Pulse]:
        found = {}
        for rank in self._watched():
            paths = self._host.ranks.log_paths(rank) if self._host is not None else ()
            at_ns = self._since_ready(rank, self._written_ns(rank, paths)) if paths else None
            if at_ns is not None:
                found[rank] = Pulse(at_ns, self._sockets.state(rank).step)
        return found

    def _since_ready(self, rank: int, at_ns: int | None) -> int | None:
        """Return the time of a rank's readiness or of its last sign, whichever is later.

        None if the rank has no deadline yet.
        """
        if not self._gang.ranks[rank].notifies:
            return at_ns
        ready_ns = self._ready_ns.get(rank)
        return None if ready_ns is None else max(ready_ns, at_ns or 0)

    def _written_ns(self, rank: int, paths: Iterable[str]) -> int | None:
        """Return when a rank last wrote to its logs, as far as is known; None if they have been empty so far.

        A rank that truncates its log may write as many bytes as before, so that only the time of the file changes.
        """
        now_ns, now_wall_ns = time.monotonic_ns(), time.time_ns()
        found: list[tuple[int, int]] = []
        for path in paths:
            with contextlib.suppress(OSError):
                stat = os.stat(path)
                found.append((stat.st_size, stat.st_mtime_ns))
        before = self._grown.get(rank) or _Growth((), None, self._gang.ranks[rank].started_ns)
        at_ns = before.at_ns
        if tuple(found) != before.found and (at_ns is not None or any(size for size, _ in found)):
            # Not before the last check: file times are those of the wall clock, which can be set
            written_ns = now_ns - now_wall_ns + max((mtime_ns for _, mtime_ns in found), default=now_wall_ns)
            at_ns = min(now_ns, max(written_ns, before.seen_ns))
        self._grown[rank] = _Growth(tuple(found), at_ns, now_ns)
        return at_ns

    # Excuses

    def _pid(self, rank: int) -> int:
        return self._gang.ranks[rank].pid or 0

    def _excuse(self, ranks: Iterable[int], now_ns: int) -> None:
        """Grant a full period because of these ranks.

        They are suspended or traced, or were continued since the last check.
        """
        for rank in ranks:
            for tier in self._tiers:
                tier.silence.excuse(rank, now_ns)

    def _excuse_flooded(self, silence: Silence, now_ns: int) -> None:
        """Grant a full period to ranks with dropped datagrams, because heartbeats may have been dropped, too."""
        for rank in self._watched():
            dropped = self._sockets.state(rank).dropped
            if dropped != self._dropped.get(rank, 0):
                self._dropped[rank] = dropped
                silence.excuse(rank, now_ns)

    def _is_held(self, rank: int) -> bool:
        """Return whether the silence of a rank proves nothing. The rank is suspended or traced now, or has ended."""
        process = self._host.ranks.slots.processes.get(rank) if self._host is not None else None
        if process is None:
            return True
        return process.kernel_state() in ("T", "t") or _is_traced(self._pid(rank))


def _is_traced(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return b"\nTracerPid:\t0\n" not in file.read(4096)
    except OSError:
        return False


def _was_continued(pid: int) -> bool:
    """Return whether SIGCONT has continued a child since the last call. A rank of a fork server is not a child."""
    try:
        return os.waitid(os.P_PID, pid, os.WCONTINUED | os.WNOHANG) is not None
    except OSError:
        return False
