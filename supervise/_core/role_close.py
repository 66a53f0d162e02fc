"""The ordered close of a gang with roles: from the last role to the first, one role at a time."""

from __future__ import annotations

from signal import Signals
from typing import TYPE_CHECKING

from supervise._core import steps

if TYPE_CHECKING:
    from supervise._core.facts import Decision
    from supervise._core.model import Gang


def begin(gang: Gang, decision: Decision) -> None:
    """Signal the last role that is left. `proceed` signals the lower roles, one after the other."""
    gang.stop.turn = gang.roles
    proceed(gang, decision)
    if gang.stop.order == "whole":
        decision.do(steps.SetTimer(name="grace", delay_s=gang.stop.timeout_s, only_sooner=True))


def proceed(gang: Gang, decision: Decision) -> None:
    """Signal the role below the present one, once nothing is left of the present role and of later ones."""
    stop = gang.stop
    left = [gang.role_of[rank] for rank in gang.running | gang.starting | gang.leftovers]
    if stop.turn is None or stop.killed or not left or max(left) >= stop.turn:
        return
    stop.turn, stop.turn_killed = max(left), False
    _signal(_targets(gang, stop.turn, gang.roles), stop.death_sig, decision)
    if stop.order == "each":
        decision.do(steps.SetTimer(name="grace", delay_s=stop.timeout_s))


def kill(gang: Gang, decision: Decision) -> bool:
    """Send SIGKILL to the present role after its grace; return False if all roles share one grace."""
    stop = gang.stop
    if stop.turn is None or stop.order != "each":
        return False
    if not stop.turn_killed:
        stop.turn_killed = True
        _signal(_targets(gang, stop.turn, gang.roles), Signals.SIGKILL, decision)
        decision.do(steps.SetTimer(name="kill", delay_s=gang.kill_wait_s))
    return True


def is_due(gang: Gang, local_rank: int) -> bool:
    """Return whether the stop has reached the role of a rank."""
    turn = gang.stop.turn
    return turn is None or gang.role_of[local_rank] >= turn


def is_killed(gang: Gang, local_rank: int) -> bool:
    """Return whether the stop now sends SIGKILL to a rank."""
    stop = gang.stop
    if stop.killed or stop.turn is None:
        return stop.killed
    return gang.role_of[local_rank] >= stop.turn + (not stop.turn_killed)


def release(gang: Gang, event: steps.CloseAsked, decision: Decision) -> bool:
    """Signal all remaining roles at once if a further close, or the gang's timeout, is urgent; return whether it is.

    A further close with a timeout is urgent if it bounds the whole stop sooner. A further close without a timeout is
    not.
    """
    stop, timeout_s = gang.stop, event.timeout_s
    sooner = timeout_s < stop.timeout_s or (stop.order == "each" and timeout_s == stop.timeout_s)
    if event.order == "each" or (event.order == "whole" and not sooner):
        return False
    turn, bounded = stop.turn, stop.order == "whole"
    stop.order, stop.turn = "", None
    if turn is not None and timeout_s > 0 and event.death_sig != Signals.SIGKILL:
        _signal(_targets(gang, 0, turn), stop.death_sig, decision)
        decision.do(steps.SetTimer(name="grace", delay_s=timeout_s, only_sooner=bounded))
        stop.timeout_s = min(stop.timeout_s, timeout_s)
    return True


def _targets(gang: Gang, first: int, end: int) -> frozenset[int]:
    """Return the ranks that have a process or a leftover, of the roles from `first` up to but not including `end`."""
    return frozenset(rank for rank in gang.running | gang.leftovers if first <= gang.role_of[rank] < end)


def _signal(ranks: frozenset[int], sig: Signals, decision: Decision) -> None:
    if ranks:
        decision.do(steps.SendSignal(ranks=ranks, sig=sig, escalation=int(sig == Signals.SIGKILL)))
