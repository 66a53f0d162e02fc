"""The health of ranks: reports of readiness and heartbeats, hangs, and their reports."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from supervise import _platform as platform, messages as say
from supervise._core import steps
from supervise._core.hangs import LATE_NS, Hang, Pulse, Silence
from supervise._files import closing, open_folder
from supervise._gang.describe import EventEmitter, Hung
from supervise._gang.notify_sockets import NotifySockets, RankNotes, Report
from supervise._printable import ending, one_line, ranks_as_text
from supervise._runtime.loop import NO_TIMER, Loop, Timer
from supervise._settings import WORDS
from supervise.errors import SuperviseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from supervise._core.model import Gang
    from supervise._gang.attempt import Attempt
    from supervise._gang.probing import Probing
    from supervise._gang.ranks import RankActors
    from supervise._runtime.future import Reply
    from supervise._runtime.shell import Subscribers
    from supervise.stacks import RankStacks
    from supervise.watchdog import HangTier, Watchdog

    Decide: TypeAlias = Callable[[Mapping[int, RankStacks]], Hung]

# The interface of the gang's runner that its helpers need


class Host(Protocol):
    """The part of the gang's runner that the health of ranks and requests for stacks need. Used on the gang's loop."""

    attempt: Attempt
    """The present attempt of the gang."""
    gang: Gang
    events: EventEmitter
    ranks: RankActors
    subscribers: Subscribers

    def step(self, event: steps.Event) -> None:
        """Let the core decide on an event."""

    def stacks(self, ranks: frozenset[int]) -> Reply[dict[int, RankStacks]]:
        """Request the stacks of each of these ranks that runs. The reply is an `OSError` if no thread is available."""


# The watch for ranks that hang
#
# It checks heartbeats and logs. It reports ranks that were silent for too long, by an event, a message and the stacks
# of all ranks. Then it fails the rank if the watchdog says so.


_MOST_TRIGGERS = 10
_BETWEEN_TRIGGERS_NS = 1_000_000_000
"""Minimum time between two reports that a rank itself requests. So a rank cannot flood its host."""


class _Tier:
    """One kind of sign, its deadlines and the timer of its next check."""

    def __init__(self, name: HangTier, silence: Silence, pulses: Callable[[], dict[int, Pulse]]) -> None:
        self.name: HangTier = name
        self.silence = silence
        self.pulses = pulses
        self.due_ns = 0
        self.timer = NO_TIMER


_LONGEST_S = 2.5
"""Time after which a rank fails without its stacks.

Their collection takes 2 s, unless a file system blocks it.
"""
_WRITE_S = 0.5
"""Time after which the stacks are reported without their file, which a file system may block."""


class _Report:
    """A hang that is being reported."""

    __slots__ = ("at_ns", "decide", "hung", "lives", "saved")

    def __init__(self, hung: Hung, decide: Decide | None, lives: Sequence[int]) -> None:
        self.hung = hung
        self.lives = lives  # the numbers of the ranks' lives; a later life has not hung
        self.decide = decide
        """Function that names the rank by the stacks. None: subscribers know of the hang."""
        self.at_ns = time.monotonic_ns()
        self.saved = False
        """Whether the event with its stacks was emitted."""


class HangWatch:
    """Watch that checks all ranks four times a period, and when a rank is overdue. Used on the gang's loop."""

    def __init__(self, watchdog: Watchdog, host: Host, loop: Loop, sockets: NotifySockets) -> None:
        """Begin without ranks.

        Args:
            watchdog: The deadlines, and the consequence of a hang.
            host: The gang's runner.
            loop: The gang's loop.
            sockets: The notify sockets, which have the heartbeats of the ranks.
        """
        self._host: Host | None = host
        self._watchdog = watchdog
        self._pending: list[_Report] = []
        """Hangs that are not told yet, or whose ranks fail once their stacks are collected."""
        self._gang = gang = host.gang
        self._loop = loop
        self._sockets = sockets
        self._ready_ns: dict[int, int] = {}
        """Rank to the time at which its present life became ready. Only for ranks with a condition of readiness."""
        self._grown: dict[int, tuple[list[tuple[int, int]], int | None, int]] = {}
        """Rank to the last check of its logs.

        It is the size and the modification time (ns of the wall clock) of each; when the rank last wrote to them, None
        if they have been empty so far; and the time of the check.
        """
        self._held: set[int] = set()
        """The ranks that were suspended or traced at the last check."""
        self._dropped: dict[int, int] = {}
        """Rank to the number of dropped datagrams of its life at the last check of heartbeats."""
        self._triggered: dict[int, tuple[tuple[int, int | None] | None, int, int]] = {}
        """Rank to the last report that it requested by ``WATCHDOG=trigger``.

        It is the number of the rank's life with its last heartbeat, the time, and the number of reports so far.
        """
        together = gang.strategy != "one_for_one"
        self._unheard_s = watchdog.heartbeat_timeout_s
        """The deadline of heartbeats; None after the report that no rank has sent one."""
        self._tiers: list[_Tier] = []
        signs: dict[HangTier, tuple[float | None, Callable[[int], int | None]]] = {
            "heartbeat": (watchdog.heartbeat_timeout_s, self._beat_ns),
            "output": (watchdog.output_timeout_s, self._output_ns),
        }
        for name, (timeout_s, last_ns) in signs.items():
            if timeout_s is not None:
                silence = Silence(int(timeout_s * 1e9), together=together)
                self._tiers.append(_Tier(name, silence, partial(self._pulses, last_ns)))

    def started(self, rank: int) -> None:
        """Watch a new life of a rank."""
        self._ready_ns.pop(rank, None)
        self._grown.pop(rank, None)
        self._held.discard(rank)
        self._dropped.pop(rank, None)
        for tier in self._tiers:
            tier.silence.forget(rank)
            if tier.timer is NO_TIMER:
                self._schedule(tier)

    def ready(self, rank: int, at_ns: int) -> None:
        """Note that a rank has become ready."""
        self._ready_ns[rank] = at_ns

    def counts(self, rank: int) -> bool:
        """Return whether the silence of a rank counts, and the rank is neither suspended nor traced."""
        return self._is_watched(rank) and not self._is_held(rank)

    def trigger(self, rank: int) -> None:
        """Report a rank that requests it. Until the rank's next heartbeat, ignore further requests."""
        now_ns, beat_ns = time.monotonic_ns(), self._sockets.state(rank).beat_ns
        life = (self._gang.ranks[rank].attempt, beat_ns)
        last_life, last_ns, number = self._triggered.get(rank, (None, 0, 0))
        floods = number >= _MOST_TRIGGERS and now_ns - last_ns < _BETWEEN_TRIGGERS_NS
        if self._is_watched(rank) and life != last_life and not floods:
            self._triggered[rank] = life, now_ns, number + 1
            at_ns = beat_ns or self._ready_ns.get(rank) or self._gang.ranks[rank].started_ns
            self.report("heartbeat", rank, now_ns - at_ns)
            for tier in self._tiers:
                if tier.name == "heartbeat":
                    tier.silence.note(rank, tier.pulses())

    def say_unheard(self, *, over: bool = False) -> None:
        """Report once that no rank has sent a heartbeat: after three deadlines, or at the end of the gang.

        A rank with a condition of readiness has time until it is ready, and its silence is then a hang.
        """
        gang, period_ns = self._gang, 1e9 * (self._unheard_s or 0)
        begun_ns = [self._since_ready(number, rank.started_ns or None) for number, rank in enumerate(gang.ranks)]
        ran_ns = max((time.monotonic_ns() - at_ns for at_ns in begun_ns if at_ns is not None), default=0)
        late = ran_ns > 3 * period_ns or (over and any(not gang.failed(end) for end in gang.ends))
        if late and period_ns and self._host is not None and not self._sockets.heard:
            self._host.events.unheard(period_ns / 1e9)
            self._unheard_s = None

    def end(self) -> None:
        """Cancel all checks."""
        self.say_unheard(over=True)
        for tier in self._tiers:
            tier.timer.cancel()
        self._tiers = []
        self._host = None
        self._pending.clear()

    # Checks

    def _schedule(self, tier: _Tier) -> None:
        now_ns = time.monotonic_ns()
        tier.due_ns = tier.silence.next_ns(tier.pulses(), now_ns)
        tier.timer = self._loop.call_later((tier.due_ns - now_ns) / 1e9, partial(self._check, tier))

    def _check(self, tier: _Tier) -> None:
        now_ns = time.monotonic_ns()
        self.say_unheard()
        self.excuse([rank for rank in self._watched() if _was_continued(self._pid(rank))], now_ns)
        if not tier.silence.is_late(tier.due_ns, now_ns):
            near = tier.silence.near(tier.pulses(), now_ns)
            self._sockets.read_now(*near)
            self._held = {rank for rank in self._held.union(near) if self._is_watched(rank) and self._is_held(rank)}
            self.excuse(self._held, now_ns)
            if tier.name == "heartbeat":
                self._excuse_flooded(tier.silence, now_ns)
            for hang in tier.silence.judge(tier.pulses(), now_ns):
                self._hangs(tier, hang)
        if self._host is not None:
            self._schedule(tier)

    def _hangs(self, tier: _Tier, hang: Hang) -> None:
        if tier.name == "heartbeat":
            self._unheard_s = None
        hung = self._hung(tier.name, hang.local_rank, hang.age_ns, hang.waiting)
        others = hang.rivals if hang.waiting else self._mute(tier, hang) or self._left_early(hang)
        self._report(hung, partial(self._by_stacks, tier, hang) if others else None)

    def _by_stacks(self, tier: _Tier, hang: Hang, found: Mapping[int, RankStacks]) -> Hung:
        """Return the hang with the rank that the stacks name, and with the reason. The stacks may be empty."""
        from supervise._core.evidence import BY_STACK, by_stacks  # lazy: most gangs have no watchdog

        names, now_ns, mute = self._names, time.monotonic_ns(), self._mute(tier, hang)
        stacks = {names[rank]: found[rank] for rank in (hang.local_rank, *hang.waiting, *mute) if rank in found}
        suspects = [rank for rank in (hang.local_rank, *hang.rivals, *mute) if rank in self._gang.running]
        suspect = by_stacks(stacks, [names[rank] for rank in suspects or [hang.local_rank]])
        rank = next(local for local, name in names.items() if name == suspect.rank)
        if rank in mute:  # the others wait for it; it has sent nothing, so only the first rank can end the hang
            waiting = (hang.local_rank, *hang.waiting)
            return self._hung(
                tier.name, rank, now_ns - self._gang.ranks[rank].started_ns, waiting, evidence=suspect.evidence
            )
        blamed = tier.silence.blame(hang, rank, tier.pulses(), now_ns)
        evidence = suspect.evidence if hang.rivals and blamed.local_rank == rank else ""
        if (early := self._left_early(hang)) and not evidence.startswith(BY_STACK):
            who = "these ranks wait" if hang.waiting else "this rank waits"
            evidence = f"{early}, while {who}" if suspect.waits else early
        return self._hung(tier.name, blamed.local_rank, blamed.age_ns, blamed.waiting, evidence=evidence)

    def _mute(self, tier: _Tier, hang: Hang) -> list[int]:
        """Return the ranks of the same role that have given no sign so far, if the ranks depend on each other."""
        pulses = tier.pulses()
        return [rank for rank in self._watched() if rank not in pulses and self._depend(rank, hang.local_rank)]

    def _left_early(self, hang: Hang) -> str:
        """Return which ranks of the same role have succeeded, if the ranks depend on each other; otherwise "".

        If none has exited yet, it is those whose functions have returned.
        """
        gang, names, outcomes = self._gang, self._names, {}
        ends = [end for end in gang.ends if gang.ranks[end.local_rank].by_itself and not gang.failed(end)]
        if ends := [end for end in ends if self._depend(end.local_rank, hang.local_rank)]:
            who = ranks_as_text(names[end.local_rank] for end in ends)
            age_s = (time.monotonic_ns() - ends[-1].ended_ns) / 1e9
            return f"{who} exited {age_s:.1f} s ago with code {ends[-1].exitcode}"
        if self._host is not None:
            outcomes = self._host.ranks.slots.outcomes
        returned = [rank for rank in sorted(gang.running) if rank in outcomes and outcomes[rank].has_value]
        returned = [names[rank] for rank in returned if self._depend(rank, hang.local_rank)]
        return f"{ranks_as_text(returned)} returned before" if returned else ""

    def _depend(self, one: int, other: int) -> bool:
        gang = self._gang
        return gang.strategy != "one_for_one" and gang.role_of[one] == gang.role_of[other]

    def report(self, tier: HangTier, rank: int, age_ns: int, last: str = "") -> None:
        """Report that a rank hangs. `last` is the probe that it has not answered, with the last answer."""
        self._report(self._hung(tier, rank, age_ns, (), last=last))

    # Reports

    @property
    def _names(self) -> dict[int, int]:
        """Local rank to the rank that events name."""
        return self._host.events.global_ranks(range(self._gang.nprocs)) if self._host is not None else {}

    def _report(self, hung: Hung, decide: Decide | None = None) -> None:
        """Report a hang.

        With ``fail``, the rank fails only after the stacks are collected, which takes up to 2 s.

        Args:
            hung: The hang.
            decide: Function that names the rank by the stacks, from local rank to stacks; the report waits for them.
                Without stacks, the mapping is empty. None: `hung` names it.
        """
        if self._host is None:
            return
        report = _Report(hung, decide, [rank.attempt for rank in self._gang.ranks])
        self._pending.append(report)
        if decide is None:
            self._announce(report, {})
        if not self._watchdog.stacks:
            self._conclude(report)
            return
        self._loop.call_later(_LONGEST_S, partial(self._conclude, report))
        reply = self._host.stacks(frozenset(range(self._gang.nprocs)))
        reply.add_done_callback(partial(self._loop.post, self._take, report, reply))

    def _announce(self, report: _Report, found: Mapping[int, RankStacks]) -> None:
        """Tell a hang with the rank that the stacks name, unless that rank has begun a later life meanwhile."""
        if report.decide is not None:
            report.hung, report.decide = report.decide(found), None
        told = report.hung.message
        if self._host is not None and report.lives[told.local_rank] == self._gang.ranks[told.local_rank].attempt:
            self._host.events.emit(report.hung)
            self._host.subscribers.tell(told)

    def settle(self, *, failed: bool) -> None:
        """Fail the ranks whose stacks are still being collected, because a rank has exited.

        Otherwise its exit might be blamed for their failure. A hang that the stacks decide waits for them, unless that
        rank has failed.
        """
        for report in list(self._pending):
            if failed or report.decide is None:
                self._conclude(report)

    def _take(self, report: _Report, reply: Reply[dict[int, RankStacks]]) -> None:
        if self._host is None:
            return
        try:
            found = reply.get(timeout=0)
        except Exception:  # no thread is available, or the gang has ended
            self._conclude(report)
            return
        if report.decide is not None:
            self._announce(report, found)
        ranks = self._names
        rank = ranks[report.hung.message.local_rank]
        found = {ranks[local]: stacks for local, stacks in found.items()}
        folder = getattr(self._host.attempt.spec.logs_specs, "_run_log_dir", None)
        from supervise.stacks import group_stacks  # lazy: most gangs have no watchdog

        places = tuple(group_stacks(found))
        without_file = partial(self._tell, report, places, "")
        if folder is None or not self._save(folder, report, rank, places, found):
            without_file()
        else:
            self._loop.call_later(_WRITE_S, without_file)

    def _save(
        self, folder: str, report: _Report, rank: int, places: tuple[str, ...], found: Mapping[int, RankStacks]
    ) -> bool:
        """Write the stacks on a thread, because a file system may block; return whether a thread is available."""
        head = f"rank {rank} {why(report.hung)}"

        def save() -> None:
            path = _write(folder, [head, "", *places], found)
            self._loop.post(self._tell, report, places, path)

        try:
            platform.start_thread(
                threading.Thread(target=save, name="supervise-stacks", daemon=True), "the file with stacks"
            )
        except OSError:
            return False
        return True

    def _tell(self, report: _Report, places: tuple[str, ...], path: str) -> None:
        """Report the stacks of a hang, only once. Then fail the rank, because the gang may end with that failure."""
        if self._host is not None and not report.saved:
            report.saved = True
            self._host.events.stacks_taken(path, places)
            self._conclude(report)

    def _conclude(self, report: _Report) -> None:
        """Tell a hang at last, and fail its rank if the watchdog says so. Only once."""
        if report not in self._pending or self._host is None:
            return
        self._pending.remove(report)
        if report.decide is not None:
            self._announce(report, {})
        if self._watchdog.action == "fail":
            told = report.hung.message
            life = report.lives[told.local_rank]
            self._host.step(steps.RankFaulted(told.local_rank, life, why(report.hung), report.at_ns))

    def _hung(
        self, tier: HangTier, rank: int, age_ns: int, waiting: tuple[int, ...], *, evidence: str = "", last: str = ""
    ) -> Hung:
        notes = self._sockets.state(rank)
        message = say.WorkerHung(
            local_rank=rank,
            attempt=self._gang.ranks[rank].attempt,
            tier=tier,
            age_s=age_ns / 1e9,
            step=notes.step,
            status=last or notes.status,
            evidence=evidence,
        )
        return Hung(message, waiting)

    def _is_watched(self, rank: int) -> bool:
        """Return whether the silence of a rank counts.

        The rank runs and is not held, and neither the rank nor supervise is about to end it.
        """
        gang = self._gang
        runs = rank in gang.running and rank not in gang.held and gang.phase in ("starting", "running")
        life = gang.ranks[rank]
        return runs and not life.told and life.fault is None and not self._sockets.state(rank).stopping

    def _watched(self) -> list[int]:
        return [rank for rank in sorted(self._gang.running) if self._is_watched(rank)]

    def _pulses(self, last_ns: Callable[[int], int | None]) -> dict[int, Pulse]:
        """Return the watched ranks with a deadline. `last_ns` returns when it began for a rank; None if it has not."""
        found = {}
        for rank in self._watched():
            at_ns = last_ns(rank)
            if at_ns is not None:
                found[rank] = Pulse(at_ns, self._sockets.state(rank).step)
        return found

    def _beat_ns(self, rank: int) -> int | None:
        return self._since_ready(rank, self._sockets.state(rank).beat_ns)

    def _output_ns(self, rank: int) -> int | None:
        paths = self._host.ranks.log_paths(rank) if self._host is not None else ()
        return self._since_ready(rank, self._written_ns(rank, paths)) if paths else None

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
        before, at_ns, seen_ns = self._grown.get(rank) or ([], None, self._gang.ranks[rank].started_ns)
        if found != before and (at_ns is not None or any(size for size, _ in found)):
            # Not before the last check: file times are those of the wall clock, which can be set
            written_ns = now_ns - now_wall_ns + max((mtime_ns for _, mtime_ns in found), default=now_wall_ns)
            at_ns = min(now_ns, max(written_ns, seen_ns))
        self._grown[rank] = found, at_ns, now_ns
        return at_ns

    # Excuses

    def _pid(self, rank: int) -> int:
        return self._gang.ranks[rank].pid or 0

    def excuse(self, ranks: Iterable[int], now_ns: int) -> None:
        """Grant a full period because of these ranks.

        They are suspended or traced, were continued since the last check, or were held until now.
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


def why(hung: Hung) -> str:
    """Return the message of the failure: ``hung: no heartbeat for 30.0 s (step 41, "save"); by its stack: ...``."""
    told = hung.message
    seen = [f"step {told.step}"] if told.step is not None else []
    seen += [f'"{told.status}"'] if told.status else []
    details = f" ({', '.join(seen)})" if seen else ""
    evidence = f"; {told.evidence}" if told.evidence else ""
    return f"hung: no {told.tier} for {told.age_s:.1f} s{details}{evidence}"


def _write(folder: str, lines: list[str], found: Mapping[int, RankStacks]) -> str:
    """Write the stacks of all ranks below a head, as text.

    Return the path; "" if the file cannot be written. An earlier gang with the same `LogsSpecs` has written to the same
    folder, so the file gets the first free number.
    """
    for rank, stacks in sorted(found.items()):
        lines += ["", f"rank {rank}, pid {stacks.pid}, source {stacks.source}", *stacks.notes]
        for thread in stacks.threads:
            kernel = " ".join(part for part in (thread.state, thread.wchan, thread.syscall) if part)
            lines.append(f"  thread {thread.name or thread.tid}: {kernel}")
            lines += [f"    {frame.function} ({frame.file}:{frame.line})" for frame in thread.frames]
    try:
        at = open_folder(folder)
    except OSError:
        return ""
    private = partial(os.open, mode=0o600, dir_fd=at)
    with closing(at):
        for number in itertools.count(1):
            name = f"stacks-{number}.txt"
            try:
                with open(name, "x", encoding="utf-8", errors="backslashreplace", opener=private) as file:
                    file.writelines(f"{one_line(line)}\n" for line in lines)
            except FileExistsError:
                continue
            except OSError:
                break
            return os.path.join(folder, name)
    return ""


# The reloads that wait for reports of ranks


_RELOADING_S = 2.0
"""Time in which a rank reports RELOADING=1 after the signal. A rank that reports nothing counts as reloaded."""
_SURVIVED_S = 0.3
"""Time after which a rank that cannot report has survived the signal, and counts as reloaded."""


class _Reload:
    """A request to reload ranks. Used on the gang's loop."""

    def __init__(self, name: str, found: dict[int, bool], left: set[int], reply: Reply[dict[int, bool]]) -> None:
        self.name = name
        """Name of the gang."""
        self.found = found
        """The content of the reply."""
        self.left = left
        """Ranks that have not reported that they are ready again; none once the request is answered."""
        self.silent = set(left)
        """Those of them that have reported nothing."""
        self.reply = reply
        self.timers: list[Timer] = []

    def skip(self, ranks: Iterable[int]) -> None:
        """Wait no more for these ranks. Answer if no other rank is left."""
        if self.left and not self.left.difference(ranks):
            self._end()
            self.reply.set(self.found)
        self.left.difference_update(ranks)

    def fail(self, why: str) -> None:
        """Answer by an error, unless the request is answered."""
        if self.left:
            self._end()
            self.reply.fail(SuperviseError(f"{self.name}: {why}"))
        self.left.clear()

    def _end(self) -> None:
        for timer in self.timers:
            timer.cancel()


# The health of ranks: their notify sockets, the time in which each rank must become ready, and the watch for hangs


class RankHealth:
    """Reporter to the core: which ranks are ready, were not ready in time, or hang. Used on the gang's loop."""

    def __init__(self, host: Host, loop: Loop) -> None:
        """Begin without sockets.

        Args:
            host: The gang's runner.
            loop: The gang's loop.
        """
        self._host: Host | None = host
        self._gang = host.gang
        self._loop = loop
        self._spec = spec = host.attempt.spec
        self._timers: dict[int, Timer] = {}
        """Rank to the timer for the next check of its deadline. Only for ranks that are not ready."""
        self._due_s: dict[int, float] = {}
        """Rank to the monotonic time until which it must be ready. A change of this time makes no new timer."""
        self._granted: set[int] = set()
        """The ranks that had the whole time again in their present life, because their deadline was checked late."""
        self._reloads: list[_Reload] = []
        self.sockets = NotifySockets(loop, self._told)
        """The notify sockets. If the ranks use none, none is open."""
        self._missing: dict[int, set[str]] = {}
        """Rank to the conditions of its readiness that are not met. Only for ranks that are not ready."""
        self._watch: HangWatch | None = None
        if spec.watches:
            from supervise.watchdog import Watchdog  # lazy: most gangs have none

            watchdog = spec.watchdog or Watchdog()
            self._watch = HangWatch(watchdog, host, loop, self.sockets)
        self._probings: dict[int, list[Probing]] = {}
        """Rank to the probes of its present life."""
        self.unmet: dict[int, list[str]] = {}
        """Rank that has ended to the probes that had kept it from being ready, with their last answers."""
        self._threads: list[threading.Thread] = []  # of canceled probes by commands, whose processes they reap

    def started(self, fact: say.WorkerStarted) -> None:
        """Read the socket of a rank whose process runs, and limit the time until the rank is ready."""
        rank, part = fact.local_rank, self._spec.of(fact.local_rank)
        self.sockets.launched(rank, fact.pid, awaits_ready="notify" in part.ready)
        if self._watch is not None:
            self._watch.started(rank)
        if part.ready:
            self._missing[rank] = set(part.ready)
            self._granted.discard(rank)
            self._limit(rank, part.ready_timeout_s)
            for text in part.ready:
                if text not in WORDS:
                    self._probe(rank, text, self._tried).begin()
        else:
            self._begin_alive(rank)

    def exited(self, end: say.WorkerExited) -> RankNotes:
        """Handle what precedes the exit of a rank and what the core does not know yet: hangs, datagrams, readiness.

        Return the last reports of the rank.
        """
        rank, failed = end.local_rank, end.exitcode not in self._gang.success
        if self._watch is not None:
            self._watch.settle(failed=failed)
        self.sockets.read_now(rank)
        self.sockets.close(rank)
        if "exit" in self._spec.of(rank).ready and not failed and end.complaint is None:
            self._met(rank, "exit")
        self.unmet[rank] = self._stories(rank)
        self._end_probes(rank)
        self._missing.pop(rank, None)
        self._lift(rank)
        for one in [one for one in self._reloads if rank in one.left]:
            one.fail(f"{self._titles((rank,))} ended ({ending(end.exitcode)}) while it reloaded")
        return self.sockets.state(rank)

    def released(self, ranks: Iterable[int]) -> None:
        """Grant a full period to ranks that were held or suspended, and that sent no signs meanwhile."""
        if self._watch is not None:
            self._watch.excuse(ranks, time.monotonic_ns())
        for rank in self._timers.keys() & set(ranks):
            self._grant(rank)

    def continuing(self, ranks: Iterable[int]) -> None:
        """Grant a full period to each of these ranks that is suspended, because SIGCONT continues it next."""
        processes = {} if self._host is None else self._host.ranks.slots.processes
        self.released([rank for rank in ranks if rank in processes and processes[rank].kernel_state() in ("T", "t")])

    def reload(self, found: dict[int, bool], reply: Reply[dict[int, bool]]) -> None:
        """Answer a reload when those of the signaled ranks that report are ready again, and the others still run.

        Args:
            found: Rank to whether it was signaled.
            reply: The reply, whose value is `found`.
        """
        of = self._spec.of
        awaited = {rank for rank, signaled in found.items() if signaled}
        if not awaited:
            reply.set(found)
            return
        one = _Reload(self._spec.name, found, awaited, reply)
        self._reloads = [*(each for each in self._reloads if each.left), one]
        reporting = {rank for rank in awaited if "notify" in of(rank).ready}
        longest_s = max((of(rank).ready_timeout_s for rank in reporting), default=0.0)
        one.timers = [
            self._loop.call_later(_SURVIVED_S, partial(one.skip, awaited - reporting)),
            self._loop.call_later(_RELOADING_S, partial(self._skip_silent, one)),
            self._loop.call_later(max(longest_s, _RELOADING_S), partial(self._late_reload, one, longest_s)),
        ]

    def _skip_silent(self, one: _Reload) -> None:
        self.sockets.read_now(*sorted(one.silent))
        one.skip(one.silent)

    def _late_reload(self, one: _Reload, limit_s: float) -> None:
        self.sockets.read_now(*sorted(one.left))
        one.fail(f"{self._titles(one.left)}: no READY=1 within {limit_s:g} s after the reload signal")

    def _titles(self, ranks: Iterable[int]) -> str:
        return ", ".join(map(self._spec.title, sorted(ranks)))

    def _grant(self, rank: int) -> None:
        """Limit the time until a rank is ready as if it began now."""
        self._limit(rank, max(self._spec.of(rank).ready_timeout_s, self._due_s[rank] - time.monotonic()))

    def _limit(self, rank: int, left_s: float) -> None:
        self._lift(rank)
        self._due_s[rank] = time.monotonic() + left_s
        self._timers[rank] = self._loop.call_later(max(left_s, 0.0), partial(self._late, rank))

    def _lift(self, rank: int) -> None:
        self._timers.pop(rank, NO_TIMER).cancel()

    def _late(self, rank: int) -> None:
        now_s = time.monotonic()
        self.sockets.read_now(rank)
        if rank not in self._timers:  # it is ready
            return
        if (left_s := self._due_s[rank] - now_s) > 0:  # the rank has asked for more time
            self._limit(rank, left_s)
            return
        # If the check is late, this process got no CPU time, for example because it was suspended. Only once in a life,
        # because every check of a machine that is always busy is late
        if rank not in self._granted and now_s > self._timers[rank].due_s + LATE_NS / 1e9:
            self._granted.add(rank)
            self._grant(rank)
            return
        del self._timers[rank]
        missing, stories = self._missing.get(rank, set()), self._stories(rank)
        stories += ["it has not ended"] if "exit" in missing else []
        stories += ["it has not sent READY=1"] if stories and "notify" in missing else []
        why = f"was not ready within {self._spec.of(rank).ready_timeout_s:g} s"
        why += f": {'; '.join(stories)}" if stories else ""
        self._step(steps.RankFaulted(rank, self._gang.ranks[rank].attempt, why, time.monotonic_ns()))

    def _stories(self, rank: int) -> list[str]:
        """Return the probes that have kept a rank from being ready, with their last answers."""
        missing = self._missing.get(rank, set())
        return [
            f"{each.probe.text} was tried {each.tries} time{'s' * (each.tries != 1)}; the last answer: {each.answer}"
            for each in self._probings.get(rank, ())
            if each.text in missing
        ]

    def _told(self, rank: int, what: Report, usec: int) -> None:
        if what == "ready":
            self._met(rank, "notify")
        elif what == "extended" and rank in self._timers:
            self._due_s[rank] = max(self._due_s[rank], time.monotonic() + usec / 1e6)
        elif what == "trigger" and self._watch is not None:
            self._watch.trigger(rank)
        elif what in ("reloading", "reloaded"):
            for one in [one for one in self._reloads if rank in one.left]:
                one.silent.discard(rank)
                one.skip((rank,) if what == "reloaded" else ())

    def _met(self, rank: int, condition: str) -> None:
        """Note that a condition of the readiness of a rank is met. If it is the last one, the rank is ready."""
        missing = self._missing.get(rank, set())
        missing.discard(condition)
        if missing or self._missing.pop(rank, None) is None:
            return
        self._lift(rank)
        now_ns = time.monotonic_ns()
        if self._watch is not None:
            self._watch.ready(rank, now_ns)
        self._begin_alive(rank)
        self._step(steps.RankReady(rank, self._gang.ranks[rank].attempt, now_ns))

    # Probes

    def _probe(self, rank: int, text: str, then: Callable[[Probing], object]) -> Probing:
        from supervise._gang.probing import Probing  # lazy: most gangs have no probe

        assert self._host is not None  # noqa: S101 - a gang that has ended has no rank that starts
        made = Probing(self._host.attempt, rank, text, self._loop, then, trimmer_of=self._host.ranks.trimmer_of)
        self._probings.setdefault(rank, []).append(made)
        return made

    def _tried(self, one: Probing) -> None:
        """Try again, after a delay that grows, or note that the condition is met."""
        if one.answer:
            from supervise._gang.probing import delay_s  # lazy: as above

            one.begin(delay_s(one.tries))
        else:
            one.end()
            self._met(one.rank, one.text)

    def _begin_alive(self, rank: int) -> None:
        part = self._spec.of(rank)
        if part.alive is not None:
            self._probe(rank, part.alive, self._answered).begin(part.alive_interval_s)

    def _answered(self, one: Probing) -> None:
        """Report a rank that has not answered several times in a row, and that it answers again."""
        part, rank, now_ns = self._spec.of(one.rank), one.rank, time.monotonic_ns()
        if self._watch is None or self._host is None:
            return
        if not one.answer:
            if one.failures >= part.alive_failures:
                self._host.events.emit(steps.RankReady(rank, self._gang.ranks[rank].attempt, now_ns))
            one.good_ns, one.failures = now_ns, 0
        elif not self._watch.counts(rank):
            if one.failures < part.alive_failures:  # otherwise the hang was reported
                one.good_ns, one.failures = now_ns, 0
        elif not one.excused:
            one.failures += 1
            if one.failures == part.alive_failures:
                self._watch.report("answer", rank, now_ns - one.good_ns, f"{one.probe.text}: {one.answer}")
        one.begin(part.alive_interval_s)

    def _end_probes(self, rank: int) -> None:
        for each in self._probings.pop(rank, ()):
            each.end()
            if each.probe.kind in ("exec", "log") and each.thread is not None:
                self._threads = [*(thread for thread in self._threads if thread.is_alive()), each.thread]

    def _step(self, event: steps.Event) -> None:
        if self._host is not None:
            self._host.step(event)

    def end(self) -> None:
        """Close all sockets, cancel all timers and probes, and drop the reference to the host."""
        for rank in list(self._probings):
            self._end_probes(rank)
        until_s = time.monotonic() + 0.5
        for thread in self._threads:  # the processes are killed already
            thread.join(max(0.0, until_s - time.monotonic()))
        self._threads.clear()
        self.sockets.end()
        for rank in list(self._timers):
            self._lift(rank)
        if self._watch is not None:
            self._watch.end()
        for one in self._reloads:
            one.fail("the gang ends first")
        self._host = None
