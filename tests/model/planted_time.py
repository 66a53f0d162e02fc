"""Bugs in the count of restarts and in their delay, put into the core for a while: the search must find each.

The docstring of a bug names the promise that it breaks; `PLANTED_IN_TIME` has what the search says.
"""

from typing import Any
from unittest.mock import patch

from supervise._core import backoff, batches, decide, strategy, tree
from supervise._core.backoff import Backoff


def _instead(name: str, new: Any, module: Any = decide) -> Any:
    """Replace a function of the core by `new`, which is given the old one first."""
    old = getattr(module, name)
    return patch.object(module, name, lambda *args: new(old, *args))


def _count(name: str, new: Any) -> Any:
    """Replace a method of the count by `new`, which is given the old one first."""
    return _instead(name, new, Backoff)


def all_ranks_start_before_their_backoff_is_over() -> Any:
    """No rank starts again before its backoff is over."""

    def at_once(old: Any, gang: Any, decision: Any) -> None:
        old(gang, decision)
        decide._next_attempt(gang, decision)

    return _instead("_restart", at_once)


def a_rank_starts_before_its_backoff_is_over() -> Any:
    """No rank starts again before its backoff is over."""

    def at_once(old: Any, gang: Any, number: int, decision: Any) -> None:
        old(gang, number, decision)
        batches.enqueue(gang, number, decision)

    return _instead("swept", at_once, batches)


def the_delay_does_not_grow() -> Any:
    """Restarts in a row double the delay."""
    return _count("next", lambda old, self, *rest: old(self._replace(in_a_row=0), *rest))


def the_delay_grows_without_end() -> Any:
    """The delay has a longest value."""

    def uncapped(old: Any, self: Any, policy: Any, *rest: Any) -> Any:
        found = old(self, policy, *rest)
        return found._replace(delay_s=max(policy.backoff * 2.0 ** (found.in_a_row - 1), found.delay_s))

    return _count("next", uncapped)


def a_stable_life_does_not_end_the_row() -> Any:
    """A long life resets the delay."""
    return _count(
        "next", lambda old, self, policy, at_ns, *rest: old(self._replace(last_ns=at_ns), policy, at_ns, *rest)
    )


def the_restarts_of_one_rank_delay_another() -> Any:
    """The delay of a rank grows with its own restarts."""

    def of_all(old: Any, gang: Any, policy: Any, local_rank: int, *rest: Any) -> None:
        old(gang, policy, local_rank, *rest)
        if local_rank in gang.batch_of:
            gang.batch_of[local_rank].delay_s = gang.backoff.delay_s

    return _instead("_restart", of_all, strategy)


def batches_that_unite_forget_the_longer_delay() -> Any:
    """A backoff that was not over is not shortened by that of another rank."""

    def shortened(old: Any, *args: Any) -> Any:
        made = old(*args)
        made.delay_s = 0.0
        return made

    return _instead("stop", shortened, batches)


def the_window_is_too_short() -> Any:
    """Restarts within the window do not exceed the limit."""
    return _count("gives_up", lambda old, self, policy, at_ns, *rest: old(self, policy, at_ns + 30_000_000_000, *rest))


def a_restart_before_the_window_still_counts() -> Any:
    """The gang gives up only after the limit within the window."""
    return _count("gives_up", lambda old, self, policy, _at_ns, *rest: old(self, policy, self.last_ns, *rest))


def one_restart_fewer_than_the_limit() -> Any:
    """The gang gives up exactly at the limit."""
    return _count(
        "gives_up",
        lambda _old, self, policy, at_ns, *_: len(policy.counting(self.counted_ns, at_ns)) + 1 >= policy.max_restarts,
    )


def the_limit_is_ignored() -> Any:
    """Restarts within the window do not exceed the limit, and the gang gives up then."""
    return _count("gives_up", lambda *_: False)


def an_uncounted_code_uses_up_a_restart() -> Any:
    """Uncounted codes use up no restart."""

    def counted(old: Any, self: Any, policy: Any, at_ns: int, *rest: Any) -> Any:
        return old(self, policy, at_ns, *rest)._replace(counted_ns=old(self, policy, at_ns).counted_ns)

    return _count("next", counted)


def an_uncounted_code_is_refused_at_the_limit() -> Any:
    """Uncounted codes restart without limit."""
    return _count("gives_up", lambda old, self, policy, at_ns, *_: old(self, policy, at_ns))


def an_uncounted_restart_comes_at_once() -> Any:
    """No next life starts sooner than the least delay."""
    return patch.object(backoff, "LEAST_UNCOUNTED_S", 0.0)


def a_stop_in_the_backoff_of_all_does_not_last() -> Any:
    """A stop during a backoff starts nothing any more."""

    def begin(old: Any, gang: Any, decision: Any) -> None:
        gang.phase = "restarting" if gang.restart_announced else gang.phase
        old(gang, decision)

    return _instead("_next_attempt", begin)


def a_stop_in_the_backoff_of_a_rank_does_not_last() -> Any:
    """A stop during a backoff starts nothing any more."""

    def keep(old: Any, gang: Any, event: Any, decision: Any) -> None:
        stopped, batch_of = gang.batches, gang.batch_of
        old(gang, event, decision)
        gang.batches, gang.batch_of = stopped, batch_of

    return _instead("close", keep, batches)


def a_child_starts_before_its_backoff_is_over() -> Any:
    """No child starts again before its backoff is over."""

    def at_once(old: Any, grown: Any, *rest: Any) -> None:
        old(grown, *rest)
        for child in grown.children.values():
            child.hold_s = 0.0

    return _instead("_restart", at_once, tree)


def an_earlier_backoff_is_shortened() -> Any:
    """A backoff that was not over is not shortened by that of another child."""

    def shortened(old: Any, grown: Any, *rest: Any) -> None:
        old(grown, *rest)
        for child in grown.children.values():
            child.hold_s = child.hold_s and grown.backoff.delay_s

    return _instead("_restart", shortened, tree)


def the_delay_of_a_tree_does_not_grow() -> Any:
    """Each restart within the window doubles the delay."""
    return _count("next", lambda old, self, policy, *rest: old(self, policy, *rest)._replace(delay_s=policy.backoff))


def the_delay_of_a_tree_counts_what_was_before_the_window() -> Any:
    """Only restarts within the window double the delay."""

    def all_of_them(old: Any, self: Any, policy: Any, *rest: Any) -> Any:
        found = old(self, policy, *rest)
        return found._replace(delay_s=policy.delay_s(len(self.counted_ns)))

    return _count("next", all_of_them)


TOO_SOON = "a start before the backoff is over"
DELAY = r"a delay of [\d.]+ s where the policy has [\d.]+ s"
TOO_OFTEN = "more restarts within the window than the policy allows|the gang does not give up"
TOO_EARLY = "the (gang|tree) gives up too early"
AFTER_THE_END = "a (restart|launch) after the end was asked for"
PLANTED_IN_TIME = {
    all_ranks_start_before_their_backoff_is_over: ("all, a window", TOO_SOON),
    a_rank_starts_before_its_backoff_is_over: ("one for one", TOO_SOON),
    the_delay_does_not_grow: ("all, no window", DELAY),
    the_delay_grows_without_end: ("all, no window", DELAY),
    a_stable_life_does_not_end_the_row: ("one for one", DELAY),
    the_restarts_of_one_rank_delay_another: ("one for one of two", DELAY),
    batches_that_unite_forget_the_longer_delay: ("rest for one of two", DELAY),
    the_window_is_too_short: ("all, a window", TOO_OFTEN),
    a_restart_before_the_window_still_counts: ("one for one", TOO_EARLY),
    one_restart_fewer_than_the_limit: ("one for one", TOO_EARLY),
    the_limit_is_ignored: ("one for one", TOO_OFTEN),
    an_uncounted_code_uses_up_a_restart: ("all, no window", TOO_EARLY),
    an_uncounted_code_is_refused_at_the_limit: ("all, no window", TOO_EARLY),
    an_uncounted_restart_comes_at_once: ("no backoff", "a restart that does not count comes too soon"),
    a_stop_in_the_backoff_of_all_does_not_last: ("all, a window", AFTER_THE_END),
    a_stop_in_the_backoff_of_a_rank_does_not_last: ("one for one", AFTER_THE_END),
}
"""Each bug -> the setting whose search finds it, and what the search says."""
PLANTED_IN_THE_TIME_OF_TREES = {
    a_child_starts_before_its_backoff_is_over: ("rest for one", TOO_SOON),
    an_earlier_backoff_is_shortened: ("rest for one", r"a backoff of [\d.]+ s instead of [\d.]+ s"),
    the_delay_of_a_tree_does_not_grow: ("one for one", DELAY),
    the_delay_of_a_tree_counts_what_was_before_the_window: ("one for one", DELAY),
    the_delay_grows_without_end: ("no window", DELAY),
    the_window_is_too_short: ("one for all", TOO_OFTEN),
    a_restart_before_the_window_still_counts: ("one for one", TOO_EARLY),
    one_restart_fewer_than_the_limit: ("one for all", TOO_EARLY),
    the_limit_is_ignored: ("one for all", TOO_OFTEN),
}
