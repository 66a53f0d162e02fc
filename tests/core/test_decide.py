"""The pure core, one decision at a time, as examples that can be read."""

from signal import SIGINT, SIGKILL, SIGTERM

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervise._core import decide as core
from supervise._core.facts import GangStopping, RankExited
from supervise._core.model import Gang
from supervise._core.steps import (
    AbandonTails,
    AllReaped,
    AnswerClose,
    AnswerStart,
    CloseAsked,
    DrainTails,
    GroupEmptied,
    LaunchRank,
    LoadValues,
    PeersStopped,
    Publish,
    ReapAll,
    ReportUnkillable,
    SendSignal,
    SetTimer,
    StartAsked,
    StopOnFailure,
    SweepUp,
    Swept,
    TailEnded,
    TailsStarted,
    ValuesLoaded,
    WorkerFailedToStart,
    WorkerUnkillable,
)
from supervise._core.verdict import judge
from supervise.messages import WorkerExited, WorkerStarted
from tests.core.stepping import decide, expired, with_tails

PID = 100


def _failed(end):
    return Gang(nprocs=end.local_rank + 1, grace_s=1.0).failed(end)


def started(rank):
    return WorkerStarted(local_rank=rank, pid=PID + rank, started_ns=rank)


def exited(rank, code=0, at=0, **more):
    return WorkerExited(local_rank=rank, pid=PID + rank, exitcode=code, ended_ns=at, **more)


def unkillable(rank):
    return WorkerUnkillable(local_rank=rank, pid=PID + rank, state="D")


def close(sig=SIGTERM, timeout_s=30.0, reason="close"):
    return CloseAsked(death_sig=sig, timeout_s=timeout_s, reason=reason)


def census(**recorded):
    return AllReaped(recorded={int(rank[1:]): at for rank, at in recorded.items()})


def run(gang, *events):
    """Tell the gang all of it; return it, and all that is to be done."""
    done = []
    for event in events:
        gang, actions = decide(gang, event)
        done += actions
    return gang, done


def running(nprocs, tails=0, **more):
    gang = with_tails(Gang(nprocs=nprocs, grace_s=30.0, window=nprocs, **more), tails)
    return run(gang, StartAsked(), *map(started, range(nprocs)))[0]


def kinds(actions):
    return [type(action) for action in actions]


# Starting


def test_a_start_launches_no_more_than_its_window_at_once():
    gang = Gang(nprocs=3, grace_s=1.0, window=2)
    gang, actions = decide(gang, StartAsked())
    assert actions == [LaunchRank(local_rank=0), LaunchRank(local_rank=1)]
    gang, actions = decide(gang, started(1))
    assert actions == [LaunchRank(local_rank=2)]
    gang, actions = run(gang, started(0))
    assert (actions, gang.phase) == ([], "starting")
    gang, actions = decide(gang, started(2))
    assert (actions, gang.phase) == ([AnswerStart()], "running")


def test_a_second_start_does_nothing():
    gang = running(2)
    assert decide(gang, StartAsked()) == (gang, [])


def test_a_failed_start_stops_those_that_run_and_the_first_error_stays():
    gang = Gang(nprocs=3, grace_s=7.0, window=3)
    first, second = (WorkerFailedToStart(local_rank=rank, error=OSError(rank, "no")) for rank in (1, 2))
    gang, actions = run(gang, StartAsked(), started(0), first, second)
    assert actions[3:] == [ReapAll()]
    gang, actions = decide(gang, census())
    assert actions == [
        SendSignal(ranks=frozenset({0}), sig=SIGTERM, escalation=0),
        SetTimer(name="grace", delay_s=7.0, only_sooner=True),
    ]
    gang, actions = decide(gang, exited(0, -15))
    assert actions == [DrainTails(), Publish(), AnswerClose()]
    assert (gang.stop.reason, gang.start_failure) == ("start_failed", first)


def test_a_rank_that_starts_while_the_gang_is_stopped_is_signaled_too():
    gang = Gang(nprocs=2, grace_s=1.0, window=2)
    gang, _ = run(gang, StartAsked(), started(0), close(SIGINT), census())
    gang, actions = decide(gang, started(1))
    assert actions == [SendSignal(ranks=frozenset({1}), sig=SIGINT, escalation=0)]
    gang, _ = run(Gang(nprocs=1, grace_s=1.0), StartAsked(), close(), census(), expired("grace"))
    gang, actions = decide(gang, started(0))
    assert actions == [
        SendSignal(ranks=frozenset({0}), sig=SIGKILL, escalation=1),
        SetTimer(name="kill", delay_s=5.0),
    ]


def test_a_rank_that_fails_before_all_run_stops_the_gang_once_all_run():
    gang = Gang(nprocs=2, grace_s=1.0, window=2)
    gang, actions = run(gang, StartAsked(), started(0), exited(0, 1), started(1))
    assert kinds(actions) == [LaunchRank, LaunchRank, AnswerStart, ReapAll]


def test_a_gang_closed_before_its_start_publishes_at_once():
    gang, actions = decide(Gang(nprocs=2, grace_s=1.0), close())
    assert actions == [DrainTails(), Publish(), AnswerClose()]
    assert judge(gang).outcome == "stopped"


# Ending


def test_a_gang_that_does_not_stop_on_failure_ends_with_its_last_rank():
    gang, actions = run(running(3, stop_on_failure=False), exited(1, 7), exited(0))
    assert actions == []
    gang, actions = decide(gang, exited(2, -9))
    assert actions == [DrainTails(), Publish(), AnswerClose()]
    assert judge(gang).blamed == (1, 2)


def test_a_failure_that_stopped_nobody_stops_the_others_when_it_is_to():
    gang, actions = run(running(3, stop_on_failure=False), exited(1, 7))
    assert decide(gang, StopOnFailure(on=False)) == (gang, [])
    gang, actions = decide(gang, StopOnFailure(on=True))
    assert (gang.phase, gang.stop.reason, actions) == ("stopping", "peer_failed", [ReapAll()])
    assert decide(gang, StopOnFailure(on=True)) == (gang, [])
    assert decide(running(1), StopOnFailure(on=True))[1] == []


def test_success_alone_signals_nobody():
    gang, actions = run(running(3), exited(2), exited(0), exited(1))
    assert actions == [DrainTails(), Publish(), AnswerClose()]
    assert judge(gang).outcome == "succeeded"


def test_nobody_is_signaled_before_the_dead_are_counted():
    gang, actions = decide(running(3), exited(1, 1))
    assert actions == [ReapAll()]
    gang, actions = decide(gang, exited(0, 1))
    assert actions == []
    gang, actions = decide(gang, census())
    assert actions == [
        SendSignal(ranks=frozenset({2}), sig=SIGTERM, escalation=0),
        SetTimer(name="grace", delay_s=30.0, only_sooner=True),
    ]


def test_the_grace_is_one_deadline_and_then_all_that_is_left_is_killed_at_once():
    gang, _ = run(running(4), exited(0, 1), census(), exited(1, -15))
    gang, actions = decide(gang, expired("grace"))
    assert actions == [
        SendSignal(ranks=frozenset({2, 3}), sig=SIGKILL, escalation=1),
        SetTimer(name="kill", delay_s=5.0),
    ]


def test_what_cannot_be_killed_is_named_and_given_up():
    gang, _ = run(running(2), exited(0, 1), census(), expired("grace"))
    gang, actions = decide(gang, expired("kill"))
    assert actions == [ReportUnkillable(ranks=frozenset({1}))]
    gang, actions = decide(gang, unkillable(1))
    assert actions == [DrainTails(), Publish(), AnswerClose()]
    assert judge(gang).roles == {0: "root_cause", 1: "lost"}
    late, actions = decide(gang, exited(1, -9))
    assert (late, Publish() in actions) == (gang, False)


@pytest.mark.parametrize("ask", [close(SIGKILL), close(timeout_s=0.0)], ids=["SIGKILL", "no-grace"])
def test_a_kill_that_is_asked_for_is_not_polite_first(ask):
    _, actions = run(running(2), ask, census())
    assert [a for a in actions if isinstance(a, SendSignal)] == [
        SendSignal(ranks=frozenset({0, 1}), sig=SIGKILL, escalation=1)
    ]


def test_a_second_close_shortens_the_grace_and_never_lengthens_it():
    gang, _ = run(running(1), close(timeout_s=10.0), census())
    assert decide(gang, close(timeout_s=20.0)) == (gang, [])
    gang, actions = decide(gang, close(timeout_s=3.0))
    assert actions == [SetTimer(name="grace", delay_s=3.0, only_sooner=True)]
    gang, actions = decide(gang, close(SIGKILL))
    assert SendSignal(ranks=frozenset({0}), sig=SIGKILL, escalation=1) in actions


def test_a_second_close_while_the_dead_are_counted_is_heard():
    _, actions = run(running(1), close(timeout_s=10.0), close(SIGKILL), census())
    assert actions[1] == SendSignal(ranks=frozenset({0}), sig=SIGKILL, escalation=1)


def test_the_first_reason_stays():
    gang, _ = run(running(2), exited(0, 1), close(), close(reason="timeout"))
    assert gang.stop.reason == "peer_failed"


def test_what_finished_ranks_left_behind_ends_at_close_politely_first():
    gang, actions = run(running(1), exited(0, group_left=True))
    assert actions == [DrainTails(), Publish()]
    gang, actions = decide(gang, close(timeout_s=2.0))
    assert actions == [
        SendSignal(ranks=frozenset({0}), sig=SIGTERM, escalation=0),
        SetTimer(name="grace", delay_s=2.0, only_sooner=True),
    ]
    gang, actions = decide(gang, GroupEmptied(local_rank=0))
    assert actions == [SweepUp(timeout_s=2.0)]
    assert decide(gang, close())[1] == [], "one sweep is enough"
    gang, actions = decide(gang, Swept())
    assert actions == [AnswerClose()]
    assert judge(gang).outcome == "succeeded"


def test_the_result_waits_for_the_logs_and_a_close_bounds_that():
    gang, actions = run(running(1, tails=2), exited(0))
    assert actions == [DrainTails()]
    gang, actions = decide(gang, close(timeout_s=4.0))
    assert SetTimer(name="drain", delay_s=4.0, only_sooner=True) in actions
    gang, actions = run(gang, census(), expired("drain"))
    assert actions == [AbandonTails()]
    gang, actions = run(gang, TailEnded(name="stdout"), TailEnded(name="stderr"))
    assert actions == [Publish(), SweepUp(timeout_s=4.0)]


def test_an_exit_while_stopping_sets_no_timer_anew():
    """The deadline is that of the first signal."""
    gang, _ = run(running(4), exited(0, 3), census())
    for rank in (1, 2):
        gang, actions = decide(gang, exited(rank, -15, group_left=rank == 2))
        assert SetTimer not in kinds(actions)


def test_a_timer_that_is_late_does_nothing():
    gang, _ = run(running(1), exited(0))
    for event in (expired("grace"), expired("kill"), expired("drain"), census()):
        after, actions = decide(gang, event)
        assert not {SendSignal, Publish, ReapAll} & set(kinds(actions)), event
        assert after.phase == "finished"


def test_what_the_core_does_not_know_is_refused():
    with pytest.raises(TypeError, match="unknown event"):
        decide(running(1), "hello")


# Return values, timers, facts


def test_the_result_waits_for_the_return_values_and_a_complaint_makes_a_failure():
    gang, _ = decide(Gang(nprocs=2, grace_s=1.0, window=2), TailsStarted(tails=1, values=True))
    gang, actions = run(gang, StartAsked(), started(0), started(1), exited(0), exited(1, has_value=True))
    assert actions[-2:] == [DrainTails(), LoadValues()]
    gang, actions = decide(gang, ValuesLoaded(complaints={1: "it could not be unpickled"}))
    assert actions == []
    gang, actions = decide(gang, TailEnded(name="stdout"))
    assert actions == [Publish(), AnswerClose()]
    assert judge(gang).blamed == (1,)


def test_no_return_values_are_loaded_for_programs():
    _, actions = run(running(1, tails=1), exited(0))
    assert actions == [DrainTails()]


def test_the_deadline_of_a_gang_stops_it_with_its_grace():
    gang, actions = decide(running(1), expired("deadline"))
    assert (gang.stop.reason, actions) == ("timeout", [ReapAll()])
    _, actions = decide(gang, census())
    assert actions[-1] == SetTimer(name="grace", delay_s=30.0, only_sooner=True)


def test_a_rank_that_is_stopped_because_of_a_peer_did_not_end_by_itself():
    gang, _ = decide(running(3, stop_on_failure=False), PeersStopped(ranks=frozenset({1, 2}), at_ns=50))
    gang, _ = decide(gang, PeersStopped(ranks=frozenset({1, 2}), at_ns=90))
    gang, _ = run(gang, exited(0, 1, at=60), exited(1, 1, at=40), exited(2, -15, at=70))
    assert judge(gang).blamed == (1, 0)
    assert judge(gang).roles[2] == "bystander"


def test_facts_say_what_has_happened():
    gang = running(2)
    end, late = exited(0, 1, at=7), exited(1, -15, at=9)
    assert core.decide(gang, end).facts == [
        RankExited(end=end, by_itself=True, started_ns=0),
        GangStopping(reason="peer_failed"),
    ]
    core.decide(gang, census())
    assert core.decide(gang, late).facts == [RankExited(end=late, by_itself=False, started_ns=1)]
    assert core.decide(gang, close()).facts == []


# Any order


@given(
    order=st.permutations(range(5)),
    codes=st.lists(st.sampled_from([0, 1, -9, None]), min_size=5, max_size=5),
    counted=st.integers(0, 5),
    late=st.lists(st.sampled_from([expired("grace"), expired("kill"), expired("drain"), census()]), max_size=4),
)
def test_any_order_finishes_once_and_blames_the_first(order, codes, counted, late):
    events = [exited(rank, codes[rank], at) for at, rank in enumerate(order)]
    events.insert(counted, census())  # the counting of the dead ends somewhere among the exits
    if not any(_failed(e) for e in events[:counted]):
        events.remove(census())  # ... if it was asked for
        counted = 5
    gang, done = run(running(5), *events, *late)
    if gang.phase == "stopping":
        gang, more = run(gang, census())
        done += more
    assert kinds(done).count(Publish) == 1
    bad = [e.local_rank for e in events[:counted] if _failed(e)]
    verdict = judge(gang)
    assert verdict.blamed == tuple(bad)
    assert verdict.outcome == ("failed" if bad else "succeeded")
    if not bad:
        assert SendSignal not in kinds(done)


@pytest.mark.parametrize("first", [[], [exited(1, 7), AllReaped(recorded={})]])
def test_a_time_limit_bounds_the_wait_for_the_logs_too(first):
    """Whether the gang is just ending well, or after a failure."""
    gang, _ = run(running(2, tails=1), *first, exited(0), *([] if first else [exited(1)]))
    assert gang.drain.begun
    gang, actions = decide(gang, close(timeout_s=4.0, reason="timeout"))
    assert SetTimer(name="drain", delay_s=4.0, only_sooner=True) in actions
    gang, actions = decide(gang, expired("drain"))
    assert AbandonTails() in actions
