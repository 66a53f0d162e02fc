"""The stop of a gang: reap dead ranks, signal, send SIGKILL after the grace, give up on survivors, sweep."""

from __future__ import annotations

from signal import Signals
from typing import TYPE_CHECKING

from supervise._core import facts, role_close, steps

if TYPE_CHECKING:
    from supervise._core.facts import Decision
    from supervise._core.model import Gang

_MIN_DRAIN_S = 1.0
"""Lower limit on the deadline of the drain, for a close with any timeout."""


def stop(gang: Gang, reason: steps.Reason, decision: Decision) -> None:
    """Stop the gang because of a failure, with its full grace."""
    _stop(gang, steps.CloseAsked(death_sig=gang.stop_signal, timeout_s=gang.grace_s, reason=reason), decision)


def time_out(gang: Gang, decision: Decision) -> None:
    """End the gang because its timeout has expired."""
    close(gang, steps.CloseAsked(death_sig=gang.stop_signal, timeout_s=gang.grace_s, reason="timeout"), decision)


def _stop(gang: Gang, event: steps.CloseAsked, decision: Decision) -> None:
    """Begin the stop, once. Dead ranks are reaped before the first signal is sent."""
    if gang.phase in ("starting", "running"):
        gang.phase = "stopping"
        gang.stop.reason, gang.stop.death_sig, gang.stop.timeout_s = event.reason, event.death_sig, event.timeout_s
        gang.stop.order = event.order if gang.roles > 1 else ""
        gang.sets, gang.set_of, gang.queue = {}, {}, []
        if gang.policy is None or gang.strategy != "one_for_all" or event.reason != "peer_failed":
            fail_asks(gang, decision)
        decision.tell(facts.GangStopping(reason=event.reason))
        decision.do(steps.ReapAll())


def finish(gang: Gang, decision: Decision) -> None:
    """Enter the last phase and publish the result, or the error of the first start."""
    gang.phase = "finished"
    fail_asks(gang, decision)
    decision.do(steps.Publish())


def fail_asks(gang: Gang, decision: Decision) -> None:
    """Fail all pending requests, because the gang ends."""
    if gang.asks:
        decision.do(steps.FailAsks(keys=tuple(gang.asks), why="the gang ends"))
        gang.asks = {}


# Closing


def close(gang: Gang, event: steps.CloseAsked, decision: Decision) -> None:
    """End the gang in any phase. A further close may shorten the stop, but never lengthens it."""
    gang.end_asked = True
    fail_asks(gang, decision)
    _hurry_sweep(gang, event, decision)
    _close_in_phase(gang, event, decision)


def _hurry_sweep(gang: Gang, event: steps.CloseAsked, decision: Decision) -> None:
    """Let the sweep send SIGKILL as soon as the close with the shortest timeout requests."""
    timeout_s = 0.0 if event.death_sig == Signals.SIGKILL else event.timeout_s
    if gang.phase in ("new", "starting", "running") or event.reason != "close":
        return
    asked = gang.sweep.state == "asked" and (gang.sweep.timeout_s is None or timeout_s < gang.sweep.timeout_s)
    if asked:
        decision.do(steps.HurrySweep(timeout_s=timeout_s))
    if asked or (gang.sweep.state == "due" and (gang.phase != "stopping" or timeout_s <= 0)):
        gang.sweep.timeout_s = timeout_s


def _close_in_phase(gang: Gang, event: steps.CloseAsked, decision: Decision) -> None:
    match gang.phase:
        case "new":
            gang.phase, gang.sweep.state = "stopping", "done"
            gang.stop.reason, gang.stop.signaled = event.reason, True
        case "starting" | "running":
            _stop(gang, event, decision)
            if gang.drain.begun:
                decision.do(drain_timer(event.timeout_s))
        case "restarting":
            finish(gang, decision)
            _end_leftovers(gang, event, decision)
        case "stopping":
            if event.reason == "close" or gang.stop.order:
                _hurry(gang, event, decision)
            elif gang.drain.begun:  # the timeout expired during a stop, which had not bounded the drain
                decision.do(drain_timer(event.timeout_s))
        case "finished":
            if event.reason == "close":
                _end_leftovers(gang, event, decision)


def _end_leftovers(gang: Gang, event: steps.CloseAsked, decision: Decision) -> None:
    """End the leftovers of a gang whose result is published."""
    if gang.stop.signaled:
        if gang.leftovers:
            _hurry(gang, event, decision)
        return
    gang.stop.death_sig, gang.stop.timeout_s = event.death_sig, event.timeout_s
    if gang.leftovers:
        all_reaped(gang, steps.AllReaped(recorded={}), decision)


def drain_timer(timeout_s: float) -> steps.SetTimer:
    """Return the action that bounds the drain."""
    return steps.SetTimer(name="drain", delay_s=max(timeout_s, _MIN_DRAIN_S), only_sooner=True)


def _hurry(gang: Gang, event: steps.CloseAsked, decision: Decision) -> None:
    """Shorten the grace if a further close requests a shorter one. A close by SIGKILL ends the grace at once."""
    now = event.death_sig == Signals.SIGKILL
    if gang.drain.begun:
        decision.do(drain_timer(event.timeout_s))
    if gang.stop.order and not role_close.release(gang, event, decision):
        return
    if not gang.stop.signaled:  # dead ranks are being reaped
        gang.stop.timeout_s = min(event.timeout_s, gang.stop.timeout_s)
        gang.stop.death_sig = Signals.SIGKILL if now else gang.stop.death_sig
    elif gang.stop.killed:
        return
    elif now or event.timeout_s <= 0:
        kill(gang, decision)
    elif event.timeout_s < gang.stop.timeout_s:
        gang.stop.timeout_s = event.timeout_s
        decision.do(steps.SetTimer(name="grace", delay_s=event.timeout_s, only_sooner=True))


# Signaling


def all_reaped(gang: Gang, event: steps.AllReaped, decision: Decision) -> None:
    """Send the first signal to all ranks and set one deadline."""
    stop = gang.stop
    if stop.signaled:
        return
    stop.signaled, stop.reaped_ns = True, event.taken_ns
    for local_rank, at_ns in event.recorded.items():
        gang.ranks[local_rank].recorded_ns = at_ns
    if stop.death_sig == Signals.SIGKILL or stop.timeout_s <= 0:
        kill(gang, decision)
    elif gang.idle and not gang.leftovers:
        return
    elif stop.order:
        role_close.begin(gang, decision)
    else:
        decision.do(
            steps.SendSignal(ranks=_targets(gang), sig=stop.death_sig, escalation=0),
            steps.SetTimer(name="grace", delay_s=stop.timeout_s, only_sooner=True),
        )


def kill(gang: Gang, decision: Decision) -> None:
    """Send SIGKILL to all groups that remain. Idempotent."""
    if gang.stop.killed or not gang.stop.signaled:
        return
    gang.stop.killed = True
    if gang.leftovers or not gang.idle:
        _send_sigkill(gang, _targets(gang), decision)


def signal_started(gang: Gang, local_rank: int, decision: Decision) -> None:
    """Signal a rank whose start was reported after the other ranks were signaled."""
    ranks = frozenset({local_rank})
    if role_close.is_killed(gang, local_rank):
        _send_sigkill(gang, ranks, decision)
    elif gang.stop.signaled and role_close.is_due(gang, local_rank):
        decision.do(steps.SendSignal(ranks=ranks, sig=gang.stop.death_sig, escalation=0))


def _send_sigkill(gang: Gang, ranks: frozenset[int], decision: Decision) -> None:
    decision.do(
        steps.SendSignal(ranks=ranks, sig=Signals.SIGKILL, escalation=1),
        steps.SetTimer(name="kill", delay_s=gang.kill_wait_s),
    )


def _targets(gang: Gang) -> frozenset[int]:
    return frozenset(gang.running | gang.leftovers)


# What survives


def report_unkillable(gang: Gang, decision: Decision) -> None:
    """Report ranks that survived SIGKILL. A `give_up` follows each report."""
    for local_rank in tuple(gang.starting):
        if role_close.is_killed(gang, local_rank):
            gang.move(local_rank, "overdue")
    if targets := frozenset(rank for rank in _targets(gang) if role_close.is_killed(gang, rank)):
        decision.do(steps.ReportUnkillable(ranks=targets))


def give_up(gang: Gang, event: steps.WorkerUnkillable, decision: Decision) -> None:
    """Give up the wait for a rank with a process that survived SIGKILL."""
    gang.unkillable[event.local_rank] = event
    gang.leftovers.discard(event.local_rank)
    if event.local_rank in gang.running:
        gang.move(event.local_rank, "lost")
    decision.tell(event)


def sweep(gang: Gang, decision: Decision) -> None:
    """Request the sweep, once per attempt."""
    if gang.sweep.state == "due":
        timeout_s = 0.0 if gang.stop.death_sig == Signals.SIGKILL else gang.stop.timeout_s
        gang.sweep.timeout_s = timeout_s if gang.sweep.timeout_s is None else gang.sweep.timeout_s
        gang.sweep.state = "asked"
        decision.do(steps.SweepUp(timeout_s=gang.sweep.timeout_s))
