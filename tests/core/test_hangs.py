"""The judgment of hangs, on a simulated clock: healthy gangs are never reported, and the rank that hangs is named."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from supervise._core.hangs import LATE_NS, Hang, Pulse, Silence

S = 1_000_000_000
PERIOD = 10 * S


def beats(*ages_s, now_ns=100 * S, steps=None):
    """Return rank to pulse for these ages in seconds."""
    return {rank: Pulse(int(now_ns - age_s * S), steps[rank] if steps else None) for rank, age_s in enumerate(ages_s)}


def test_the_lowest_step_is_the_culprit_and_the_others_wait():
    silence = Silence(PERIOD, together=True)
    pulses = beats(11, 10, 8, 3, steps=[7, 5, 7, 7])
    assert silence.near(pulses, 100 * S) == [0, 1, 2]
    assert silence.judge(pulses, 100 * S) == [Hang(1, 10 * S, (0, 2))]
    assert silence.judge(pulses, 100 * S) == []


def test_without_steps_the_oldest_sign_is_the_culprit():
    silence = Silence(PERIOD, together=True)
    assert silence.judge(beats(10, 12, 9), 100 * S) == [Hang(1, 12 * S, (0, 2))]


def test_a_rank_without_a_step_is_behind_all_others():
    pulses = beats(10, 10, steps=[0, None])
    assert silence_of(pulses) == [1]


def silence_of(pulses):
    return [hang.local_rank for hang in Silence(PERIOD, together=True).judge(pulses, 100 * S)]


def test_ranks_that_fall_silent_together_are_rivals():
    """The most suspicious first. A rank that is a step ahead, or was silent a second later, only waits."""
    silence = Silence(PERIOD, together=True)
    (hang,) = silence.judge(beats(10.5, 11, 10.8, 10, 11, steps=[5, 5, 5, 5, 6]), 100 * S)
    assert hang == Hang(1, 11 * S, (0, 2, 3, 4), (2, 0))


def test_a_tenth_of_a_long_period_is_together():
    silence = Silence(30 * PERIOD, together=True)
    (hang,) = silence.judge(beats(330, 301, 299, now_ns=1000 * S), 1000 * S)
    assert hang.rivals == (1,)


def test_rivals_are_awaited_until_they_are_overdue():
    """One of them may still give a sign. In short periods, signs are close that no check has told apart."""
    silence = Silence(PERIOD, together=True)
    pulses = beats(10.1, 9.5, 9.9)
    assert silence.judge(pulses, 100 * S) == []
    assert silence.next_ns(pulses, 100 * S) == 100.1 * S
    assert silence.judge(pulses | {1: Pulse(100 * S)}, 100.1 * S) == [Hang(0, 10.2 * S, (2,), (2,))]
    silence = Silence(S, together=True)
    assert silence.judge(beats(1.2, 0.9), 100 * S) == [Hang(0, 1.2 * S, (1,))]


def test_the_blame_can_move_to_a_rival_once():
    silence = Silence(PERIOD, together=True)
    pulses = beats(10.2, 10)
    (hang,) = silence.judge(pulses, 100 * S)
    assert (hang.local_rank, hang.rivals) == (0, (1,))
    assert silence.blame(hang, 1, pulses, 101 * S) == Hang(1, 11 * S, (0,))
    assert silence.judge(pulses, 120 * S) == []
    pulses[1] = Pulse(121 * S)  # the culprit goes on, so the other rank gets a period
    assert silence.judge(pulses, 122 * S) == []
    assert silence.judge({0: pulses[0], 1: Pulse(131 * S)}, 133 * S) == [Hang(0, 11 * S)]


def test_the_blame_stays_if_the_rival_has_given_a_sign_or_has_ended():
    silence = Silence(PERIOD, together=True)
    (hang,) = silence.judge(beats(10.2, 10), 100 * S)
    assert silence.blame(hang, 1, beats(10.2, 0.5), 100 * S) == hang
    assert silence.blame(hang, 1, beats(10.2), 100 * S) == hang


def test_independent_ranks_are_judged_each_for_itself():
    silence = Silence(PERIOD, together=False)
    assert silence.judge(beats(10, 8, 12, steps=[1, 0, 2]), 100 * S) == [Hang(0, 10 * S), Hang(2, 12 * S)]


def test_nobody_is_judged_before_the_period_is_over():
    silence = Silence(PERIOD, together=True)
    assert silence.near(beats(9.9, 8), 100 * S) == []
    assert silence.judge(beats(9.9, 8), 100 * S) == []


def test_victims_that_fall_silent_later_are_not_reported():
    silence = Silence(PERIOD, together=True)
    assert len(silence.judge(beats(10, 1, steps=[5, 6]), 100 * S)) == 1
    assert silence.judge(beats(20, 11, now_ns=110 * S, steps=[5, 6]), 110 * S) == []


def test_a_rank_that_was_reported_for_another_reason_is_not_reported_again():
    silence = Silence(PERIOD, together=True)
    silence.note(0, beats(4, 1))
    silence.note(5, beats(4, 1))  # it has sent nothing
    assert silence.judge(beats(13, 10, now_ns=109 * S), 109 * S) == []
    assert silence.judge(beats(10, 20, now_ns=120 * S), 120 * S) != []


def test_a_sign_arms_the_report_again():
    silence = Silence(PERIOD, together=True)
    assert len(silence.judge({0: Pulse(0)}, 10 * S)) == 1
    assert silence.judge({0: Pulse(0)}, 30 * S) == []
    assert silence.judge({0: Pulse(31 * S)}, 40 * S) == []
    assert silence.judge({0: Pulse(31 * S)}, 41 * S) == [Hang(0, 10 * S)]


def test_a_late_check_grants_everybody_a_period():
    silence = Silence(PERIOD, together=True)
    assert not silence.is_late(10 * S, 10 * S + LATE_NS)
    assert silence.is_late(10 * S, 11 * S)
    assert silence.judge({0: Pulse(0)}, 11 * S) == []
    assert silence.near({0: Pulse(0)}, 20 * S) == []
    assert silence.judge({0: Pulse(0)}, 21 * S) == [Hang(0, 10 * S)]


def test_an_excuse_is_for_one_rank_and_one_period():
    silence = Silence(PERIOD, together=False)
    silence.excuse(0, 10 * S)
    assert silence.judge({0: Pulse(0), 1: Pulse(0)}, 10 * S) == [Hang(1, 10 * S)]
    assert silence.judge({0: Pulse(0), 1: Pulse(0)}, 20 * S) == [Hang(0, 10 * S)]


def test_ranks_that_depend_on_each_other_are_excused_together():
    """Those that wait for a suspended rank do not hang."""
    silence = Silence(PERIOD, together=True)
    silence.excuse(0, 10 * S)
    silence.excuse(0, 5 * S)
    assert silence.judge({0: Pulse(0), 1: Pulse(0)}, 19 * S) == []
    assert silence.judge({0: Pulse(0), 1: Pulse(0)}, 20 * S) == [Hang(0, 10 * S, (1,), (1,))]


def test_after_a_grant_the_oldest_sign_still_decides():
    silence = Silence(PERIOD, together=True)
    assert silence.is_late(10 * S, 11 * S)
    pulses = {0: Pulse(5 * S), 1: Pulse(4 * S)}
    assert silence.judge(pulses, 21 * S) == [Hang(1, 10 * S, (0,))]


def test_a_grant_does_not_repeat_a_report():
    silence = Silence(PERIOD, together=True)
    assert silence.judge({0: Pulse(0)}, 10 * S)
    assert silence.is_late(12 * S, 13 * S)
    assert silence.judge({0: Pulse(0)}, 30 * S) == []


@pytest.mark.parametrize("culprit", [{}, {0: Pulse(105 * S, 6)}], ids=["has_ended", "goes_on"])
def test_who_waited_is_judged_once_the_culprit_has_ended_or_goes_on(culprit):
    silence = Silence(PERIOD, together=True)
    pulses = beats(10, 10, steps=[5, 6])
    assert silence.judge(pulses, 100 * S) == [Hang(0, 10 * S, (1,))]
    pulses = culprit | {1: pulses[1]}
    assert silence.near(pulses, 106 * S) == []
    assert silence.judge(pulses, 114 * S) == []
    pulses |= {0: Pulse(115 * S, 7)} if culprit else {}
    assert silence.judge(pulses, 116 * S) == [Hang(1, 10 * S)]


def test_a_new_life_begins_without_a_report():
    silence = Silence(PERIOD, together=True)
    assert silence.judge({0: Pulse(50 * S)}, 60 * S)
    silence.forget(0)
    assert silence.judge({0: Pulse(50 * S)}, 60 * S) == [Hang(0, 10 * S)]


def test_the_culprit_is_reported_when_it_is_overdue_itself():
    """It may still give a sign."""
    silence = Silence(PERIOD, together=True)
    assert silence.judge(beats(10, 8, steps=[7, 5]), 100 * S) == []
    assert silence.next_ns(beats(10, 8, steps=[7, 5]), 100 * S) == 102 * S
    assert silence.judge(beats(12, 10, now_ns=102 * S, steps=[7, 5]), 102 * S) == [Hang(1, 10 * S, (0,))]


def test_the_next_check_is_when_a_rank_is_overdue_and_at_most_a_quarter_of_a_period_away():
    silence = Silence(PERIOD, together=True)
    assert silence.next_ns({}, 7 * S) == 9.5 * S
    assert silence.next_ns({0: Pulse(3 * S), 1: Pulse(5 * S)}, 7 * S) == 9.5 * S
    assert silence.next_ns({0: Pulse(3 * S), 1: Pulse(5 * S)}, 12 * S) == 13 * S
    assert silence.next_ns({0: Pulse(3 * S), 1: Pulse(5 * S)}, 13 * S) == 15 * S


# Simulated gangs


@dataclass
class SimulatedRank:
    """Beats at the ends of its steps, unless it is suspended or waits at the barrier."""

    durations_s: Callable[[int], float]
    hangs_at: int | None = None
    step: int = 0
    at_ns: int = 0
    done_ns: int = 0
    suspended: list[tuple[int, int]] = field(default_factory=list)
    """From when to when it does not run."""
    seen: list[tuple[int, int]] = field(default_factory=list)
    """Those of them that the host can know: a suspension by a signal, a debugger."""


def run(ranks, *, barrier, watch_until_s, host_stops=()):
    """Simulate a gang; return the reported ranks.

    Args:
        ranks: The simulated ranks.
        barrier: Whether each step ends when all ranks have reached its end.
        watch_until_s: Length of the simulation.
        host_stops: From when to when the host does not run, in ns.
    """
    silence, reported = Silence(PERIOD, together=barrier), []
    held: set[int] = set()
    now_ns = due_ns = checked_ns = 0
    for rank in ranks:
        rank.done_ns = int(rank.durations_s(0) * S)
    while now_ns < watch_until_s * S:
        events = [rank.done_ns for rank in ranks if rank.done_ns > now_ns]
        now_ns = min([due_ns, *events]) if due_ns > now_ns else due_ns
        for begin, end in host_stops:
            if begin <= now_ns < end:
                now_ns = end
        _advance(ranks, now_ns, barrier)
        if now_ns >= due_ns:
            pulses = {number: Pulse(rank.at_ns, rank.step) for number, rank in enumerate(ranks)}
            for number in _held(ranks, checked_ns, now_ns, ended=True):
                silence.excuse(number, now_ns)
            checked_ns = now_ns
            if not silence.is_late(due_ns, now_ns):
                held = _held(ranks, now_ns, now_ns).intersection(held.union(silence.near(pulses, now_ns)))
                for number in held:
                    silence.excuse(number, now_ns)
                reported += [hang.local_rank for hang in silence.judge(pulses, now_ns)]
            due_ns = silence.next_ns(pulses, now_ns)
    return reported


def _held(ranks, since_ns, now_ns, *, ended=False):
    """Return the ranks that are suspended now, or whose suspension has ended since then, as far as the host knows."""
    return {
        number
        for number, rank in enumerate(ranks)
        if any(since_ns < end <= now_ns if ended else begin <= now_ns < end for begin, end in rank.seen)
    }


def _advance(ranks, now_ns, barrier):
    """Let ranks whose step is over beat, and begin the next one."""
    lowest = min(rank.step for rank in ranks)
    for rank in ranks:
        over = rank.done_ns <= now_ns and rank.hangs_at != rank.step
        if any(begin <= now_ns < end for begin, end in rank.suspended):
            continue
        if over and (not barrier or rank.step == lowest):
            rank.step += 1
            rank.at_ns = now_ns
            rank.done_ns = now_ns + int(rank.durations_s(rank.step) * S)


def rank_of(seed, slowest_s):
    source = random.Random(seed)
    slow = {source.randrange(20) for _ in range(3)}
    return lambda step: source.uniform(0.8, 0.95) * slowest_s if step in slow else source.uniform(0.05, 2.0)


@pytest.mark.parametrize("part", [0, 1, *(pytest.param(part, marks=pytest.mark.stress) for part in range(2, 10))])
def test_a_thousand_gangs_that_are_slow_and_healthy_are_never_reported(part):
    """Slow steps, barriers, suspended ranks, hosts without a processor, machines that freeze: 100 seeds a part."""
    for seed in range(part * 100, part * 100 + 100):
        source = random.Random(seed)
        ranks = [SimulatedRank(rank_of(seed * 100 + number, 9.0)) for number in range(source.randrange(2, 17))]
        begin = source.randrange(10, 60) * S
        barrier = bool(seed % 2)
        if seed % 3 == 0:
            rank = source.choice(ranks)
            rank.suspended = rank.seen = [(begin, begin + source.randrange(1, 100) * S)]
        stops = [(begin, begin + source.randrange(1, 60) * S)] if seed % 3 else []
        if seed % 3 == 2:  # the whole machine does not run
            for rank in ranks:
                rank.suspended += stops
        assert run(ranks, barrier=barrier, watch_until_s=200, host_stops=stops) == [], seed


@pytest.mark.parametrize("together", [False, True])
def test_the_rank_that_hangs_is_named(together):
    """In 100 seeded runs of 2 to 16 ranks, each time at another step."""
    for seed in range(100):
        source = random.Random(seed)
        ranks = [SimulatedRank(rank_of(seed * 100 + number, 4.0)) for number in range(source.randrange(2, 17))]
        culprit = source.randrange(len(ranks))
        ranks[culprit].hangs_at = source.randrange(1, 15)
        assert run(ranks, barrier=together, watch_until_s=120) == [culprit], seed
