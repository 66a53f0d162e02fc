"""All or nothing, as a pure function of what is known and what happens."""

from __future__ import annotations

from signal import Signals
from typing import TYPE_CHECKING

from supervise import messages as said
from supervise._core import state as st
from supervise._core.verdict import failed

if TYPE_CHECKING:
    from supervise._core.state import Action, Gang

    Decision = tuple[Gang, list[Action]]

_MIN_DRAIN_S = 1.0
"""What the logs are given at the least when a close bounds them."""


def decide(gang: Gang, event: object) -> tuple[Gang, list[Action]]:
    """Advance `gang` by one event; also return what must be done now, in this order.

    Late and repeated events (a timer after the end, a second close) are harmless.
    """
    gang, actions = _advance(gang, event)
    gang, more = _settle(gang)
    return gang, actions + more


def _advance(gang: Gang, event: object) -> Decision:  # noqa: C901, PLR0911, PLR0912 - one line an event
    match event:
        case st.StartAsked():
            return _launch(gang._replace(phase="starting")) if gang.phase == "new" else (gang, [])
        case said.WorkerStarted():
            return _started(gang, event)
        case said.WorkerFailedToStart():
            return _failed_to_start(gang, event)
        case said.WorkerExited():
            return _exited(gang, event)
        case st.CloseAsked():
            return _close(gang, event)
        case st.StopOnFailure():
            return _stop_on_failure(gang, event)
        case st.AllReaped():
            return _signal(gang, event)
        case st.GraceExpired():
            return _kill(gang)
        case said.WorkerUnkillable():
            return _abandon(gang, event)
        case st.KillExpired():
            return _give_up(gang)
        case said.GroupEmptied():
            return gang._replace(leftovers=gang.leftovers - {event.local_rank}), []
        case said.TailEnded():
            return gang._replace(tails=max(0, gang.tails - 1)), []
        case st.DrainExpired():
            return gang, [st.AbandonTails()] if gang.draining and gang.tails else []
        case said.Swept():
            return gang._replace(sweep="done"), []
        case st.BackoffExpired():
            return _next_attempt(gang)
        case st.Assembled():
            return _launch(gang) if gang.phase == "starting" and not gang.launched else (gang, [])
        case st.NotAssembled():
            return (gang, []) if gang.phase == "finished" else _finish(gang)
        case _:
            msg = f"unknown event: {event!r}"
            raise TypeError(msg)


def _launch(gang: Gang) -> Decision:
    """Launch as many ranks as the window has room for."""
    room = min(gang.window - len(gang.starting), gang.nprocs - gang.launched)
    ranks = range(gang.launched, gang.launched + max(0, room))
    gang = gang._replace(launched=ranks.stop, starting=gang.starting.union(ranks))
    return gang, [st.LaunchRank(local_rank=rank) for rank in ranks]


def _started(gang: Gang, event: said.WorkerStarted) -> Decision:
    rank = frozenset({event.local_rank})
    gang = gang._replace(starting=gang.starting - rank, running=gang.running | rank)
    if gang.phase == "starting":
        return _launch(gang)
    if gang.killed:
        return gang, [
            st.SendSignal(ranks=rank, sig=Signals.SIGKILL, escalation=1),
            st.SetTimer(name="kill", delay_s=gang.kill_wait_s),
        ]
    if gang.signaled:
        return gang, [st.SendSignal(ranks=rank, sig=gang.death_sig, escalation=0)]
    return gang, []


def _failed_to_start(gang: Gang, event: said.WorkerFailedToStart) -> Decision:
    gang = gang._replace(starting=gang.starting - {event.local_rank})
    if gang.start_failure is None:
        gang = gang._replace(start_failure=event)
    return _stop(gang, "start_failed", Signals.SIGTERM, gang.grace_s)


def _exited(gang: Gang, event: said.WorkerExited) -> Decision:
    rank = frozenset({event.local_rank})
    if any(stuck.local_rank == event.local_rank for stuck in gang.unkillable):
        return gang, []  # it was given up
    gang = gang._replace(
        starting=gang.starting - rank,
        running=gang.running - rank,
        ends=(*gang.ends, event),
        leftovers=gang.leftovers | rank if event.group_left else gang.leftovers,
        spontaneous=gang.spontaneous | rank if by_itself(gang, event) else gang.spontaneous,
    )
    if failed(event) and gang.phase == "running" and gang.stop_on_failure:
        return _stop(gang, "peer_failed", Signals.SIGTERM, gang.grace_s)
    return gang, []


def _stop_on_failure(gang: Gang, event: st.StopOnFailure) -> Decision:
    gang = gang._replace(stop_on_failure=event.on)
    if event.on and gang.phase == "running" and any(map(failed, gang.ends)):
        return _stop(gang, "peer_failed", Signals.SIGTERM, gang.grace_s)
    return gang, []


def by_itself(gang: Gang, event: said.WorkerExited) -> bool:
    """Whether a rank that is told to have ended now had ended before our first signal."""
    if event.ended_ns >= gang.stopped_ns.get(event.local_rank, event.ended_ns + 1):
        return False
    return not gang.signaled or event.ended_ns < gang.census_ns


def _stop(gang: Gang, reason: st.Reason, sig: Signals, timeout_s: float) -> Decision:
    """Begin to stop, unless that has begun. Nobody is signalled before the dead are counted."""
    if gang.phase not in ("starting", "running"):
        return gang, []
    gang = gang._replace(phase="stopping", reason=reason, death_sig=sig, timeout_s=timeout_s)
    return gang, [st.ReapAll()]


def _close(gang: Gang, event: st.CloseAsked) -> Decision:
    gang = gang._replace(ended=True, bounded=True)
    gang, hurry = _hurry_sweep(gang, event)
    gang, actions = _close_in_phase(gang, event)
    return gang, [*hurry, *actions]


def _hurry_sweep(gang: Gang, event: st.CloseAsked) -> Decision:
    """What is outside of the groups has no more time than the last to close gives it."""
    timeout_s = 0.0 if event.death_sig == Signals.SIGKILL else event.timeout_s
    if gang.phase in ("new", "starting", "running") or event.reason != "close":
        return gang, []
    if gang.sweep == "due" and (gang.phase != "stopping" or timeout_s <= 0):
        return gang._replace(sweep_s=timeout_s), []
    if gang.sweep == "asked" and (gang.sweep_s is None or timeout_s < gang.sweep_s):
        return gang._replace(sweep_s=timeout_s), [st.HurrySweep(timeout_s=timeout_s)]
    return gang, []


def _close_in_phase(gang: Gang, event: st.CloseAsked) -> Decision:
    match gang.phase:
        case "new":
            return gang._replace(phase="stopping", reason=event.reason, signaled=True, sweep="done"), []
        case "starting" | "running":
            draining = gang.draining
            gang, actions = _stop(gang, event.reason, event.death_sig, event.timeout_s)
            if draining:
                actions.append(_bound_drain(event))
            return gang, actions
        case "restarting":
            gang, finish = _finish(gang)
            gang, actions = _end_leftovers(gang, event)
            return gang, finish + actions
        case _ if event.reason != "close":  # the gang's time is up, and it is ending anyway
            return gang, [_bound_drain(event)] if gang.draining and gang.phase == "stopping" else []
        case "stopping":
            return _hurry(gang, event)
        case "finished":
            return _end_leftovers(gang, event)


def _end_leftovers(gang: Gang, event: st.CloseAsked) -> Decision:
    """End what the ranks of a gang that has its result left behind."""
    if gang.signaled:
        return _hurry(gang, event) if gang.leftovers else (gang, [])
    gang = gang._replace(death_sig=event.death_sig, timeout_s=event.timeout_s)
    return _signal(gang, st.AllReaped(recorded={})) if gang.leftovers else (gang, [])


def _bound_drain(event: st.CloseAsked) -> st.SetTimer:
    return st.SetTimer(name="drain", delay_s=max(event.timeout_s, _MIN_DRAIN_S))


def _hurry(gang: Gang, event: st.CloseAsked) -> Decision:
    """A further close may shorten the grace, never lengthen it; SIGKILL means now."""
    actions: list[Action] = []
    if gang.draining:
        actions.append(_bound_drain(event))
    if not gang.signaled:  # the census is under way
        sooner = min(event.timeout_s, gang.timeout_s)
        sig = Signals.SIGKILL if event.death_sig == Signals.SIGKILL else gang.death_sig
        return gang._replace(timeout_s=sooner, death_sig=sig), actions
    if gang.killed:
        return gang, actions
    if event.death_sig == Signals.SIGKILL or event.timeout_s <= 0:
        gang, kill = _kill(gang)
        return gang, actions + kill
    if event.timeout_s < gang.timeout_s:
        actions.append(st.SetTimer(name="grace", delay_s=event.timeout_s))
        gang = gang._replace(timeout_s=event.timeout_s)
    return gang, actions


def _signal(gang: Gang, event: st.AllReaped) -> Decision:
    """Send the polite signal to everybody at once, with one deadline."""
    if gang.signaled:
        return gang, []
    gang = gang._replace(signaled=True, accused=event.recorded, census_ns=event.taken_ns)
    if gang.death_sig == Signals.SIGKILL or gang.timeout_s <= 0:
        return _kill(gang)
    targets = gang.running | gang.leftovers
    if not targets and not gang.starting:
        return gang, []
    return gang, [
        st.SendSignal(ranks=targets, sig=gang.death_sig, escalation=0),
        st.SetTimer(name="grace", delay_s=gang.timeout_s),
    ]


def _kill(gang: Gang) -> Decision:
    targets = gang.running | gang.leftovers
    if gang.killed or not gang.signaled:
        return gang, []
    gang = gang._replace(killed=True)
    if not targets and not gang.starting:
        return gang, []
    return gang, [
        st.SendSignal(ranks=targets, sig=Signals.SIGKILL, escalation=1),
        st.SetTimer(name="kill", delay_s=gang.kill_wait_s),
    ]


def _give_up(gang: Gang) -> Decision:
    """Have named what SIGKILL does not end; each is given up as it is named."""
    stuck = gang.running | gang.leftovers
    if not gang.killed or not stuck:
        return gang._replace(starting=frozenset()) if gang.killed else gang, []
    return gang._replace(starting=frozenset()), [st.ReportUnkillable(ranks=stuck)]


def _abandon(gang: Gang, event: said.WorkerUnkillable) -> Decision:
    """Go on without a rank that cannot be ended."""
    rank = frozenset({event.local_rank})
    gang = gang._replace(running=gang.running - rank, leftovers=gang.leftovers - rank)
    return gang._replace(unkillable=(*gang.unkillable, event)), []


def _settle(gang: Gang) -> Decision:
    """Move on when what a phase waits for has come."""
    actions: list[Action] = []
    if gang.phase == "starting" and gang.launched == gang.nprocs and not gang.starting:
        gang = gang._replace(phase="running")
        actions.append(st.AnswerStart())
        if gang.stop_on_failure and any(map(failed, gang.ends)):
            gang, stop = _stop(gang, "peer_failed", Signals.SIGTERM, gang.grace_s)
            actions += stop
    over = not gang.running and not gang.starting
    ready = gang.phase == "running" or (gang.phase == "stopping" and gang.signaled)
    if over and ready and not gang.draining:
        gang = gang._replace(draining=True)
        actions.append(st.DrainTails())
        if gang.bounded and gang.tails:
            actions.append(st.SetTimer(name="drain", delay_s=max(gang.timeout_s, _MIN_DRAIN_S)))
    if gang.draining and over and not gang.tails and gang.phase in ("running", "stopping"):
        gang, publish = (gang._replace(phase="restarting"), []) if may_restart(gang) else _finish(gang)
        actions += publish
    if gang.phase == "restarting" and not gang.leftovers:
        gang, more = _restart(gang)
        actions += more
    if gang.phase == "finished" and not gang.leftovers:
        if not gang.bounded or gang.sweep == "done":
            actions.append(st.AnswerClose())
        else:
            gang, more = _sweep(gang)
            actions += more
    return gang, actions


def _sweep(gang: Gang) -> Decision:
    """Ask once for what has left the groups of the ranks."""
    if gang.sweep != "due":
        return gang, []
    timeout_s = 0.0 if gang.death_sig == Signals.SIGKILL else gang.timeout_s
    if gang.sweep_s is not None:
        timeout_s = gang.sweep_s
    return gang._replace(sweep="asked", sweep_s=timeout_s), [st.SweepUp(timeout_s=timeout_s)]


def _finish(gang: Gang) -> Decision:
    return gang._replace(phase="finished"), [st.Publish()]


# Restarts


def may_restart(gang: Gang) -> bool:
    """Whether a gang whose attempt has ended is to have another: a rank failed, and nobody asked for the end."""
    if gang.policy is None or gang.ended or gang.reason != "peer_failed" or gang.unkillable:
        return False
    counting = gang.policy.counting(gang.restarts_ns, _end_ns(gang))
    return len(counting) < gang.policy.max_restarts


def _end_ns(gang: Gang) -> int:
    return max(end.ended_ns for end in gang.ends)


def _restart(gang: Gang) -> Decision:
    """Go on towards the next attempt, once the groups of this one are empty."""
    if gang.unkillable or gang.policy is None:  # what it holds, the next attempt would want
        return _finish(gang)
    if gang.sweep != "done":
        return _sweep(gang)
    if gang.announced:
        return gang, []
    counting = gang.policy.counting(gang.restarts_ns, _end_ns(gang))
    return gang._replace(announced=True), [st.AnnounceRestart(delay_s=gang.policy.delay_s(len(counting)))]


def _next_attempt(gang: Gang) -> Decision:
    """Begin anew, knowing nothing of this attempt but that it was."""
    if gang.phase != "restarting" or not gang.announced or gang.policy is None:
        return gang, []
    now_ns = _end_ns(gang)
    fresh = type(gang)(
        nprocs=gang.nprocs,
        grace_s=gang.grace_s,
        window=gang.window,
        kill_wait_s=gang.kill_wait_s,
        stop_on_failure=gang.stop_on_failure,
        phase="starting",
        policy=gang.policy,
        attempt=gang.attempt + 1,
        restarts_ns=(*gang.policy.counting(gang.restarts_ns, now_ns), now_ns),
    )
    return fresh, [st.Assemble()]
