"""Bugs of the kinds that a supervisor must not have, put into the core for a while: the search must find each."""

from typing import Any
from unittest.mock import patch

from supervise._core import decide, verdict
from supervise._core import state as st


def _instead(name: str, new: Any, module: Any = decide) -> Any:
    """Replace a function of the core by `new`, which is given the old one first."""
    old = getattr(module, name)
    return patch.object(module, name, lambda *args: new(old, *args))


def a_victim_of_our_signal_is_blamed() -> Any:
    """The root cause is the first cause."""
    return _instead("by_itself", lambda _old, _gang, _event: True)


def the_last_cause_is_the_root() -> Any:
    """The root cause is the first cause."""
    return _instead("_when", lambda old, gang, end: tuple(-stamp for stamp in old(gang, end)), verdict)


def a_restart_wins_over_a_close() -> Any:
    """No restart after the end was asked for."""
    return _instead("may_restart", lambda old, gang: old(gang._replace(ended=False)))


def a_restart_is_not_counted() -> Any:
    """The intensity is never exceeded."""

    def forget(old: Any, gang: Any) -> Any:
        gang, actions = old(gang)
        return gang._replace(restarts_ns=()), actions

    return _instead("_next_attempt", forget)


def a_restart_does_not_wait_for_the_groups() -> Any:
    """Nothing of one attempt lives when the next begins."""
    return _instead("_exited", lambda old, gang, event: _without_leftovers(old(gang, event)))


def _without_leftovers(decision: Any) -> Any:
    return decision[0]._replace(leftovers=frozenset()), decision[1]


def sigkill_goes_to_who_has_ended() -> Any:
    """No signal to a rank that does not run."""

    def all_launched(old: Any, gang: Any) -> Any:
        gang, actions = old(gang)
        everybody = frozenset(range(gang.launched))
        return gang, [_to(action, everybody) if type(action) is st.SendSignal else action for action in actions]

    return _instead("_kill", all_launched)


def _to(action: st.SendSignal, ranks: frozenset[int]) -> st.SendSignal:
    return st.SendSignal(ranks=ranks, sig=action.sig, escalation=action.escalation)


def what_sigkill_does_not_end_is_awaited_for_ever() -> Any:
    """Every path can end, whatever the processes do."""
    return _instead("_give_up", lambda _old, gang: (gang, []))


def a_close_in_the_backoff_is_forgotten() -> Any:
    """Every ask is answered."""

    def forget(old: Any, gang: Any, event: Any) -> Any:
        return (gang, []) if gang.phase == "restarting" else old(gang, event)

    return _instead("_close_in_phase", forget)


def a_rank_is_launched_twice() -> Any:
    """Never two lives of a rank."""

    def twice(old: Any, gang: Any) -> Any:
        gang, actions = old(gang)
        return gang, actions + actions

    return _instead("_launch", twice)


def the_result_is_published_twice() -> Any:
    """One result."""
    return _instead("_finish", lambda old, gang: (old(gang)[0], [st.Publish(), st.Publish()]))


PLANTED = (
    a_victim_of_our_signal_is_blamed,
    the_last_cause_is_the_root,
    a_restart_wins_over_a_close,
    a_restart_is_not_counted,
    a_restart_does_not_wait_for_the_groups,
    sigkill_goes_to_who_has_ended,
    what_sigkill_does_not_end_is_awaited_for_ever,
    a_close_in_the_backoff_is_forgotten,
    a_rank_is_launched_twice,
    the_result_is_published_twice,
)
