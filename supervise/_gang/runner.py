"""The runner of a gang. It passes events to the core, and carries out the actions of the core."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from supervise import messages as say
from supervise._core import batches, steps
from supervise._core.decide import decide
from supervise._core.model import Gang
from supervise._core.strategy import role_of
from supervise._core.verdict import judge
from supervise._gang import shutdown
from supervise._gang.attempt import Attempt, make_attempt
from supervise._gang.describe import (
    EventEmitter,
    RestartHistory,
    ask_error,
    build_result,
    not_unpickled,
    rank_end,
    start_error,
)
from supervise._gang.ranks import RankActors
from supervise._gang.worker import Deliver, LookForStop, Release, ReportStuck, SuspendedAsAsked
from supervise._process.containment import cgroup
from supervise._record import replace
from supervise._runtime.future import Reply
from supervise._runtime.loop import NO_TIMER, Loop, Timer
from supervise._runtime.shell import PendingReplies, Subscribers, with_jitter
from supervise.errors import SpawnError, SuperviseError, SupervisorCrashed, UnkillableError
from supervise.events import log
from supervise.recording import repr_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervise._gang.health import RankHealth
    from supervise._gang.notify_sockets import RankNotes
    from supervise._gang.spec import GangSpec
    from supervise._gang.stack_requests import StackRequests
    from supervise._process.exits.leader import ExitSlots
    from supervise._process.launch.return_value import OutcomeFile
    from supervise._runtime.actor import LoopActor
    from supervise._settings import Containment
    from supervise.result import RunProcsResult
    from supervise.stacks import RankStacks


# The present state of each rank, for `Status`


def rank_status(
    gang: Gang, spec: GangSpec, number: int, notes: RankNotes | None, outcome: OutcomeFile | None, *, suspended: bool
) -> say.RankStatus:
    """Return the present state of a rank.

    Args:
        gang: The state of the gang.
        spec: The settings of the gang.
        number: The rank.
        notes: The reports of the rank's present life; None if it has no notify socket.
        outcome: The file with the return value of its function; None if it has none.
        suspended: Whether the kernel has suspended the rank.
    """
    rank, part, state = gang.ranks[number], spec.of(number), _state(gang, number, suspended=suspended)
    lingers = None
    if state == "ready" and outcome is not None and outcome.has_value:
        state, lingers = "returned", outcome.note() or None
    row = say.RankStatus(
        pid=rank.pid,
        state=state,
        attempt=rank.attempt,
        restarts=rank.restarts,
        status=lingers,
        role=part.name or spec.name,
        role_rank=part.role_rank(number),
    )
    if notes is None:
        return row
    beat_age_s = None if notes.beat_ns is None else (time.monotonic_ns() - notes.beat_ns) / 1e9
    return replace(row, status=lingers or notes.status, step=notes.step, beat_age_s=beat_age_s)


def _state(gang: Gang, number: int, *, suspended: bool) -> say.RankState:
    rank, found = gang.ranks[number], gang.batch_of.get(number)
    if found is not None or (gang.phase == "restarting" and not gang.stays_down(rank)):
        waits = gang.restart_announced if found is None else found.state == "swept"
        return "backoff" if waits else "stopping"
    if gang.is_queued(number):
        return "waiting"
    if rank.state in ("waiting", "starting"):
        return rank.state
    if rank.state == "running":
        stopping = gang.phase == "stopping" or rank.told
        running: say.RankState = "returned" if rank.returned else "ready" if rank.ready else "starting"
        return "suspended" if suspended else "stopping" if stopping else running
    if rank.terminated:
        return "terminated"
    return "finished" if rank.end is not None and not gang.failed(rank.end) else "failed"


# The return values of ranks
#
# A thread loads them, because unpickling runs user code, for which there is no limit on the time.


class ReturnValues:
    """The return values of one attempt. Used on the gang's loop."""

    def __init__(self, name: str, nprocs: int, loop: Loop, slots: ExitSlots) -> None:
        """Begin without values.

        Args:
            name: Name of the gang.
            nprocs: Number of ranks.
            loop: The gang's loop.
            slots: The exit slots, which hold the result channels.
        """
        self._name = name
        self._nprocs = nprocs
        self._loop = loop
        self._slots = slots
        self._loaded: Callable[[steps.ValuesLoaded], object] | None = None
        self._partial = False
        """Whether a close or a timeout has cut ranks short. Then a value that cannot be loaded causes no failure."""
        self.by_rank: dict[int, Any] = {}
        """Local rank to loaded value."""

    def load(self, gang: Gang, loaded: Callable[[steps.ValuesLoaded], object]) -> None:
        """Load the values if all ranks exited with a code of success, except for terminated ranks and stopped services.

        If a close or a timeout has cut other ranks short, load the values that have arrived.

        A rank that stays down since an earlier attempt has no value and does not count here.

        Args:
            gang: The state of the gang; all ranks have ended.
            loaded: Function that is called on the loop with the event, which has a complaint for each value that could
                not be loaded.
        """
        self._loaded = loaded
        over = {n for n, rank in enumerate(gang.ranks) if rank.terminated or rank.dismissed or gang.is_left_out(n)}
        ends = [end for end in gang.ends if end.local_rank not in over]
        complete = sum(end.exitcode in gang.success for end in ends) >= self._nprocs - len(over)
        self._partial = not complete and gang.stop.reason in ("close", "timeout")
        good = {end.local_rank for end in ends if end.has_value and (self._partial or not gang.failed(end))}
        good = good if complete or self._partial else set()
        files = {rank: file for rank in good if (file := self._slots.outcomes[rank]).kind() != "None"}
        nothing = dict.fromkeys(good - files.keys())
        if not files:
            self._loop.post(self._arrived, nothing, {})
            return
        work = partial(_load, files, nothing, partial(self._loop.post, self._arrived))
        try:
            threading.Thread(target=work, name=f"supervise-values-{self._name}", daemon=True).start()
        except RuntimeError:  # there is no thread, as the interpreter is exiting or a limit is reached
            work()

    def abandon(self) -> None:
        """Abandon a pending load whose user code exceeds the deadline."""
        self._arrived({}, dict.fromkeys(range(self._nprocs), "its return value was not unpickled in time"))

    def _arrived(self, values: dict[int, Any], problems: dict[int, str]) -> None:
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            self.by_rank = values
            loaded(steps.ValuesLoaded({} if self._partial else problems))


def _load(
    files: Mapping[int, OutcomeFile],
    known: Mapping[int, Any],
    tell: Callable[[dict[int, Any], dict[int, str]], object],
) -> None:
    """Unpickle the values in `files`.

    Call `tell` with rank to value, which includes `known`, and with rank to problem.
    """
    values = dict(known)
    problems: dict[int, str] = {}
    for rank, file in sorted(files.items()):
        try:
            values[rank] = file.load()
        except BaseException as error:
            problems[rank] = not_unpickled(error)
    tell(values, problems)


# The runner


_SETTLED_S = 0.02
"""Delay from the first launch to the first reading of the OOM counters. A small gang does not wait for the reading."""
_SUSPENDED_S = 30.0
"""Delay of the first check for suspended ranks; each later delay doubles.

A suspension makes no descriptor readable. It only raises SIGCHLD, whose handler belongs to the application.
"""
_LEAST_SWEEP_S = 1.0
"""Minimum time from SIGTERM to SIGKILL for escaped processes, also if the process groups have used up the grace."""
_TIDY_S = 0.001
"""Delay from an answer to the exit of the Workers. Their work would compete with the caller for the GIL."""


class Listener(Protocol):
    """An internal observer of a gang, in addition to its subscribers. Called on the gang's loop."""

    def exited(self, end: say.WorkerExited, value: OutcomeFile | None) -> None:
        """Note the end of a rank. `value` is the file with the return value or the exception of its function."""

    def left(self, crash: SupervisorCrashed | None) -> None:
        """Note that the Supervisor has left the registry. `crash` is set if a handler of the gang failed."""


class GangRunner:
    """Runner of one gang: it passes events to the core, and carries out the core's actions. Used on the gang's loop.

    It also ends everything that a Supervisor has begun: after the gang has ended, or after a handler has crashed.
    """

    def __init__(
        self,
        attempt: Attempt,
        supervisor: LoopActor,
        replies: PendingReplies[RunProcsResult],
        subscribers: Subscribers,
        listener: Listener | None = None,
    ) -> None:
        """Prepare a runner. `start` starts the gang.

        Args:
            attempt: The first attempt.
            supervisor: The actor of the gang. It owns the runner, which removes it from the registry in the end.
            replies: The pending replies of the actor.
            subscribers: The actors that receive lifecycle messages.
            listener: An internal observer, or None.
        """
        spec = attempt.spec
        self._supervisor: LoopActor | None = supervisor
        """The actor of the gang. None once it is about to leave, so that reference counting frees both."""
        self._owner = supervisor.actor_ref
        self._loop = loop = supervisor.loop
        self._listener = listener
        self.replies = replies
        self.subscribers = subscribers
        self._halted = False
        """Whether the core decides nothing more."""
        self.attempt = attempt
        self.crash: SupervisorCrashed | None = None
        """Set when a handler has failed. After that, the runner only ends everything."""
        self._member_asked = False
        """Whether other code requested the stop of a Worker or a Tail."""
        self.gang = Gang(
            nprocs=attempt.nprocs,
            grace_s=spec.grace_s,
            window=attempt.window,
            stop_on_failure=spec.stop_on_failure,
            policy=spec.restart_policy,
            strategy=spec.strategy,
            success=spec.success_exit_codes,
            notifies=spec.ranks_where(lambda part: part.ready),
            stop_signal=spec.stop_signal,
            attempt=attempt.number,
            **spec.in_core(),
        )
        """The state of the gang. Only the core changes it; other code reads it."""
        self.events = EventEmitter(attempt)
        self._timers: dict[tuple[int, str, int | None], Timer] = {}
        """Number of a batch (0 for the gang), name, and number of a role (None for all) to the last timer."""
        self._sweeps: dict[tuple[int, Containment], shutdown.Sweep] = {}
        """Number of a batch (0 for the gang) and containment to the running sweep."""
        self._health: RankHealth | None = None
        if spec.checks_health:
            from supervise._gang.health import RankHealth  # lazy: most gangs have neither sockets nor a watchdog

            self._health = RankHealth(self, loop)
        self._sockets = self._health.sockets if self._health is not None and spec.notifies else None
        """The notify sockets; None if the ranks have none."""
        self._stack_requests: StackRequests | None = None
        self._suspended: set[int] = set()
        """The ranks that were reported as suspended."""
        self._mixed = spec.ranks_where(lambda part: part.kill_mode == "mixed")
        self._groups_spared: dict[int, signal.Signals] = {}
        """Ranks of which only the own process has had the first signal, to this signal."""
        self._history = RestartHistory()
        self._requests = 0
        self._use(attempt)

    def _use(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.ranks = RankActors(attempt, self._loop, self._owner, self.events, self._sockets)
        self._values = ReturnValues(attempt.spec.name, attempt.nprocs, self._loop, self.ranks.slots)

    @property
    def _unmet(self) -> dict[int, list[str]]:
        return {} if self._health is None else self._health.unmet

    # Requests of the Supervisor

    def start(self) -> Reply[dict[int, int]]:
        """Start the gang; return the reply to the start, which is pending.

        Raises:
            SpecError: A limit is too low.
            OSError: A log file cannot be made. After either error, no rank and no Tail was started.
        """
        tails = self.ranks.assemble()
        self.events.begin(self.attempt)
        reply = self.replies.begin("start")
        if (timeout_s := self.attempt.spec.timeout_s) is not None:
            self._set_timer(steps.SetTimer(name="deadline", delay_s=timeout_s))
        self.step(tails)
        self.step(steps.StartAsked())
        return reply

    def close(self, death_sig: signal.Signals | None = None, timeout_s: float | None = None) -> None:
        """Request the end of the gang. If `timeout_s` is None, each role in turn gets its grace."""
        bound_s = self.gang.grace_s if timeout_s is None else timeout_s
        order: steps.StopOrder = "each" if timeout_s is None else "whole"
        sig = death_sig or self.gang.stop_signal
        if sig == signal.SIGKILL or shutdown.is_exiting():
            order = ""
        self.attempt.spec.close_inherited(stdin=False)  # so that a connection is refused once the ranks accept none
        self.step(steps.CloseAsked(death_sig=sig, timeout_s=bound_s, order=order))

    def close_for_member(self) -> None:
        """Request the end of the gang, because other code requested the stop of a Worker or a Tail."""
        self._member_asked = True
        self.close()

    def request(self, kind: steps.AskKind, ranks: frozenset[int]) -> Reply[Any]:
        """Request the restart or the termination of ranks; return the reply to the request, which is pending."""
        self._requests += 1
        reply = self.replies.begin_request(self._requests)
        self.step(steps.RanksAsked(kind, self._requests, ranks))
        return reply

    def reload(self, ranks: frozenset[int]) -> Reply[dict[int, bool]]:
        """Send its reload signal to each of these ranks that is ready; return the reply to the request."""
        gang, reply = self.gang, Reply[dict[int, bool]]()
        stays = gang.running - gang.unready if gang.phase in ("starting", "running") else frozenset[int]()
        ready = [rank for rank in sorted(ranks & stays) if rank not in gang.batch_of]
        signals = {rank: self.attempt.spec.of(rank).reload_signal for rank in ready}
        for sig in {sig for sig in signals.values() if sig is not None}:
            self.signal(frozenset(rank for rank in ready if signals[rank] is sig), sig, "user", group=False)
        found = {rank: sig is not None for rank, sig in signals.items()}
        if self._health is None:
            reply.set(found)
        else:
            self._health.reload(found, reply)
        return reply

    def stacks(self, ranks: frozenset[int]) -> Reply[dict[int, RankStacks]]:
        """Request the stacks of each of these ranks that runs; return the reply."""
        if self._stack_requests is None:
            from supervise._gang.stack_requests import StackRequests  # lazy: most gangs are never asked

            self._stack_requests = StackRequests(self, self._loop)
        return self._stack_requests.add(ranks)

    def notes(self, rank: int) -> RankNotes | None:
        """Return the reports of the present life of a rank; None if the ranks have no notify sockets."""
        return None if self._sockets is None else self._sockets.state(rank)

    def read_reports(self) -> None:
        """Read what ranks have reported meanwhile, such as during a suspension of this process."""
        if self._sockets is not None:
            self._sockets.read_waiting()

    def status(self) -> say.GangStatus:
        """Return the present state. Ask the kernel whether reported ranks are still suspended."""
        gang, spec, processes = self.gang, self.attempt.spec, self.ranks.slots.processes
        outcomes = self.ranks.slots.outcomes if spec.plain is None else {}
        self._suspended = {
            rank for rank in self._suspended if rank in processes and processes[rank].kernel_state() in ("T", "t")
        }
        return say.GangStatus(
            phase=gang.phase,
            pids=gang.pids,
            running=frozenset(gang.running | gang.starting),
            leftovers=frozenset(gang.leftovers),
            waiters=self.replies.waiting,
            attempt=gang.attempt,
            ranks={
                rank: rank_status(
                    gang, spec, rank, self.notes(rank), outcomes.get(rank), suspended=rank in self._suspended
                )
                for rank in range(gang.nprocs)
            },
        )

    # Reports of Workers and Tails

    def report(self, event: steps.Event) -> None:
        """Process a report of a Worker or a Tail."""
        if self._halted:
            return
        if not isinstance(event, say.WorkerExited):
            self.step(event)
            return
        if self._health is not None:
            notes = self._health.exited(event)
            event = replace(event, step=notes.step, status=notes.status)
        if self.attempt.spec.plain is not None:  # the gang does not use return values
            event = replace(event, has_value=False, complaint=None if event.exitcode == 0 else event.complaint)
        self.step(event)
        if (rank := event.local_rank) in self._groups_spared:
            spared = self._groups_spared.pop(rank)
            if event.group_left:  # the process has ended, but its descendants have not
                self.signal(frozenset({rank}), spared, self.gang.stop.reason or "")

    def suspended(self, message: say.WorkerStopped | SuspendedAsAsked) -> None:
        """Note that a rank is suspended; tell it, unless the caller has asked for it.

        If the rank waits for the terminal, the event comes after the Tails have shown the output of the rank. The
        listener may then give it the terminal, to which the rank writes directly.
        """
        if self._halted:
            return
        self._suspended.add(message.local_rank)
        if isinstance(message, SuspendedAsAsked):
            return
        if message.sig in (signal.SIGTTIN, signal.SIGTTOU):
            self.ranks.show_written(message.local_rank, partial(self._tell_of_terminal, message))
        else:
            self._tell_suspended(message)

    def _tell_of_terminal(self, message: say.WorkerStopped) -> None:
        """Tell that a rank waits for the terminal, unless its process has ended meanwhile."""
        process = self.ranks.slots.processes.get(message.local_rank)
        if not self._halted and process is not None and process.pid == message.pid:
            self._tell_suspended(message)

    def _tell_suspended(self, message: say.WorkerStopped) -> None:
        self.events.emit(message)
        self.subscribers.tell(message)

    def excuse(self, ranks: frozenset[int]) -> None:
        """Note that the caller is about to stop these ranks because another rank has failed."""
        self._report_dead()  # first, because a rank that is already dead was not stopped
        self.step(steps.PeersStopped(ranks=ranks, at_ns=time.monotonic_ns()))

    # From events to actions

    def step(self, event: steps.Event) -> None:
        """Let the core decide on an event. An exception is a crash, because it leaves the state inconsistent."""
        if self._halted:
            return
        try:
            decision = decide(self.gang, event)
            for fact in decision.facts:
                self._tell(fact)
            for action in decision.actions:
                self._do(action)
        except BaseException as error:
            self.after_crash(error)

    def _tell(self, fact: steps.Fact) -> None:
        self.events.emit(fact)
        if isinstance(fact, steps.RankExited):
            self.subscribers.tell(fact.end)
            if self._listener is not None:
                self._listener.exited(fact.end, self.ranks.slots.outcomes.get(fact.end.local_rank))
        elif isinstance(fact, say.WorkerStarted):
            self.subscribers.tell(fact)
            if self._health is not None:
                self._health.started(fact)
        elif isinstance(fact, steps.RankReady):
            rank, pid = fact.local_rank, self.gang.ranks[fact.local_rank].pid or 0
            self.subscribers.tell(say.WorkerReady(local_rank=rank, pid=pid, ready_ns=fact.at_ns, attempt=fact.attempt))
        elif isinstance(fact, steps.LifeReplaced):
            self._history.replaced([fact.local_rank])
            self.subscribers.forget(fact.local_rank)

    def _do(self, action: steps.Action) -> None:  # noqa: C901, PLR0912 - one case an action
        match action:
            case steps.LaunchRank():
                if not action.local_rank:  # before the others: a large gang starts slowly, and a rank may die meanwhile
                    self._call_later("oom", _SETTLED_S, cgroup.baseline)
                self.ranks.launch(action.local_rank)
            case steps.AnswerStart():
                self._answer_start()
            case steps.ReapAll():
                self._report_dead()
                self._loop.post(self._all_reaped)  # after the reports
            case steps.SendSignal():
                self.signal(action.ranks, action.sig, self.gang.stop.reason or "")
            case steps.ReleaseRanks():
                self.ranks.tell(action.ranks, Release())
                if self._health is not None:
                    self._health.released(action.ranks)
            case steps.SetTimer():
                self._set_timer(action)
            case steps.ReportUnkillable():
                self.ranks.tell(action.ranks, ReportStuck())
            case steps.DrainTails():
                self.ranks.drain(self.gang.ends, self.gang.leftovers)
            case steps.LoadValues():
                self._values.load(self.gang, self.step)
            case steps.AbandonTails():
                self.ranks.abandon_tails()
                self._values.abandon()
            case steps.SweepUp():
                self._sweep(action)
            case steps.HurrySweep():
                for (key, _), sweep in self._sweeps.items():
                    if not key:
                        sweep.hurry(action.timeout_s)
            case steps.AnnounceRestarts():
                self._announce_restarts(action)
            case steps.RelaunchRank():
                self._relaunch(action)
            case steps.AnswerAsk():
                pids = self.gang.pids  # these lack ranks whose last life could not be launched
                self.replies.answer_request(action.key, {rank: pids[rank] for rank in action.ranks if rank in pids})
            case steps.FailAsks():
                self.replies.fail_requests(action.keys, ask_error(self.gang, action, self._unmet, self.attempt))
            case steps.AnnounceRestart():
                self._announce_restart(action)
            case steps.Assemble():
                self._assemble()
            case steps.Publish():
                self._publish()
            case steps.AnswerClose():
                self._answer_close()

    def _answer_start(self) -> None:
        started = say.GangStarted(pids=self.gang.pids)
        self.events.emit(started)
        self.replies.started(dict(started.pids))
        self.subscribers.tell(started)
        self._call_later("suspended", _SUSPENDED_S, partial(self._check_for_suspended, 2 * _SUSPENDED_S))

    def _report_dead(self) -> None:
        """Let the Workers post the exits of all dead ranks."""
        self.ranks.slots.ring_if_dead()
        self._loop.poll()

    def _all_reaped(self) -> None:
        try:
            recorded = self.ranks.recorded(self.gang.running)
        except BaseException as error:
            self.after_crash(error)
        else:
            self.step(steps.AllReaped(recorded=recorded, taken_ns=time.monotonic_ns()))

    def signal(self, ranks: frozenset[int], sig: signal.Signals, reason: str, *, group: bool = True) -> None:
        """Signal the groups of these ranks, or only their own processes.

        In a stop, `kill_mode` decides for ranks that run. SIGCONT follows to the groups, except after SIGKILL and after
        a signal of the user.
        """
        stops, alone = reason != "user", frozenset[int]() if group else ranks
        if stops and sig == signal.SIGKILL:
            for rank in self._groups_spared.keys() & ranks:
                del self._groups_spared[rank]
        elif stops:
            alone = ranks & self._mixed & self.gang.running
            self._groups_spared.update(dict.fromkeys(alone, sig))
        since_s = time.monotonic()
        if sig == signal.SIGCONT and self._health is not None:
            self._health.continuing(ranks)
        for some, whole in ((ranks - alone, True), (alone, False)):
            self.ranks.tell(some, Deliver(sig, whole, stops and sig != signal.SIGKILL, since_s))
        if self.events.listens("info"):
            for rank in sorted(ranks):
                why = reason or batches.reason_of_signal(self.gang, rank)
                target = "process" if rank in alone else "group"
                level = int(stops and sig == signal.SIGKILL)
                self.events.signaled(rank, self.gang.ranks[rank].pid, sig, why, escalation=level, target=target)

    # Timers

    def _set_timer(self, action: steps.SetTimer) -> None:
        """Set a timer as the core requests."""
        earlier = self._timers.get((action.key, action.name, action.role), NO_TIMER)
        if action.only_sooner and earlier.pending:
            delay_s = min(action.delay_s, earlier.due_s - time.monotonic())
        else:
            delay_s = action.delay_s
        expired = steps.TimerExpired(name=action.name, key=action.key, role=action.role)
        self._call_later(action.name, delay_s, partial(self._expired, expired), action.key, action.role)

    def _expired(self, expired: steps.TimerExpired) -> None:
        if expired.key:  # no other timer will have the key of this batch
            self._timers.pop((expired.key, expired.name, expired.role), None)
        self.step(expired)

    def _call_later(
        self, name: str, delay_s: float, act: Callable[[], object], key: int = 0, role: int | None = None
    ) -> None:
        """Set a timer that replaces an earlier one of the same key, name and role."""
        self._timers.get((key, name, role), NO_TIMER).cancel()
        self._timers[key, name, role] = self._loop.call_later(delay_s, act)

    def _cancel_timers(self, *names: str) -> None:
        """Cancel and forget timers of the gang."""
        for each in [each for each in self._timers if not each[0] and each[1] in names]:
            self._timers.pop(each).cancel()

    # Suspended ranks

    def look_for_suspended(self, then: Callable[[], object]) -> None:
        """Check for suspended ranks now, and call `then` when the Workers have reported them."""
        self._look_for_suspended()
        # The Workers' turns are queued now. Their reports are queued after this callback, and the next one after them
        self._loop.post(self._loop.post, then)

    def _look_for_suspended(self) -> None:
        if not self._halted:
            self.ranks.tell(self.gang.running, LookForStop())

    def _check_for_suspended(self, next_s: float) -> None:
        """Check now, then after this delay, then after twice the delay, and so on."""
        self._look_for_suspended()
        self._call_later("suspended", next_s, partial(self._check_for_suspended, 2 * next_s))

    # Sweeps

    def _sweep(self, action: steps.SweepUp) -> None:
        """Sweep the gang, or a batch: one sweep for each containment of the ranks.

        A sweep that only reports is skipped if events have no listener.
        """
        timeout_s, spec = action.timeout_s, self.attempt.spec
        if not action.key:
            self._cancel_sweeps()
            dues_s = [timer.due_s for (key, name, _), timer in self._timers.items() if not key and name == "grace"]
            if dues_s:  # the groups share this grace, so use what is left of it, or the minimum
                timeout_s = min(timeout_s, max(max(dues_s) - time.monotonic(), _LEAST_SWEEP_S))
        skip = [found.pid for found in self.gang.unkillable.values()]
        begun = False
        for kind, contained in self.attempt.contained.items():
            ranks = action.ranks and frozenset(rank for rank in action.ranks if spec.of(rank).containment == kind)
            if ranks != frozenset() and (contained.ends or self.events.listens()):
                done = partial(self._swept, action.key, kind)
                self._sweeps[action.key, kind] = sweep = shutdown.Sweep(
                    self._loop, contained, end=contained.ends, timeout_s=timeout_s, skip=skip, ranks=ranks, done=done
                )
                sweep.begin()  # `done` is called in a later turn of the loop, when all sweeps have begun
                begun = True
        if not begun:
            self._loop.post(self.step, steps.Swept(key=action.key))

    def _swept(self, key: int, kind: Containment, found: steps.Swept) -> None:
        del self._sweeps[key, kind]
        last = all(other != key for other, _ in self._sweeps)
        if last and not key:
            self.attempt.remove_groups()
        self.step(found._replace(key=key, last=last))

    def _cancel_sweeps(self) -> None:
        while self._sweeps:
            self._sweeps.popitem()[1].cancel()

    # Restarts

    def _announce_restarts(self, action: steps.AnnounceRestarts) -> None:
        """Tell subscribers about the restart of these ranks, once for each life, and set the timer of the restart."""
        delay_s, restarts = with_jitter(action.delay_s), len(self.gang.backoff.counted_ns)
        for local_rank in action.ranks:
            rank = self.gang.ranks[local_rank]
            if rank.end is None:
                continue
            end = rank_end(rank.end, role_of(self.gang, local_rank), rank.started_ns, self.attempt)
            counted = rank.caused == "counted"
            # If the restart is known, the failure of another rank has only delayed it
            if self._history.announce(local_rank, rank.attempt, end, counted=counted):
                attempt = self.gang.next_life(local_rank)
                message = say.WorkerRestarting(
                    local_rank=local_rank, attempt=attempt, delay_s=delay_s, end=end, restarts=restarts
                )
                self.events.emit(message)
                self.subscribers.tell(message)
        self._set_timer(steps.SetTimer(name="backoff", delay_s=delay_s, key=action.number))

    def _relaunch(self, action: steps.RelaunchRank) -> None:
        """Make the next life of a rank, and launch it. If the life cannot be made, report a failed launch."""
        try:
            self.ranks.renew(action.local_rank, action.attempt)
        except (OSError, SuperviseError) as error:
            self._loop.post(self.step, steps.WorkerFailedToStart(action.local_rank, error, time.monotonic_ns()))
        else:
            self.ranks.launch(action.local_rank)

    def _announce_restart(self, action: steps.AnnounceRestart) -> None:
        """Announce the restart of all ranks and set its timer. No process of the failed attempt remains."""
        assert self.gang.policy is not None  # noqa: S101 - the core announces restarts only with a policy
        delay_s = with_jitter(action.delay_s)
        result = self.result(action.verdict)
        message = say.GangRestarting(
            attempt=self.gang.next_attempt,
            max_restarts=self.gang.policy.max_restarts,
            delay_s=delay_s,
            result=result,
            left_out=frozenset(range(self.gang.nprocs)) - self.gang.restarting,
            restarts=len(self.gang.backoff.counted_ns),
        )
        self.events.emit(message)
        self.subscribers.tell(message)
        for rank, end in result.ends.items():
            counted = self.gang.backoff.counted and end.role == "root_cause"
            self._history.announce(rank, self.gang.ranks[rank].attempt, end, counted=counted)
        self._set_timer(steps.SetTimer(name="backoff", delay_s=delay_s))

    def _assemble(self) -> None:
        """Make the files and actors of the next attempt."""
        self._cancel_timers("grace", "kill", "drain")
        self._history.replaced([rank for rank in range(self.gang.nprocs) if not self.gang.is_left_out(rank)])
        self._history.announced.clear()
        self.ranks.dismiss()
        made: RankActors | None = None
        try:
            attempt = make_attempt(self.attempt.spec, self.gang.attempt, self.gang.left_out, self.attempt.dest)
            self.subscribers.begin_anew()
            self.events.begin(attempt)
            self._use(attempt)
            made = self.ranks
            self.step(made.assemble())
        except (OSError, SuperviseError) as error:
            if made is not None:  # so that the end of a started Tail is not taken for that of a later Tail
                self.step(steps.TailsStarted(tails=made.abandoned_tails))
            self._loop.post(self.step, steps.NotAssembled(error, time.monotonic_ns()))
        else:
            self._loop.post(self.step, steps.Assembled())

    # The result

    def result(self, verdict: steps.Verdict | None = None) -> RunProcsResult:
        """Return the result of the present state, with the present verdict or an earlier one."""
        result = build_result(self.gang, verdict or judge(self.gang), self.attempt, self._values.by_rank)
        result.restarts, result.restarts_total = list(self._history.kept), self._history.total
        return result

    def _publish(self) -> None:
        self._cancel_timers("drain", "deadline", "backoff", "oom", "suspended")
        if self._health is not None:
            self._health.end()
        self.ranks.slots.close_outcomes()
        self.attempt.spec.close_inherited()
        replies = self.replies
        if replies.error is None and self.gang.start_failure is not None:
            replies.error = start_error(self.gang, self.gang.start_failure, self.notes, self._unmet, self.attempt)
        if replies.error is None:
            replies.result = self.result()
        message = say.GangFinished(result=replies.result, error=replies.error)
        self.events.finish(message)
        why = "exceeded its timeout" if self.gang.stop.reason == "timeout" else "was closed"
        rank = self.gang.first_unready
        role = self.attempt.spec.role_title(rank)
        what, until = ("was not ready", "was ready") if self.gang.ranks[rank].pid else ("did not start", "ran")
        replies.publish(SpawnError(f"the gang {why} before every rank {until}", local_rank=rank, what=what, role=role))
        self.subscribers.finish(message)
        if self.attempt.spec.plain is not None:
            self._owner.stop(block=False)  # the stop also ends the processes that the ranks have left in their groups

    # The end of the Supervisor

    def _answer_close(self) -> None:
        """Answer every close, because the gang has no process left that can be killed."""
        stuck = self.gang.unkillable
        error = None
        if stuck:
            pids = {rank: found.pid for rank, found in stuck.items()}
            error = UnkillableError(pids, {rank: found.state for rank, found in stuck.items()})
        self.replies.closed(error)
        if self.replies.stopping:
            self.leave()
        elif self._member_asked or not stuck:  # otherwise the Workers stay, and try to reap again
            self._call_later("tidy", _TIDY_S, partial(self._quietly, self.ranks.dismiss))

    def leave(self) -> None:
        """Remove the gang's actors from the registry, end the loop, and answer every stop. Idempotent."""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            self._quietly(self.ranks.dismiss)
            self._loop.post(self._finish, supervisor)

    def _finish(self, supervisor: LoopActor) -> None:
        self._halt()
        self._quietly(self.attempt.spec.close_inherited)
        for timer in self._timers.values():
            timer.cancel()
        if self._health is not None:
            self._quietly(self._health.end)
        if self._listener is not None:
            self._quietly(partial(self._listener.left, self.crash))
        if self._stack_requests is not None:
            self._quietly(partial(self._stack_requests.end, self.crash))
            self._stack_requests = None
        self._quietly(supervisor.leave)
        self._quietly(partial(self.replies.closed, self.crash))  # for requests that came after the last answer
        self.replies.end_loop()

    def _halt(self) -> None:
        """Stop all decisions, because the Supervisor has crashed or leaves."""
        self._halted = True
        self._cancel_sweeps()

    # After a crash

    def after_crash(self, error: BaseException, who: str = "the supervisor") -> None:
        """Kill and reap every rank, then answer every ask. `error` was raised by a handler of `who`."""
        if self.crash is None:
            self._kill_all(f"a handler of {who} raised {repr_of(error)}", error)

    def without_selector(self, error: BaseException) -> None:
        """Do the same after a failure of the loop's selector. After a second failure, the loop cannot wait any more."""
        if self.crash is None:
            self._kill_all(f"the supervisor's selector failed: {repr_of(error)}", error)
        else:
            self._reaped()

    def _kill_all(self, why: str, error: BaseException) -> None:
        self.crash = SupervisorCrashed(f"{self.attempt.spec.name}: {why}; every worker was killed")
        self.crash.__cause__ = error
        self.attempt.line.cut()  # this kills every rank, including one that a fork server forks later
        self._quietly(self._halt)
        shutdown.CrashShutdown(self._loop, self.ranks.slots, self.attempt.contained.values(), self._reaped).begin()

    def _reaped(self) -> None:
        """Answer every ask. If one step fails, do the next step nevertheless."""
        crash = self.crash or SupervisorCrashed("the supervisor crashed")
        message = say.GangFinished(result=None, error=crash)
        if not self.replies.over:
            self.replies.error = crash
            self._quietly(partial(self.events.finish, message))
        self._quietly(self.ranks.abandon_tails)
        self._quietly(partial(self.replies.publish, crash))
        self._quietly(partial(self.replies.closed, crash))
        self._quietly(partial(self.subscribers.finish, message))
        self.leave()

    def _quietly(self, act: Callable[[], object]) -> None:
        try:
            act()
        except BaseException:
            with contextlib.suppress(BaseException):  # because the application's logging handler may raise, too
                log.exception("%s: error during the shutdown", self.attempt.spec.name)
