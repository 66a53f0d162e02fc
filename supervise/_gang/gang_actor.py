"""What every Supervisor does: run the core's decisions for one gang that is planned."""

from __future__ import annotations

import signal
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pykka

from supervise import messages as say
from supervise._core import steps
from supervise._core.decide import decide
from supervise._core.model import Gang
from supervise._core.verdict import judge
from supervise._gang import shutdown_at_exit
from supervise._gang.conclusion import ConcludingActor
from supervise._gang.describe import Reporter
from supervise._gang.ranks import RankActors
from supervise._gang.replies import PendingReplies
from supervise._gang.subscribers import Subscribers
from supervise._gang.suspend_poll import SuspendPoll
from supervise._runtime.actor import Inbox
from supervise._runtime.loop import Loop, Timer
from supervise._seconds import check_seconds
from supervise.errors import SpecError

if TYPE_CHECKING:
    from supervise._gang.attempt import Attempt
    from supervise._runtime.future import Reply
    from supervise.result import RunProcsResult


_REPORTS: tuple[type, ...] = (say.WorkerStarted, say.WorkerExited, say.WorkerFailedToStart, say.WorkerUnkillable)
_REPORTS += (say.GroupEmptied, say.TailEnded)
"""What Workers and Tails report, for the core."""
_SETTLED_S = 0.02
"""How long after the start the kernel's counters are first read: the launch is not to wait for it."""


class GangActor(ConcludingActor):
    """Runs one gang, from a plan that is checked and pickled already."""

    def __init__(self, plan: Attempt, *, own_thread: bool = True) -> None:
        """Take over `plan`; `Start` launches it.

        Args:
            plan: The first attempt. It belongs to the actor from now on.
            own_thread: Whether to start a thread for the gang; otherwise the starter becomes it, by `run_gang`.
        """
        spec = plan.spec
        super().__init__(Loop(f"supervise-{spec.name}", lost=self._loop_lost, own_thread=own_thread))
        self._plan = plan
        self._gang = Gang(
            nprocs=plan.nprocs,
            grace_s=spec.grace_s,
            window=plan.window,
            stop_on_failure=spec.stop_on_failure,
            policy=spec.restart_policy,
        )
        self._report = Reporter(plan, spec.event_sink)
        self._ranks = RankActors(plan, self.loop, self.actor_ref, self._report)
        self._replies = PendingReplies(self.loop)
        self._subscribers = Subscribers()
        self._timers: dict[tuple[int | None, str], Timer] = {}
        self._suspend_poll = SuspendPoll(self.loop, self._look_for_stops)
        self._values: dict[int, Any] = {}

    def _start_actor_loop(self) -> None:
        try:
            self.loop.start()
        except BaseException:  # no thread to be had: nobody would ever answer
            self._abandon()
            raise
        try:
            shutdown_at_exit.remember(self.actor_ref, self._gang.grace_s)
            super()._start_actor_loop()
        except BaseException:  # a signal's handler has raised: nobody would ever ask
            self.loop.abandon()
            self._abandon()
            raise

    def _abandon(self) -> None:
        shutdown_at_exit.forget(self.actor_ref)
        self._unbind()
        pykka.ActorRegistry.unregister(self.actor_ref)
        self._plan.close()

    # What can be asked

    def launch(self) -> Reply[dict[int, int]]:
        """Launch every rank; see `Start`. A second time is an error."""
        if self._crash is not None:
            raise self._crash
        if self._gang.phase != "new":
            msg = (
                f"{self._plan.spec.name}: the gang was started already (it is {self._gang.phase}); a gang has one life"
            )
            raise SpecError(msg)
        started = self._ranks.assemble()
        self._report.starting()
        reply = self._replies.begin_start()
        if (timeout_s := self._plan.spec.timeout_s) is not None:
            self._set_timer(steps.SetTimer(name="deadline", delay_s=timeout_s))
        self._step(started)
        self._step(steps.StartAsked())
        return reply

    def wait(self, timeout: float | None = None) -> Reply[RunProcsResult | None]:
        """Answer with the result when there is one, with None after `timeout` seconds; see `Wait`.

        Raises:
            SpecError: `timeout` is not a number of seconds.
        """
        if timeout is not None:
            check_seconds("timeout", timeout)
        return self._replies.wait(timeout)

    def poll(self) -> RunProcsResult | None:
        """Answer with the result if there is one, now; see `Poll`."""
        if self._replies.error is not None:
            raise self._replies.error
        return self._replies.result

    def so_far(self, *, stop_on_failure: bool) -> RunProcsResult | None:
        """Answer with what has failed of a gang that runs on all the same; see `SoFar`."""
        self._step(steps.StopOnFailure(on=stop_on_failure))
        verdict = judge(self._gang)
        return self._result(verdict) if self._gang.phase == "running" and verdict.outcome == "failed" else None

    def pids(self) -> dict[int, int]:
        """Answer with ``{rank: pid}`` of the ranks that were started; see `Pids`."""
        return self._gang.pids

    def status(self) -> say.GangStatus:
        """Answer with what is the case now; see `Status`. Also has stopped ranks looked for."""
        self._suspend_poll.look()
        return say.GangStatus(
            phase=self._gang.phase,
            pids=self.pids(),
            running=frozenset(self._gang.running | self._gang.starting),
            leftovers=frozenset(self._gang.leftovers),
            waiters=self._replies.waiting,
            attempt=self._gang.attempt,
        )

    def close(
        self, death_sig: signal.Signals | None = None, timeout: float | None = None
    ) -> Reply[RunProcsResult | None]:
        """Stop the gang; see `Close`. Answered with the result when nothing of the gang is left.

        Raises:
            SpecError: `death_sig` is no signal, or `timeout` not a number of seconds; nothing was done.
            UnkillableError: In the reply: a process outlived SIGKILL; all others are reaped.
        """
        if timeout is not None:
            check_seconds("timeout", timeout)
        sig = signal.SIGTERM if death_sig is None else as_signal("death_sig", death_sig)
        reply = self._replies.close()
        self._step(steps.CloseAsked(death_sig=sig, timeout_s=self._gang.grace_s if timeout is None else timeout))
        return reply

    def send_signal(self, sig: signal.Signals, ranks: frozenset[int] | None = None) -> frozenset[int]:
        """Signal the groups of `ranks` (None: of all) that run; answer with those reached. See `Signal`.

        Raises:
            SpecError: A rank is not of this gang, or `sig` is no signal; nobody was signalled.
        """
        sig = as_signal("sig", sig)
        all_ranks = frozenset(range(self._plan.nprocs))
        try:
            wanted = all_ranks if ranks is None else frozenset(ranks)
        except TypeError:
            msg = f"ranks is {ranks!r}; give a set of local ranks, or None for all"
            raise SpecError(msg) from None
        if unknown := sorted(wanted - all_ranks, key=repr):
            msg = f"ranks {unknown} are not in this gang; its local ranks are 0 to {self._plan.nprocs - 1}"
            raise SpecError(msg)
        if self._crash is not None:  # no Worker may be left
            raise self._crash
        reached = wanted & self._gang.running
        self._deliver(reached, sig, reason="user", escalation=0)
        return reached

    def on_receive(self, message: Any) -> Any:  # noqa: C901, PLR0911 - one line a message
        """Answer what is asked; take in what Workers and Tails tell."""
        match message:
            case say.Start():
                return self.launch()
            case say.Wait():
                return self.wait(message.timeout)
            case say.Poll():
                return self.poll()
            case say.SoFar():
                return self.so_far(stop_on_failure=message.stop_on_failure)
            case say.Pids():
                return self.pids()
            case say.Status():
                return self.status()
            case say.Close():
                return self.close(message.death_sig, message.timeout)
            case say.Signal():
                return self.send_signal(message.sig, message.ranks)
            case say.Subscribe():
                _check_ref(message.ref)
                return self._subscribers.admit(message.ref)
            case say.Unsubscribe():
                _check_ref(message.ref)
                return self._subscribers.dismiss(message.ref)
            case _:
                return self._told(message)

    def _told(self, message: Any) -> None:
        if self._crash is not None:
            return
        match message:
            case say.WorkerStopped():
                self._report.stopped(message)
                self._subscribers.tell(message)
            case say.MemberStopRequested():
                self._members_leave = True
                self._step(steps.CloseAsked(death_sig=signal.SIGTERM, timeout_s=self._gang.grace_s))
            case say.ActorDown():
                self._perish(message.error, message.who)
            case _ if type(message) in _REPORTS:
                self._step(message)
            case _:
                raise _stray(message)

    # Decisions, and doing what they say

    def _step(self, event: steps.Event) -> None:
        """Decide, and do it. What fails here leaves the gang half decided, so it is never the asker's mistake."""
        if self._crash is not None or self.actor_stopped.is_set():
            return
        try:
            decision = decide(self._gang, event)
            for fact in decision.facts:
                self._tell(fact)
            for action in decision.actions:
                self._do(action)
        except BaseException as error:
            self.on_crash(error)

    def _tell(self, fact: steps.Fact) -> None:
        match fact:
            case say.WorkerStarted():
                self._report.started(fact)
                self._subscribers.tell(fact)
            case steps.RankExited():
                self._report.exited(fact)
                self._subscribers.tell(fact.end)
            case say.WorkerFailedToStart():
                self._report.start_failed(fact)
            case say.WorkerUnkillable():
                self._report.unkillable(fact)
            case say.TailEnded():
                self._report.tail_ended(fact)
            case say.Swept():
                self._report.leaked(fact, self.pids())
            case steps.GangStopping():
                self._report.stopping(fact)

    def _do(self, action: steps.Action) -> None:  # noqa: C901, PLR0912 - one line an action
        match action:
            case steps.LaunchRank():
                self._ranks.launch(action.local_rank)
            case steps.AnswerStart():
                self._report.gang_started()
                self._replies.started(self.pids())
                self._subscribers.tell(say.GangStarted(pids=self.pids()))
                self._suspend_poll.begin()
                self._timers[None, "oom"] = self.loop.call_later(_SETTLED_S, _count_memory_kills)
            case steps.ReapAll():
                self._ranks.slots.ring_if_dead()
                self.loop.poll()  # Workers tell who is dead by now; what we post comes behind that
                self.loop.post(self._guarded, self._take_census)
            case steps.SendSignal():
                reason = self._gang.stop.reason or "close"
                self._deliver(action.ranks, action.sig, reason=reason, escalation=action.escalation)
            case steps.SetTimer():
                self._set_timer(action)
            case steps.ReportUnkillable():
                self._ranks.report_stuck(action.ranks)
            case steps.DrainTails():
                self._ranks.drain(self._gang.ends)
            case steps.LoadValues():
                self._ranks.load_values(self._gang.ends, partial(self._guarded, self._loaded))
            case steps.AbandonTails():
                self._ranks.abandon_tails()
                self._ranks.abandon_values()
            case steps.SweepUp():
                self._sweep_up(action.timeout_s)
            case steps.HurrySweep():
                if self._sweep is not None:
                    self._sweep.hurry(action.timeout_s)
            case steps.AnnounceRestart():
                self._announce_restart(action.delay_s)
            case steps.Assemble():
                self._assemble()
            case steps.Publish():
                self._publish()
            case steps.AnswerClose():
                self._closed()

    def _take_census(self) -> None:
        recorded = self._ranks.recorded(self._gang.running)
        self._step(steps.AllReaped(recorded=recorded, taken_ns=time.monotonic_ns()))

    def _deliver(self, ranks: frozenset[int], sig: signal.Signals, *, reason: str, escalation: int) -> None:
        self._ranks.deliver(ranks, sig, wake=reason != "user" and sig != signal.SIGKILL)
        if not self._report.listens("info"):
            return
        for rank in sorted(ranks):
            self._report.signaled(rank, self._gang.ranks[rank].pid, sig, reason, escalation)

    def _set_timer(self, action: steps.SetTimer) -> None:
        key = action.local_rank, action.name
        earlier = self._timers.get(key)
        if earlier is not None and earlier.pending:
            if action.only_sooner and earlier.due_s <= time.monotonic() + action.delay_s:
                return
            earlier.cancel()
        expired = steps.TimerExpired(name=action.name, local_rank=action.local_rank)
        self._timers[key] = self.loop.call_later(action.delay_s, partial(self._guarded, self._step, expired))

    def _look_for_stops(self) -> None:
        if self._crash is None:
            self._ranks.look_for_stops(self._gang.running)


def run_gang(supervisor: pykka.ActorRef[Any]) -> None:
    """Run a gang that was started without a thread of its own, to its end. In the thread that has started it."""
    inbox = supervisor.actor_inbox
    assert isinstance(inbox, Inbox)  # noqa: S101 - made by us
    inbox.loop.run()


def _count_memory_kills() -> None:
    from supervise._process.exits import oom

    oom.baseline()


def as_signal(what: str, value: Any) -> signal.Signals:
    """Return a signal, which may be given by its number.

    Raises:
        SpecError: It is none; names the setting and the value.
    """
    try:
        return signal.Signals(value)
    except ValueError:
        msg = f"{what} is {value!r}; give a signal, such as signal.SIGTERM"
        raise SpecError(msg) from None


def _check_ref(value: Any) -> None:
    """Refuse what nothing can be told to."""
    if isinstance(value, type) or not (hasattr(value, "actor_urn") and callable(getattr(value, "tell", None))):
        msg = f"ref is {value!r}; give the ref of an actor, such as its self.actor_ref"
        raise SpecError(msg)


def _stray(message: object) -> SpecError:
    """Return what is wrong with a message that is none: to an asker it is an error, otherwise a warning."""
    if isinstance(message, type):
        return SpecError(f"the message is the class {message.__name__}; send an instance: {message.__name__}(...)")
    ours = "Start(), Wait(), Poll(), Pids(), Status(), Close(), Signal(...), Subscribe(...) or Unsubscribe(...)"
    return SpecError(f"{message!r} is no message for a Supervisor; send it {ours}")
