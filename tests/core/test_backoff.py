"""The count of restarts and the delay before them, for gangs, trees and several hosts."""

import pytest

from supervise import RestartPolicy
from supervise._core.backoff import Backoff

S = 1_000_000_000
POLICY = RestartPolicy(3, within_s=10.0, uncounted_exit_codes=frozenset({75}), never_restart_exit_codes=frozenset({9}))


def delays(backoff, *ends, policy=POLICY):
    """Return the delay after each end (seconds and exit code); None where no restart follows."""
    found = []
    for at_s, code in ends:
        if backoff.gives_up(policy, int(at_s * S), [code]):
            found.append(None)
        else:
            backoff = backoff.next(policy, int(at_s * S), [code])
            found.append(backoff.delay_s)
    return found


def test_a_restart_more_than_the_limit_within_the_window_is_refused():
    ends = (100.0, 1), (101.0, 1), (102.0, None), (109.9, 1), (110.0, 1)
    assert delays(Backoff(), *ends) == [1.0, 2.0, 4.0, None, 8.0], "that of 100.0 no longer counts at 110.0"


def test_uncounted_codes_use_up_no_restart_and_a_code_of_never_refuses_one():
    assert delays(Backoff(), *[(100.0, 75)] * 3, *[(101.0, 1)] * 4) == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, None]
    assert delays(Backoff(), (100.0, 75), (100.0, 9)) == [1.0, None]


@pytest.mark.parametrize(("by_count", "last"), [(False, 8.0), (True, 2.0)])
def test_the_delay_grows_in_a_row_or_with_the_count_in_the_window(by_count, last):
    ends = (100.0, 1), (108.0, 1), (116.0, 1), (124.0, 1), (135.0, 1)
    assert delays(Backoff(by_count=by_count), *ends) == [1.0, 2.0, last / 2 if not by_count else 2.0, last, 1.0]


@pytest.mark.parametrize("by_count", [False, True])
def test_without_a_window_every_restart_doubles_the_delay_to_a_minute(by_count):
    policy = RestartPolicy(3, uncounted_exit_codes=frozenset({75}), backoff=20.0)
    ends = (100.0, 1), (900.0, 75), (5000.0, 1), (5000.0, 75)
    assert delays(Backoff(by_count=by_count), *ends, policy=policy) == [20.0, 40.0, 60.0, 60.0]


def test_a_restart_that_does_not_count_has_a_least_delay():
    policy = RestartPolicy(1, uncounted_exit_codes=frozenset({75}), backoff=0.0)
    assert delays(Backoff(), (100.0, 75), (100.0, 1), policy=policy) == [0.134, 0.0]


def test_the_first_cause_says_whether_a_restart_counts_and_any_refuses_one():
    assert not Backoff().next(POLICY, S, [75, 1]).counted
    assert Backoff().next(POLICY, S, [1, 75]).counted
    assert Backoff().gives_up(POLICY, S, [1, 9])
