"""When the core restarts a gang or ranks, what wins over a restart, requests for ranks, and the order of roles."""

from signal import SIGKILL, SIGTERM

import pytest

from supervise import RestartPolicy, SpecError
from supervise._core import tree as trees
from supervise._core.model import Gang
from supervise._core.steps import (
    AllReaped,
    AnnounceRestart,
    AnnounceRestarts,
    AnswerAsk,
    AnswerClose,
    Assemble,
    Assembled,
    CloseAsked,
    FailAsks,
    GroupEmptied,
    HurrySweep,
    LaunchRank,
    NotAssembled,
    Publish,
    RankFaulted,
    RanksAsked,
    RelaunchRank,
    ReportUnkillable,
    SendSignal,
    SetTimer,
    StartAsked,
    StopOnFailure,
    SweepUp,
    Swept,
    TimerExpired,
    WorkerFailedToStart,
    WorkerUnkillable,
)
from supervise._core.verdict import judge
from supervise.messages import WorkerExited, WorkerStarted
from tests.core.stepping import decide, expired, run

S = 1_000_000_000


def started(rank=0):
    return WorkerStarted(local_rank=rank, pid=100 + rank, started_ns=0)


def ended(code, at_s=1.0, rank=0, **more):
    return WorkerExited(local_rank=rank, pid=100 + rank, exitcode=code, ended_ns=int(at_s * S), **more)


def close(reason="close"):
    return CloseAsked(death_sig=SIGTERM, timeout_s=1.0, reason=reason)


def census():
    return AllReaped(recorded={})


def gang_with(policy):
    return Gang(nprocs=1, grace_s=1.0, policy=policy)


def run_to(gang, *events):
    """Return the gang behind the events, and the actions on the last one."""
    actions = []
    for event in events:
        gang, actions = decide(gang, event)
    return gang, actions


def fail(gang, at_s=1.0):
    """From the launch of an attempt to its end."""
    return run_to(gang, started(), ended(3, at_s), census(), Swept())


def delay_of(action):
    """Of the announcement of a restart, which always has a cause."""
    assert isinstance(action, AnnounceRestart)
    assert action.verdict.blamed
    return action.delay_s


def test_an_attempt_that_failed_is_announced_then_assembled_then_launched():
    gang, actions = fail(run_to(gang_with(RestartPolicy(1)), StartAsked())[0])
    assert gang.phase == "restarting"
    assert delay_of(actions[-1]) == 1.0
    gang, actions = decide(gang, expired("backoff"))
    assert actions == [Assemble()]
    assert (gang.phase, gang.attempt, gang.ends, gang.stop.reason) == ("starting", 1, (), None)
    gang, actions = decide(gang, Assembled())
    assert actions == [LaunchRank(local_rank=0)]


def test_one_failure_more_than_allowed_is_the_end():
    gang, _ = fail(run_to(gang_with(RestartPolicy(1)), StartAsked())[0])
    gang, _ = fail(run_to(gang, expired("backoff"), Assembled())[0], at_s=2.0)
    assert gang.phase == "finished"
    assert judge(gang).outcome == "failed"


def test_the_backoff_doubles_to_a_minute():
    policy = RestartPolicy(20, backoff=1.0)
    assert [policy.delay_s(n) for n in (0, 1, 2, 5, 6, 1000)] == [1.0, 2.0, 4.0, 32.0, 60.0, 60.0]


def test_the_backoff_of_all_ranks_doubles_in_a_row_and_begins_again_after_the_window():
    """As that of one rank: restarts may be further apart than the window in total, but not each from the last."""
    gang, delays = run_to(gang_with(RestartPolicy(20, within_s=10.0)), StartAsked())[0], []
    for at_s in (1.0, 8.0, 15.0, 22.0, 33.0):
        gang, actions = fail(gang, at_s)
        delays.append(delay_of(actions[-1]))
        gang, _ = run_to(gang, expired("backoff"), Assembled())
    assert delays == [1.0, 2.0, 4.0, 8.0, 1.0]


def single(strategy, *ends):
    """Return the delay of each restart of single ranks after these ends: rank and seconds."""
    policy = RestartPolicy(20, within_s=10.0)
    gang = Gang(nprocs=2, grace_s=1.0, window=2, policy=policy, strategy=strategy)
    gang, _ = run_to(gang, StartAsked(), started(0), started(1))
    delays = []
    for rank, at_s, again in ends:
        gang, _ = run_to(gang, ended(3, at_s, rank))
        for other in sorted(gang.running & gang.batch_of.keys()):
            gang, _ = run_to(gang, ended(-15, at_s, other))
        number = max(gang.batches)
        gang, actions = decide(gang, Swept(key=number))
        delays.append(next(each.delay_s for each in actions if isinstance(each, AnnounceRestarts)))
        if again:
            gang, _ = run_to(gang, TimerExpired("backoff", number), *map(started, (0, 1)))
    return delays


def test_the_backoff_of_a_rank_begins_again_after_the_window():
    assert single("one_for_one", (0, 11.0, True), (0, 12.0, True), (0, 13.0, True), (0, 24.0, True)) == [1, 2, 4, 1]


def test_batches_that_unite_keep_the_longer_delay():
    """Rank 1 waits for its third restart when the first failure of rank 0 concerns it."""
    ends = (1, 11.0, True), (1, 12.0, True), (1, 13.0, False), (0, 14.0, True)
    assert single("rest_for_one", *ends) == [1, 2, 4, 4]


def test_a_restart_that_does_not_count_waits_a_tenth_of_a_second_whatever_the_jitter():
    policy = RestartPolicy(0, backoff=0.0, uncounted_exit_codes=frozenset({3}))
    _, actions = fail(run_to(gang_with(policy), StartAsked())[0])
    assert delay_of(actions[-1]) * 0.75 >= 0.1


def test_restarts_count_within_the_window_only():
    gang, _ = fail(run_to(gang_with(RestartPolicy(1, within_s=10.0)), StartAsked())[0], at_s=100.0)
    late, actions = fail(run_to(gang, expired("backoff"), Assembled())[0], at_s=111.0)
    assert delay_of(actions[-1]) == 1.0, "the first one is long ago: it counts no more, nor for the delay"
    assert late.phase == "restarting"
    soon, _ = fail(run_to(gang, expired("backoff"), Assembled())[0], at_s=109.0)
    assert soon.phase == "finished"


@pytest.mark.parametrize("reason", ["close", "timeout"])
def test_an_end_that_was_asked_for_wins_at_any_moment(reason):
    begun, _ = run_to(gang_with(RestartPolicy(3)), StartAsked(), started())
    moments = {
        "while it runs": run_to(begun, close(reason), census(), ended(-15)),
        "while it stops after a failure": run_to(begun, ended(3, group_left=True), close(reason), census()),
        "while it is swept": run_to(begun, ended(3), census(), close(reason)),
        "while it waits": run_to(begun, ended(3), census(), Swept(), close(reason)),
        "while it is assembled": run_to(
            begun, ended(3), census(), Swept(), expired("backoff"), close(reason), census()
        ),
    }
    for moment, (gang, actions) in moments.items():
        assert Publish() in actions or gang.phase == "finished", moment
        _, late = run_to(gang, GroupEmptied(local_rank=0), Swept(), expired("backoff"), Assembled())
        assert not any(isinstance(action, (Assemble, LaunchRank, AnnounceRestart)) for action in late), moment


def test_the_first_start_is_not_repeated_after_a_failure():
    error = WorkerFailedToStart(local_rank=0, error=OSError("no"))
    gang, _ = run_to(gang_with(RestartPolicy(3)), StartAsked(), error, census())
    assert gang.phase == "finished"
    assert gang.start_failure == error


def test_a_rank_of_a_later_attempt_that_cannot_be_launched_has_failed():
    """The others of the attempt are stopped, it counts and is tried again; at the end the rank is the root cause."""
    gang = Gang(nprocs=3, grace_s=1.0, policy=RestartPolicy(2))
    gang, _ = run_to(gang, StartAsked(), *map(started, range(3)), ended(3), census(), ended(-15, 1.5, 1))
    gang, _ = run_to(gang, ended(-15, 1.5, 2), Swept())
    error = WorkerFailedToStart(local_rank=1, error=OSError("no room"), at_ns=2 * S)
    gang, actions = run_to(gang, expired("backoff"), Assembled(), started(), error)
    assert gang.phase == "stopping"
    assert not any(isinstance(action, LaunchRank) for action in actions), "rank 2 is not launched"
    gang, actions = run_to(gang, census(), ended(-15, 2.5), Swept())
    assert judge(gang).roles == {0: "bystander", 1: "root_cause"}
    assert [delay_of(action) for action in actions] == [2.0]
    gang, actions = run_to(gang, expired("backoff"), Assembled(), started(), error, census(), ended(-15, 3.5))
    assert Publish() in actions
    assert (gang.start_failure, len(gang.backoff.counted_ns)) == (None, 2)
    assert judge(gang).blamed == (1,)
    assert gang.ranks[1].end.complaint == "attempt 2 could not be started: no room"


def test_an_attempt_that_cannot_be_assembled_has_failed_with_its_first_rank():
    """Without a sweep, since it had no process."""
    gang, _ = fail(run_to(gang_with(RestartPolicy(2)), StartAsked())[0])
    gang, actions = run_to(gang, expired("backoff"), NotAssembled(OSError("no room"), 2 * S), census())
    assert delay_of(actions[-1]) == 2.0
    gang, actions = run_to(gang, expired("backoff"), NotAssembled(OSError("no room"), 3 * S), census())
    assert Publish() in actions
    assert judge(gang).blamed == (0,)
    assert gang.ranks[0].end.complaint == "attempt 2 could not be started: no room"


def test_an_attempt_without_a_terminated_rank_fails_with_the_first_that_restarts():
    gang = Gang(nprocs=2, grace_s=1.0, policy=RestartPolicy(max_restarts=1))
    gang, _ = run_to(
        gang, StartAsked(), started(0), started(1), RanksAsked("terminate", 1, frozenset({0})), ended(-15, 0.5, 0)
    )
    gang, _ = run_to(gang, Swept(key=1), ended(3, 1.0, 1), census(), Swept(), expired("backoff"))
    gang, _ = run_to(gang, NotAssembled(OSError("no room"), 2 * S), census())
    assert judge(gang).roles == {0: "terminated", 1: "root_cause"}


def test_a_close_while_a_later_attempt_is_launched_wins_over_a_failed_launch():
    gang, _ = fail(run_to(gang_with(RestartPolicy(2)), StartAsked())[0])
    gang, _ = run_to(gang, expired("backoff"), Assembled(), close())
    gang, actions = run_to(gang, WorkerFailedToStart(local_rank=0, error=OSError("no"), at_ns=2 * S), census())
    assert Publish() in actions
    assert (judge(gang).outcome, judge(gang).blamed) == ("failed", (0,))


def test_success_is_not_repeated():
    gang, actions = run_to(gang_with(RestartPolicy(3)), StartAsked(), started(), ended(0))
    assert Publish() in actions
    assert judge(gang).outcome == "succeeded"


def test_nothing_of_an_attempt_lives_when_the_next_is_announced():
    begun, _ = run_to(gang_with(RestartPolicy(3)), StartAsked(), started())
    gang, actions = run_to(begun, ended(3, group_left=True), census())
    assert gang.phase == "restarting"
    assert not any(isinstance(action, AnnounceRestart) for action in actions)
    assert decide(gang, expired("backoff")) == (gang, []), "an early timer is nobody's"
    gang, actions = decide(gang, GroupEmptied(local_rank=0))
    assert actions == [SweepUp(timeout_s=1.0)]
    assert decide(gang, expired("backoff")) == (gang, [])
    gang, actions = decide(gang, Swept())
    assert [delay_of(action) for action in actions] == [1.0]


def test_no_restart_beside_what_cannot_be_killed():
    begun, _ = run_to(gang_with(RestartPolicy(3)), StartAsked(), started())
    gang, _ = run_to(begun, ended(3, group_left=True), census())
    gang.stop.killed = {0}
    gang, actions = run_to(gang, expired("kill"), WorkerUnkillable(local_rank=0, pid=100, state="D"))
    assert Publish() in actions


@pytest.mark.parametrize(
    "wrong",
    [
        *({"max_restarts": -1}, {"max_restarts": 1.5}, {"max_restarts": True}, {"max_restarts": "3"}),
        *({"within_s": 0}, {"within_s": "60"}, {"within_s": True}),
        *({"backoff": -1}, {"backoff": float("nan")}, {"backoff": None}, {"backoff": "1"}),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_by_name(wrong):
    with pytest.raises(SpecError, match=next(iter(wrong))):
        RestartPolicy(**wrong)


def test_a_later_close_shortens_a_sweep_that_is_under_way_and_never_lengthens_it():
    begun, _ = run_to(gang_with(RestartPolicy(0)), StartAsked(), started(), ended(3), census(), close())
    assert begun.stop.state == "sweeping"
    gang, actions = decide(begun, CloseAsked(death_sig=SIGTERM, timeout_s=0.5))
    assert actions == [HurrySweep(timeout_s=0.5)]
    assert decide(gang, CloseAsked(death_sig=SIGTERM, timeout_s=9.0))[1] == []
    assert decide(gang, CloseAsked(death_sig=SIGKILL, timeout_s=9.0))[1] == [HurrySweep(timeout_s=0.0)]


def test_a_close_by_sigkill_leaves_a_sweep_no_time():
    event = CloseAsked(death_sig=SIGKILL, timeout_s=30.0)
    _, actions = run_to(gang_with(None), StartAsked(), started(), event, census(), ended(-9))
    assert actions[-1] == SweepUp(timeout_s=0.0)


def test_a_terminated_rank_is_not_restarted_when_failures_are_heeded_again():
    """As an agent of PyTorch asks at each of its looks."""
    gang = Gang(nprocs=2, grace_s=1.0, window=2, policy=RestartPolicy(), strategy="one_for_one")
    for event in (
        StartAsked(),
        WorkerStarted(local_rank=0, pid=1, started_ns=0),
        WorkerStarted(local_rank=1, pid=2, started_ns=0),
        RanksAsked("terminate", 1, frozenset({1})),
        WorkerExited(local_rank=1, pid=2, exitcode=-15, ended_ns=1),
        Swept(key=1),
    ):
        gang, _ = decide(gang, event)
    assert not gang.batches
    assert decide(gang, StopOnFailure(on=True))[1] == []


def test_timers_and_sweeps_of_a_batch_that_is_no_more_do_nothing():
    gang = Gang(nprocs=1, grace_s=1.0, policy=RestartPolicy(), strategy="one_for_one")
    for event in (StartAsked(), WorkerStarted(local_rank=0, pid=1, started_ns=0)):
        gang, _ = decide(gang, event)
    for name in ("grace", "kill", "backoff"):
        assert decide(gang, TimerExpired(name=name, key=7))[1] == []
    assert decide(gang, Swept(key=7))[1] == []


def test_sigkill_and_its_wait_follow_the_late_start_of_a_rank_of_a_killed_batch():
    gang = Gang(nprocs=1, grace_s=1.0, policy=RestartPolicy(), strategy="one_for_one")
    gang, _ = run_to(gang, StartAsked(), started(), ended(3), Swept(key=1), TimerExpired("backoff", 1))
    gang, actions = run_to(gang, RanksAsked("restart", 1, frozenset({0})), TimerExpired("grace", 2))
    assert actions == [SetTimer(name="kill", delay_s=5.0, key=2)], "its launch is pending"
    gang, actions = decide(gang, TimerExpired("kill", 2))
    assert actions == [], "the next life waits for the launch"
    gang, actions = decide(gang, started())
    assert actions == [
        SendSignal(ranks=frozenset({0}), sig=SIGKILL),
        SetTimer(name="kill", delay_s=5.0, key=2),
    ]


def test_a_stop_signal_sigkill_leaves_ranks_that_restart_and_their_sweep_no_time():
    gang = Gang(nprocs=1, grace_s=1.0, policy=RestartPolicy(), strategy="one_for_one", stop_signal=SIGKILL)
    gang, actions = run_to(gang, StartAsked(), started(), RanksAsked("restart", 1, frozenset({0})))
    assert actions == [
        SendSignal(ranks=frozenset({0}), sig=SIGKILL),
        SetTimer(name="kill", delay_s=5.0, key=1),
    ]
    _, actions = decide(gang, ended(-9))
    assert actions == [SweepUp(timeout_s=0.0, ranks=frozenset({0}), key=1)]


def one_terminated():
    """Return a gang of two whose rank 1 was terminated, and whose rank 0 has failed: the next attempt is assembled."""
    gang = Gang(nprocs=2, grace_s=1.0, window=1, policy=RestartPolicy(max_restarts=5))
    return run_to(
        gang,
        *(
            StartAsked(),
            started(0),
            started(1),
            RanksAsked("terminate", 1, frozenset({1})),
            ended(-15, 0.5, 1),
            Swept(key=1),
        ),
        *(ended(3), census(), Swept(), expired("backoff"), Assembled()),
    )[0]


def test_a_terminated_rank_that_is_asked_for_while_all_restart_gets_a_new_life():
    """Its old life is not launched once more: it would be ready, and its end would be told, from the beginning."""
    gang = one_terminated()
    assert (gang.phase, gang.attempt, gang.ranks[1].attempt) == ("starting", 1, 0)
    gang, _ = decide(gang, RanksAsked("restart", 2, frozenset({1})))
    gang, actions = decide(gang, started(0))
    assert not [action for action in actions if isinstance(action, LaunchRank)]
    gang, actions = run_to(gang, Swept(key=2), TimerExpired(name="backoff", key=2))
    assert [action for action in actions if isinstance(action, RelaunchRank)] == [RelaunchRank(local_rank=1, attempt=2)]
    assert not gang.ranks[1].told
    assert gang.ranks[1].end is None


def test_the_failed_launch_of_a_rank_that_was_terminated_in_an_earlier_attempt_is_its_own():
    """It stops no other rank, and no `Wait` raises."""
    gang, _ = decide(one_terminated(), started(0))
    gang, actions = run_to(
        gang, RanksAsked("restart", 2, frozenset({1})), Swept(key=2), TimerExpired(name="backoff", key=2)
    )
    assert RelaunchRank(local_rank=1, attempt=2) in actions
    gang, _ = decide(gang, WorkerFailedToStart(local_rank=1, error=OSError("no room"), at_ns=3 * S))
    assert gang.start_failure is None
    assert gang.ranks[1].end is not None


@pytest.mark.parametrize("later", ["uncounted", "never"])
def test_an_earlier_failure_of_a_temporary_rank_does_not_cause_the_restart_of_all(later):
    """Its exit code neither forbids nor excuses the restart, and it is not the root cause."""
    codes = {"uncounted": {"uncounted_exit_codes": {75}}, "never": {"never_restart_exit_codes": {75}}}[later]
    policy = RestartPolicy(max_restarts=1, **{name: frozenset(value) for name, value in codes.items()})
    gang = Gang(nprocs=2, grace_s=1.0, window=2, policy=policy, kinds=("transient", "temporary"))
    gang, _ = run_to(gang, StartAsked(), started(0), started(1), ended(75, 0.5, 1))
    assert gang.phase == "running"
    gang, actions = run_to(gang, ended(3, 1.0, 0), census(), Swept())
    assert judge(gang).blamed == (0, 1)
    assert [delay_of(action) for action in actions if isinstance(action, AnnounceRestart)] == [1.0]
    gang, _ = decide(gang, expired("backoff"))
    assert len(gang.backoff.counted_ns) == 1  # counted, by the code of rank 0


BOTH, FIRST, SECOND = frozenset({0, 1}), frozenset({0}), frozenset({1})
NOT_LAUNCHED = WorkerFailedToStart(local_rank=1, error=OSError("no"), at_ns=5)


def exited(rank, code=0, at_s=1):
    return ended(code, at_s, rank)


def running_pair(**more):
    gang = Gang(nprocs=2, grace_s=1.0, window=1, policy=RestartPolicy(max_restarts=3), **more)
    return run(gang, StartAsked(), started(0), started(1))[0]


def in_backoff():
    gang = run(running_pair(), exited(0, 3), AllReaped(recorded={}), exited(1, -15), Swept())[0]
    assert gang.restart_announced
    return gang


def test_a_termination_in_the_backoff_is_answered_at_once_and_the_rank_stays_down():
    gang, actions = run(in_backoff(), RanksAsked("terminate", 1, SECOND))
    assert actions == [AnswerAsk(key=1, ranks=SECOND)]
    assert run(gang, expired("backoff"))[0].left_out == SECOND


def test_a_restart_in_the_backoff_lifts_a_termination_and_ends_the_wait():
    gang, actions = run(in_backoff(), RanksAsked("terminate", 1, SECOND), RanksAsked("restart", 2, SECOND))
    assert actions[1:] == [SetTimer(name="backoff", delay_s=0.0)]
    gang, actions = run(gang, expired("backoff"), Assembled(), started(0), started(1))
    assert not gang.left_out
    assert AnswerAsk(key=2, ranks=SECOND) in actions


def test_a_termination_of_all_ranks_in_the_backoff_ends_the_gang():
    gang, actions = run(in_backoff(), RanksAsked("terminate", 1, BOTH))
    assert Publish() in actions
    assert judge(gang).outcome == "stopped"


def test_requests_during_the_stop_are_carried_out_before_the_backoff():
    """In their order, so that the termination fails only the request before it."""
    gang = run(running_pair(), exited(0, 3))[0]
    gang = run(
        gang, RanksAsked("restart", 1, FIRST), RanksAsked("terminate", 2, FIRST), RanksAsked("restart", 3, FIRST)
    )[0]
    actions = run(gang, AllReaped(recorded={}), exited(1, -15), Swept())[1]
    failed = [action.keys for action in actions if isinstance(action, FailAsks)]
    assert failed == [(1,)]
    assert AnswerAsk(key=2, ranks=FIRST) in actions
    announced = actions[-1]
    assert isinstance(announced, AnnounceRestart)
    assert announced.delay_s == 0.0


def test_a_termination_of_the_failed_rank_during_the_stop_leaves_the_restart_its_cause():
    gang = run(running_pair(), exited(0, 3))[0]
    gang, actions = run(gang, RanksAsked("terminate", 1, FIRST), AllReaped(recorded={}), exited(1, -15), Swept())
    announced = actions[-1]
    assert isinstance(announced, AnnounceRestart)
    assert (announced.verdict.outcome, announced.verdict.blamed) == ("failed", (0,))
    assert announced.verdict.roles == {0: "root_cause", 1: "bystander"}
    assert gang.restarting == {1}


def test_an_older_request_does_not_start_a_rank_that_was_terminated_since():
    """Rank 0 had started again when it was terminated; the request still waits for rank 1, which another one restarts.

    Rank 1 fails to start, which is the answer to the request.
    """
    gang = run(running_pair(), RanksAsked("restart", 1, BOTH), exited(0, -15), exited(1, -15), Swept(key=1))[0]
    gang = run(
        gang, TimerExpired(name="backoff", key=1), started(0), RanksAsked("terminate", 2, FIRST), exited(0, -15)
    )[0]
    gang, actions = run(gang, Swept(key=2), NOT_LAUNCHED, AllReaped(recorded={}), Swept())
    assert AnswerAsk(key=2, ranks=FIRST) in actions
    assert FailAsks(keys=(1,), why="rank 1 did not become ready again", cause=1) in actions
    gang, actions = run(gang, expired("backoff"), Assembled(), started(1))
    assert gang.left_out == FIRST
    assert not gang.batch_of


@pytest.mark.parametrize("strategy", ["one_for_one", "rest_for_one", "one_for_all"])
def test_a_rank_that_fails_again_before_it_is_ready_fails_the_request_that_has_started_it(strategy):
    """The policy starts it again and again, so there may never be another answer."""
    gang = running_pair(strategy=strategy)
    gang = run(gang, RanksAsked("restart", 1, SECOND), exited(1, -15), Swept(key=1))[0]
    gang, actions = run(gang, TimerExpired(name="backoff", key=1), NOT_LAUNCHED._replace(attempt=1))
    failed = [(action.keys, action.why) for action in actions if isinstance(action, FailAsks)]
    assert failed == [((1,), "rank 1 did not become ready again")]
    assert gang.phase == ("stopping" if strategy == "one_for_all" else "running")
    assert gang.policy is not None


def test_a_request_in_the_backoff_waits_for_the_next_life_and_for_no_later_one():
    gang = run(running_pair(strategy="one_for_one"), exited(1, 3), Swept(key=1))[0]
    gang, actions = run(gang, RanksAsked("restart", 1, SECOND))
    assert not [action for action in actions if isinstance(action, FailAsks)]
    actions = run(gang, TimerExpired(name="backoff", key=1), NOT_LAUNCHED._replace(attempt=1))[1]
    assert [action.keys for action in actions if isinstance(action, FailAsks)] == [(1,)]


def test_a_request_during_the_first_start_outlives_a_rank_that_fails_meanwhile():
    """It is carried out after the start."""
    policy = RestartPolicy(max_restarts=3)
    gang = Gang(
        nprocs=2, grace_s=1.0, window=2, policy=policy, strategy="one_for_one", kinds=("temporary", "transient")
    )
    gang, actions = run(gang, StartAsked(), started(0), RanksAsked("restart", 1, FIRST), exited(0, 3), started(1))
    assert not [action for action in actions if isinstance(action, FailAsks)]
    (number,) = gang.batches
    gang, actions = run(gang, Swept(key=number), TimerExpired("backoff", number), started(0))
    assert AnswerAsk(key=1, ranks=FIRST) in actions


def test_a_restart_of_all_that_fails_again_fails_the_requests_that_wait_for_it():
    """Also if it is another rank that has failed."""
    gang = run(in_backoff(), RanksAsked("restart", 1, FIRST))[0]
    gang, actions = run(gang, expired("backoff"), Assembled(), started(0), NOT_LAUNCHED._replace(attempt=1))
    failed = [(action.keys, action.why) for action in actions if isinstance(action, FailAsks)]
    assert failed == [((1,), "rank 0 did not become ready again")]


def test_a_temporary_rank_that_a_restart_of_all_cannot_launch_fails_its_request():
    """It is not tried again, so that it must not be said to run."""
    gang = run(running_pair(kinds=("transient", "temporary")), exited(0, 3), RanksAsked("restart", 1, SECOND))[0]
    gang = run(gang, AllReaped(recorded={}))[0]
    gang.move(1, "overdue")  # its launch was pending, and nothing waits for it any more
    gang = run(gang, Swept(), expired("backoff"), Assembled(), started(0))[0]
    actions = run(gang, NOT_LAUNCHED)[1]
    failed = [(action.keys, action.why) for action in actions if isinstance(action, FailAsks)]
    assert failed == [((1,), "rank 1 ended, and will not restart")]


@pytest.mark.parametrize("policy", [None, RestartPolicy(max_restarts=0)])
def test_a_request_that_the_failure_of_another_rank_ends_names_that_rank(policy):
    gang = Gang(
        nprocs=2, grace_s=1.0, window=2, policy=policy, strategy="one_for_all" if policy is None else "one_for_one"
    )
    gang, actions = run(gang, StartAsked(), started(0), started(1), RanksAsked("restart", 1, SECOND), exited(0, 3))
    assert FailAsks(keys=(1,), why="the gang ends first", cause=0) in actions
    gang, actions = run(gang, RanksAsked("restart", 2, SECOND))
    assert actions == []
    assert FailAsks(keys=(2,), why="the gang ends first") in decide(gang, close())[1]


def test_a_termination_is_answered_although_a_later_request_starts_the_rank_again():
    gang, _ = run(
        running_pair(strategy="one_for_one"),
        RanksAsked("terminate", 1, FIRST),
        RanksAsked("restart", 2, FIRST),
        exited(0, -15),
    )
    number = max(gang.batches)
    gang, actions = run(gang, Swept(key=number))
    assert AnswerAsk(key=1, ranks=FIRST) in actions
    gang, actions = run(gang, TimerExpired("backoff", number), started(0))
    assert AnswerAsk(key=2, ranks=FIRST) in actions


def running(role_of, **more):
    gang, _ = run(
        Gang(nprocs=len(role_of), grace_s=9.0, window=8, role_of=role_of, **more),
        StartAsked(),
        *(WorkerStarted(local_rank=rank, pid=100 + rank, started_ns=0) for rank in range(len(role_of))),
    )
    assert gang.phase == "running"
    return gang


def signals(actions):
    return [(sorted(each.ranks), each.sig) for each in actions if isinstance(each, SendSignal)]


def test_a_role_is_launched_when_every_rank_of_the_one_before_it_runs():
    gang, actions = run(Gang(nprocs=4, grace_s=1.0, window=8, role_of=(0, 0, 1, 1)), StartAsked())
    assert actions == [LaunchRank(0), LaunchRank(1)]
    gang, actions = run(gang, WorkerStarted(local_rank=1, pid=1, started_ns=0))
    assert actions == []
    _, actions = run(gang, WorkerStarted(local_rank=0, pid=1, started_ns=0))
    assert actions == [LaunchRank(2), LaunchRank(3)]


def test_a_rank_that_is_not_ready_holds_back_the_roles_above_it_and_no_rank_of_its_own():
    gang = running((0, 0, 1))
    gang.unready.add(0)
    assert [gang.may_launch(role) for role in range(2)] == [True, False]


def test_a_restart_of_several_roles_is_in_their_order():
    """Also where a rank of a later role had waited before."""
    policy = RestartPolicy(max_restarts=3, backoff=0.0)
    gang = running((0, 1), policy=policy, strategy="one_for_one")
    gang, actions = run(gang, exited(1, 3), Swept(key=1), exited(0, 3), Swept(key=2))
    gang, actions = run(gang, TimerExpired("backoff", 2), TimerExpired("backoff", 1))
    assert [each for each in actions if isinstance(each, RelaunchRank)] == [RelaunchRank(0, 1)]
    _, actions = run(gang, WorkerFailedToStart(0, OSError("no"), 2 * S))
    assert RelaunchRank(1, 1) in actions, "a failed launch holds nobody back"


def test_services_of_terminated_clients_end_and_the_gang_was_stopped():
    gang, actions = run(
        running((0, 1), services=frozenset({0})),
        RanksAsked("terminate", 1, frozenset({1})),
        exited(1, -15),
        Swept(key=1),
    )
    assert signals(actions) == [([1], SIGTERM), ([0], SIGTERM)]
    gang, actions = run(gang, exited(0, -15), Swept(key=2))
    assert Publish() in actions
    assert judge(gang).outcome == "stopped"


def test_a_service_that_outlives_sigkill_is_no_success():
    gang, actions = run(
        running((0, 1), services=frozenset({0})),
        exited(1),
        TimerExpired("grace", 1),
        TimerExpired("kill", 1),
        WorkerUnkillable(local_rank=0, pid=100, state="D"),
        AllReaped(recorded={}),
    )
    assert Publish() in actions
    assert judge(gang).outcome == "stopped"
    assert judge(gang).blamed == (0,)


@pytest.mark.parametrize("swept", [False, True], ids=["swept later", "in its backoff"])
def test_a_service_that_hung_and_may_restart_is_no_failure_once_its_clients_have_succeeded(swept):
    policy = RestartPolicy(max_restarts=1, backoff=60.0)
    gang = running((0, 1), services=frozenset({0}), strategy="one_for_one", policy=policy)
    gang, _ = run(gang, RankFaulted(0, 0, "it hangs", S), exited(0, -15), *[Swept(key=1)][:swept])
    gang, actions = run(gang, exited(1, at_s=2), Swept(key=1), Swept(key=2))
    assert Publish() in actions
    assert (judge(gang).outcome, judge(gang).roles) == ("succeeded", {0: "bystander", 1: "finished"})


def test_a_service_that_was_not_to_restart_is_a_failure_although_it_ends_beside_one_that_serves():
    policy = RestartPolicy(max_restarts=1, backoff=60.0)
    kinds = ("temporary", "permanent", "transient")
    gang = running((0, 0, 1), services=frozenset({0, 1}), strategy="one_for_one", policy=policy, kinds=kinds)
    gang, _ = run(gang, RankFaulted(0, 0, "it hangs", S), exited(2))
    gang, actions = run(gang, exited(0, -15), exited(1, -15), *(Swept(key=number) for number in range(1, 4)))
    assert Publish() in actions
    assert judge(gang).roles == {0: "root_cause", 1: "bystander", 2: "finished"}


def test_a_timeout_during_the_stop_of_services_does_not_turn_success_into_its_opposite():
    gang, _ = run(running((0, 1), services=frozenset({0})), exited(1), expired("deadline"), AllReaped(recorded={}))
    gang, _ = run(gang, exited(0, -15, at_s=2))
    assert (gang.phase, judge(gang).outcome) == ("finished", "succeeded")


def test_a_close_with_a_timeout_has_one_deadline_and_one_without_has_one_a_role():
    def graces(order):
        close = CloseAsked(death_sig=SIGTERM, timeout_s=9.0, order=order)
        _, actions = run(running((0, 1)), close, AllReaped(recorded={}), exited(1, -15))
        assert signals(actions) == [([1], SIGTERM), ([0], SIGTERM)]
        grace = TimerExpired("grace", role=1 if order == "each" else None)
        _, killed = run(running((0, 1)), close, AllReaped(recorded={}), grace)
        assert signals(killed)[1:] == [([0, 1] if order == "whole" else [1], SIGKILL)]
        return sum(isinstance(each, SetTimer) for each in actions)

    assert (graces("whole"), graces("each")) == (1, 2)


def test_a_second_equal_close_does_not_end_the_order_of_a_stop():
    close = CloseAsked(death_sig=SIGTERM, timeout_s=9.0, order="whole")
    gang, _ = run(running((0, 1)), close, AllReaped(recorded={}))
    gang, actions = run(gang, close)
    assert signals(actions) == []
    gang, actions = run(gang, close._replace(timeout_s=8.0))
    assert signals(actions) == [([0], SIGTERM)]


def test_the_grace_of_a_role_kills_that_role_only():
    close = CloseAsked(death_sig=SIGTERM, timeout_s=9.0, order="each")
    gang, actions = run(running((0, 1, 1)), close, AllReaped(recorded={}), TimerExpired("grace", role=1), exited(1, -9))
    assert signals(actions) == [([1, 2], SIGTERM), ([1, 2], SIGKILL)]
    _, actions = run(gang, exited(2, -9))
    assert signals(actions) == [([0], SIGTERM)]


def test_a_gang_of_one_role_is_closed_at_once_whatever_the_order():
    close = CloseAsked(death_sig=SIGTERM, timeout_s=9.0, order="each")
    gang, actions = run(running((0, 0)), close, AllReaped(recorded={}))
    assert signals(actions) == [([0, 1], SIGTERM)]
    assert not gang.stop.order


def test_services_wait_for_the_sweep_of_the_role_above_them():
    gang, actions = run(running((0, 1, 2), services=frozenset({0, 1})), exited(2), exited(1, -15))
    assert signals(actions) == [([1], SIGTERM)]
    (sweep,) = (each for each in actions if isinstance(each, SweepUp))
    _, actions = run(gang, Swept(key=sweep.key))
    assert signals(actions) == [([0], SIGTERM)]


def test_a_child_that_is_terminated_in_its_backoff_hands_the_backoff_to_the_next_of_its_set():
    tree = trees.Tree(
        "one_for_all", RestartPolicy(backoff=4.0), {name: trees.Child(name, "transient") for name in "ab"}
    )
    actions = []
    for event in (
        trees.StartAsked(),
        trees.LifeChanged("a", 1, "ready"),
        trees.LifeChanged("b", 1, "ready"),
        trees.Ended("a", 1, normal=False),
        trees.LifeChanged("a", 1, "gone"),
        trees.LifeChanged("b", 1, "gone"),
    ):
        actions = trees.decide(tree, event)
    assert trees.SetBackoff("a", 4.0) in actions
    assert trees.SetBackoff("b", 4.0) in trees.decide(tree, trees.Asked(1, "a", "terminate"))
    assert trees.decide(tree, trees.BackoffExpired("b")) == [trees.Start("b", 2)]


def test_the_wait_after_sigkill_is_that_of_each_role():
    """A later SIGKILL to another role does not delay the report of a rank that has survived its own."""
    close = CloseAsked(death_sig=SIGTERM, timeout_s=9.0, order="own")
    gang = running((0, 1, 1), graces_s={0: 2.0})
    gang, actions = run(gang, close, AllReaped(recorded={}), TimerExpired("grace", role=0))
    assert waits(actions) == [0]
    gang, actions = run(gang, TimerExpired("grace", role=1))
    assert waits(actions) == [1]
    gang, actions = run(gang, TimerExpired("kill", role=0))
    assert [each.ranks for each in actions if isinstance(each, ReportUnkillable)] == [frozenset({0})]
    gang, actions = run(gang, WorkerUnkillable(local_rank=0, pid=100, state="D"), exited(1, -9))
    gang, actions = run(gang, TimerExpired("kill", role=1))
    assert [each.ranks for each in actions if isinstance(each, ReportUnkillable)] == [frozenset({2})]


def waits(actions):
    """Return the roles whose wait after SIGKILL begins."""
    return [each.role for each in actions if isinstance(each, SetTimer) and each.name == "kill"]


def test_a_sweep_that_others_follow_ends_neither_a_batch_nor_the_gang():
    """The roles have different containment, so that several searches answer one request."""
    gang, _ = run(running_pair(), RanksAsked("restart", 1, FIRST), exited(0, -15))
    gang, actions = run(gang, Swept(leaked={0: (7,)}, key=1, last=False))
    assert actions == []
    _, actions = run(gang, Swept(key=1))
    assert [type(each) for each in actions] == [AnnounceRestarts]
    gang, _ = run(running_pair(), close(), AllReaped(recorded={}), exited(0, -15), exited(1, -15))
    gang, actions = run(gang, Swept(last=False))
    assert actions == []
    assert AnswerClose() in run(gang, Swept())[1]
