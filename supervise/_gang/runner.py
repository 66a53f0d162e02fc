"""The runner of a gang. It passes events to the core, and carries out the actions of the core."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from supervise import messages as say
from supervise._core import facts, restart_sets, steps
from supervise._core.decide import decide
from supervise._core.model import Gang
from supervise._core.verdict import judge
from supervise._gang import shutdown_at_exit
from supervise._gang.describe import Signaled
from supervise._gang.event_emitter import EventEmitter
from supervise._gang.rank_restarts import RankRestarts
from supervise._gang.rank_states import RankStates
from supervise._gang.ranks import RankActors
from supervise._gang.results import build_result, start_error
from supervise._gang.return_values import ReturnValues
from supervise._gang.suspend_poll import SuspendPoll
from supervise._gang.sweeps import Sweeps
from supervise._gang.timers import Timers
from supervise.errors import SpawnError, SuperviseError

if TYPE_CHECKING:
    from collections.abc import Callable

    import pykka

    from supervise._gang.attempt import Attempt
    from supervise._gang.notify_sockets import RankNotes
    from supervise._gang.rank_health import RankHealth
    from supervise._gang.replies import PendingReplies
    from supervise._gang.subscribers import Subscribers
    from supervise._process.launch.return_value import OutcomeFile
    from supervise._runtime.future import Reply
    from supervise._runtime.loop import Loop
    from supervise.errors import SupervisorCrashed
    from supervise.result import RunProcsResult
    from supervise.stacks import RankStacks

_SETTLED_S = 0.02
"""Delay from the first launch to the first reading of the OOM counters. A small gang does not wait for the reading."""


class Listener(Protocol):
    """An internal observer of a gang, in addition to its subscribers. Called on the gang's loop."""

    def exited(self, end: say.WorkerExited, value: OutcomeFile | None) -> None:
        """Note the end of a rank. `value` is the file with the return value or the exception of its function."""

    def left(self, crash: SupervisorCrashed | None) -> None:
        """Note that the Supervisor has left the registry. `crash` is set if a handler of the gang failed."""


class GangRunner:
    """Runner of one gang. It passes events to the core, and carries out the core's actions. Used on the gang's loop."""

    def __init__(
        self,
        attempt: Attempt,
        loop: Loop,
        owner: pykka.ActorRef[Any],
        *,
        replies: PendingReplies,
        subscribers: Subscribers,
        listener: Listener | None,
        closed: Callable[[], object],
        crashed: Callable[[BaseException], object],
        stacks: Callable[[], Reply[dict[int, RankStacks]]],
    ) -> None:
        """Prepare a runner. `start` starts the gang.

        Args:
            attempt: The first attempt.
            loop: The gang's loop.
            owner: The Supervisor.
            replies: The pending replies of the Supervisor.
            subscribers: The actors that receive lifecycle messages.
            listener: An internal observer, or None.
            closed: Function that is called when the gang has no process left that can be killed.
            crashed: Function that is called with an error after which the state of the gang is inconsistent.
            stacks: Function that requests the stacks of all ranks.
        """
        spec = attempt.spec
        self._loop = loop
        self._owner = owner
        self._replies = replies
        self._subscribers = subscribers
        self._listener = listener
        self._closed = closed
        self._crashed = crashed
        self._halted = False
        self.attempt = attempt
        self.gang = Gang(
            nprocs=attempt.nprocs,
            grace_s=spec.grace_s,
            window=attempt.window,
            stop_on_failure=spec.stop_on_failure,
            policy=spec.restart_policy,
            strategy=spec.strategy,
            success=spec.success_exit_codes,
            notifies=spec.awaited,
            stop_signal=spec.stop_signal,
            **spec.in_core(),
        )
        """The state of the gang. Only the core changes it; other code reads it."""
        self.events = EventEmitter(attempt)
        self.timers = Timers(loop, partial(self._guarded, self.step))
        self.suspend_poll = SuspendPoll(loop, self._look_for_suspended)
        self._health: RankHealth | None = None
        if spec.notify_token or spec.watchdog is not None:
            from supervise._gang.rank_health import RankHealth  # lazy: most gangs have neither sockets nor a watchdog

            self._health = RankHealth(self, loop, subscribers, stacks)
        self.states = RankStates()
        self._sweeps = Sweeps(self.gang, loop, events=self.events, timers=self.timers, step=self.step)
        self._restarts = RankRestarts(
            self.gang, loop, events=self.events, subscribers=subscribers, timers=self.timers, step=self.step
        )
        self._requests = 0
        self._use(attempt)

    def _use(self, attempt: Attempt) -> None:
        self.attempt = attempt
        sockets = self._health.sockets if self._health is not None else None
        self.ranks = RankActors(attempt, self._loop, self._owner, self.events, sockets)
        self._sweeps.use(attempt)
        self._restarts.use(attempt, self.ranks)
        self._values = ReturnValues(attempt.spec.name, attempt.nprocs, self._loop, self.ranks.slots)

    def start(self) -> Reply[dict[int, int]]:
        """Start the gang; return the reply to the start, which is pending.

        Raises:
            SpecError: A limit is too low.
            OSError: A log file cannot be made. After either error, no rank and no Tail was started.
        """
        tails = self.ranks.assemble()
        self.events.begin(self.attempt)
        reply = self._replies.begin_start()
        if (timeout_s := self.attempt.spec.timeout_s) is not None:
            self.timers.set(steps.SetTimer(name="deadline", delay_s=timeout_s))
        self.step(tails)
        self.step(steps.StartAsked())
        return reply

    def close(self, death_sig: signal.Signals | None = None, timeout_s: float | None = None) -> None:
        """Request the end of the gang. If `timeout_s` is None, each role in turn gets the gang's grace."""
        bound_s = self.gang.grace_s if timeout_s is None else timeout_s
        order: steps.StopOrder = "each" if timeout_s is None else "whole"
        sig = death_sig or self.gang.stop_signal
        if sig == signal.SIGKILL or shutdown_at_exit.is_exiting():
            order = ""
        self.step(steps.CloseAsked(death_sig=sig, timeout_s=bound_s, order=order))

    def notes(self, rank: int) -> RankNotes | None:
        """Return the reports of the present life of a rank."""
        return self._health.sockets.state(rank) if self._health is not None else None

    def report(self, event: steps.Event) -> None:
        """Process a report of a Worker or a Tail."""
        if isinstance(event, say.WorkerExited):
            if self._health is not None:
                self._health.exited(event.local_rank)
            if self.attempt.spec.plain is not None:  # the gang does not use return values
                event = replace(event, has_value=False, complaint=None if event.exitcode == 0 else event.complaint)
        self.step(event)

    def request(self, kind: type[steps.RestartAsked | steps.TerminateAsked], ranks: frozenset[int]) -> Reply[Any]:
        """Request the restart or the termination of ranks; return the reply to the request, which is pending."""
        self._requests += 1
        reply = self._replies.begin_request(self._requests)
        self.step(kind(self._requests, ranks))
        return reply

    def excuse(self, ranks: frozenset[int]) -> None:
        """Note that the caller is about to stop these ranks because another rank has failed."""
        self._report_dead()  # first, because a rank that is already dead was not stopped
        self.step(steps.PeersStopped(ranks=ranks, at_ns=time.monotonic_ns()))

    def halt(self) -> None:
        """Stop all decisions, because the Supervisor has crashed or leaves."""
        self._halted = True
        self._sweeps.cancel()

    def release(self) -> None:
        """Break the reference cycle with the Supervisor, so that reference counting frees both."""
        self.halt()
        self.timers.end()
        self._sweeps.end()
        if self._health is not None:
            self._health.end()
        self._restarts.end()
        self.suspend_poll.end()
        self._closed = self._crashed = _nothing

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
            self._crashed(error)

    def _guarded(self, act: Callable[..., object], *args: Any) -> None:
        """Call `act` for a timer or a post. Report its exception as a crash, as the actor does for a message."""
        try:
            act(*args)
        except BaseException as error:
            self._crashed(error)

    def _post(self, event: steps.Event) -> None:
        self._loop.post(self._guarded, self.step, event)

    def _tell(self, fact: facts.Fact) -> None:
        self.events.emit(fact)
        if isinstance(fact, say.WorkerStarted):
            self._subscribers.tell(fact)
            if self._health is not None:
                self._health.started(fact)
        elif isinstance(fact, steps.RankReady):
            pid, number = self.gang.ranks[fact.local_rank].pid or 0, fact.local_rank
            self._subscribers.tell(
                say.WorkerReady(local_rank=number, pid=pid, ready_ns=fact.at_ns, attempt=fact.attempt)
            )
        elif isinstance(fact, facts.LifeReplaced):
            self._restarts.note(fact)
        elif isinstance(fact, facts.RankExited):
            self._subscribers.tell(fact.end)
            if self._listener is not None:
                self._listener.exited(fact.end, self.ranks.slots.outcomes.get(fact.end.local_rank))

    def _do(self, action: steps.Action) -> None:  # noqa: C901, PLR0912 - one case an action
        match action:
            case steps.LaunchRank():
                if not action.local_rank:  # before the others: a large gang starts slowly, and a rank may die meanwhile
                    self.timers.call_later("oom", _SETTLED_S, _count_memory_kills)
                self.ranks.launch(action.local_rank)
            case steps.AnswerStart():
                self._answer_start()
            case steps.ReapAll():
                self._report_dead()
                self._loop.post(self._guarded, self._all_reaped)  # after the reports
            case steps.SendSignal():
                self.signal(action.ranks, action.sig, self.gang.stop.reason or "", action.escalation)
            case steps.SetTimer():
                self.timers.set(action)
            case steps.ReportUnkillable():
                self.ranks.report_unkillable(action.ranks)
            case steps.DrainTails():
                self.ranks.drain(self.gang.ends)
            case steps.LoadValues():
                self._values.load(self.gang, partial(self._guarded, self._values_loaded))
            case steps.AbandonTails():
                self.ranks.abandon_tails()
                self._values.abandon()
            case steps.SweepUp():
                self._sweeps.begin(action)
            case steps.HurrySweep():
                self._sweeps.hurry(action.timeout_s)
            case steps.SweepRanks():
                self._sweeps.begin_set(action)
            case steps.AnnounceRestarts():
                self._restarts.announce(action)
            case steps.RelaunchRank():
                self._restarts.launch(action)
            case steps.AnswerAsk():
                pids = self.gang.pids  # these lack ranks whose last life could not be launched
                self._replies.answer_request(action.key, {rank: pids[rank] for rank in action.ranks if rank in pids})
            case steps.FailAsks():
                self._replies.fail_requests(action.keys, SuperviseError(f"{self.attempt.spec.name}: {action.why}"))
            case steps.AnnounceRestart():
                self._announce_restart(action)
            case steps.Assemble():
                self._assemble()
            case steps.Publish():
                self._publish()
            case steps.AnswerClose():
                self._closed()

    def _answer_start(self) -> None:
        started = say.GangStarted(pids=self.gang.pids)
        self.events.emit(started)
        self._replies.started(dict(started.pids))
        self._subscribers.tell(started)
        self.suspend_poll.begin()

    def _report_dead(self) -> None:
        """Let the Workers post the exits of all dead ranks."""
        self.ranks.slots.ring_if_dead()
        self._loop.poll()

    def _all_reaped(self) -> None:
        recorded = self.ranks.recorded(self.gang.running)
        self.step(steps.AllReaped(recorded=recorded, taken_ns=time.monotonic_ns()))

    def signal(self, ranks: frozenset[int], sig: signal.Signals, reason: str, escalation: int = 0) -> None:
        """Signal the groups of these ranks. SIGCONT follows, except after SIGKILL and after a signal of the user."""
        self.ranks.deliver(ranks, sig, wake=reason != "user" and sig != signal.SIGKILL)
        if self.events.listens("info"):
            for rank in sorted(ranks):
                why = reason or restart_sets.reason_of_signal(self.gang, rank)
                self.events.emit(Signaled(rank, self.gang.ranks[rank].pid, sig, why, escalation))

    def _look_for_suspended(self) -> None:
        if not self._halted:
            self.ranks.look_for_suspended(self.gang.running)

    def _values_loaded(self, complaints: dict[int, str]) -> None:
        self.step(steps.ValuesLoaded(complaints=complaints))

    # Restarts

    def _announce_restart(self, action: steps.AnnounceRestart) -> None:
        """Announce the restart and set its timer. No process of the failed attempt remains."""
        import random

        assert self.gang.policy is not None  # noqa: S101 - the core announces restarts only with a policy
        delay_s = action.delay_s * random.uniform(0.75, 1.25)  # noqa: S311 - jitter: machines do not restart in step
        result = self.result(action.verdict)
        message = say.GangRestarting(
            attempt=self.gang.next_attempt,
            max_restarts=self.gang.policy.max_restarts,
            delay_s=delay_s,
            result=result,
            left_out=frozenset(range(self.gang.nprocs)) - self.gang.restarting,
        )
        self.events.emit(message)
        self._subscribers.tell(message)
        self._restarts.prepare_all(result, counted=self.gang.counts)
        self.timers.set(steps.SetTimer(name="backoff", delay_s=delay_s))

    def _assemble(self) -> None:
        """Make the files and actors of the next attempt."""
        self.timers.cancel("grace", "kill", "drain")
        self._restarts.note_all(self.gang.left_out)
        self._values.dismiss()
        self.ranks.dismiss()
        made: RankActors | None = None
        try:
            attempt = self.attempt.again(self.gang.attempt, self.gang.left_out)
            self._subscribers.begin_anew()
            self.events.begin(attempt)
            self._use(attempt)
            made = self.ranks
            self.step(made.assemble())
        except (OSError, SuperviseError) as error:
            if made is not None:  # so that the end of a started Tail is not taken for that of a later Tail
                self.step(steps.TailsStarted(tails=made.abandoned_tails))
            self._post(steps.NotAssembled(error, time.monotonic_ns()))
        else:
            self._post(steps.Assembled())

    # The result

    def result(self, verdict: steps.Verdict | None = None) -> RunProcsResult:
        """Return the result of the present state, with the present verdict or an earlier one."""
        result = build_result(self.gang, verdict or judge(self.gang), self.attempt, self._values.by_rank)
        result.restarts, result.restarts_total = list(self._restarts.history), self._restarts.total
        return result

    def _publish(self) -> None:
        self.timers.cancel("drain", "deadline", "backoff", "oom")
        self.suspend_poll.end()
        if self._health is not None:
            self._health.end()
        self.ranks.slots.close_outcomes()
        replies = self._replies
        if replies.error is None and self.gang.start_failure is not None:
            replies.error = start_error(self.gang, self.gang.start_failure, self.notes, self.attempt.spec)
        if replies.error is None:
            replies.result = self.result()
        message = say.GangFinished(result=replies.result, error=replies.error)
        self.events.finish(message)
        replies.publish(SpawnError("the gang was closed before every rank ran", local_rank=self.gang.first_unready))
        self._subscribers.finish(message)
        if self.attempt.spec.plain is not None:
            self._owner.stop(block=False)  # the stop also ends the processes that the ranks have left in their groups


def _nothing(*_args: object) -> None:
    """Replace a callback that must not be called any more."""


def _count_memory_kills() -> None:
    from supervise._process.exits import oom

    oom.baseline()
