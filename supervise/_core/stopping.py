"""The end of a gang: the beginning of its stop, closes in each phase, the drain. `batches` has the signals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervise._core import batches, steps
from supervise._core.model import Gang, grace_of

if TYPE_CHECKING:
    from supervise._core.steps import Decision


_MIN_DRAIN_S = 1.0
"""Lower limit on the deadline of the drain, for a close with any timeout."""


def stop(gang: Gang, reason: steps.Reason, decision: Decision) -> None:
    """Stop the gang because of a failure, with its full grace."""
    _stop(gang, _own_close(gang, reason), decision)


def time_out(gang: Gang, decision: Decision) -> None:
    """End the gang because its timeout has expired."""
    close(gang, _own_close(gang, "timeout"), decision)


def _own_close(gang: Gang, reason: steps.Reason) -> steps.CloseAsked:
    order = batches.own_order(gang)
    return steps.CloseAsked(death_sig=gang.stop_signal, timeout_s=gang.grace_s, reason=reason, order=order)


def _stop(gang: Gang, event: steps.CloseAsked, decision: Decision) -> None:
    """Begin the stop, once. Dead ranks are reaped before the first signal is sent."""
    if gang.phase in ("starting", "running"):
        gang.phase = "stopping"
        gang.stop.reason, gang.stop.death_sig, gang.stop.timeout_s = event.reason, event.death_sig, event.timeout_s
        gang.stop.order = event.order if gang.roles > 1 or gang.graces_s else ""
        gang.batches, gang.batch_of = {}, {}
        gang.dequeue(range(gang.nprocs))
        if gang.policy is None or gang.strategy != "one_for_all" or event.reason != "peer_failed":
            fail_asks(gang, decision)
        decision.tell(steps.GangStopping(reason=event.reason))
        decision.do(steps.ReapAll())


def finish(gang: Gang, decision: Decision) -> None:
    """Enter the last phase and publish the result, or the error of the first start."""
    gang.phase = "finished"
    fail_asks(gang, decision)
    decision.do(steps.Publish())


def fail_asks(gang: Gang, decision: Decision) -> None:
    """Fail all pending requests, because the gang ends."""
    if gang.asks:
        decision.do(steps.FailAsks(keys=tuple(gang.asks), why="the gang ends first"))
        gang.asks = {}


# Closing


def close(gang: Gang, event: steps.CloseAsked, decision: Decision) -> None:
    """End the gang in any phase. A further close may shorten the stop, but never lengthens it."""
    gang.end_asked = True
    fail_asks(gang, decision)
    if gang.drain.last:
        decision.do(drain_timer(event.timeout_s))
    _hurry_sweep(gang, event, decision)
    _close_in_phase(gang, event, decision)


def _hurry_sweep(gang: Gang, event: steps.CloseAsked, decision: Decision) -> None:
    """Let the sweep send SIGKILL as soon as the close with the shortest timeout requests."""
    timeout_s = grace_of(event.death_sig, event.timeout_s)
    if gang.phase in ("new", "starting", "running") or event.reason != "close":
        return
    sooner = gang.stop.state == "sweeping" and (gang.stop.sweep_s is None or timeout_s < gang.stop.sweep_s)
    if sooner:
        decision.do(steps.HurrySweep(timeout_s=timeout_s))
    if sooner or (gang.stop.state == "stopping" and (gang.phase != "stopping" or timeout_s <= 0)):
        gang.stop.sweep_s = timeout_s


def _close_in_phase(gang: Gang, event: steps.CloseAsked, decision: Decision) -> None:
    match gang.phase:
        case "new":
            gang.phase, gang.stop.state = "stopping", "swept"
            gang.stop.reason, gang.stop.roles = event.reason, set()
            gang.dequeue(range(gang.nprocs))
        case "starting" | "running":
            _stop(gang, event, decision)
            if gang.drain.begun:
                decision.do(drain_timer(event.timeout_s))
        case "restarting":
            finish(gang, decision)
            _end_leftovers(gang, event, decision)
        case "stopping":
            if event.reason == "close" or gang.stop.order in batches.IN_TURN:
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
    gang.stop.order = batches.own_order(gang) if event.order == "each" else ""
    if gang.leftovers:
        batches.begin(gang, gang.stop, decision)


def drain_leftovers(gang: Gang, decision: Decision) -> None:
    """Show the rest of what leftovers wrote, once none remains."""
    if not (gang.leftovers or gang.drain.last):
        gang.drain.last = True
        decision.do(steps.DrainTails())
        if gang.end_asked:
            decision.do(drain_timer(gang.stop.timeout_s))


def drain_timer(timeout_s: float) -> steps.SetTimer:
    """Return the action that bounds the drain."""
    return steps.SetTimer(name="drain", delay_s=max(timeout_s, _MIN_DRAIN_S), only_sooner=True)


def _hurry(gang: Gang, event: steps.CloseAsked, decision: Decision) -> None:
    if gang.drain.begun:
        decision.do(drain_timer(event.timeout_s))
    batches.hurry(gang, gang.stop, event, decision)


def all_reaped(gang: Gang, event: steps.AllReaped, decision: Decision) -> None:
    """Send the first signal, once."""
    if gang.stop.signaled:
        return
    gang.reaped_ns = event.taken_ns
    for local_rank, at_ns in event.recorded.items():
        gang.ranks[local_rank].recorded_ns = at_ns
    batches.begin(gang, gang.stop, decision)
