"""When the core restarts a gang, how soon, and what always wins over a restart."""

from signal import SIGKILL, SIGTERM

import pytest

from supervise import RestartPolicy, SpecError
from supervise._core.model import Gang
from supervise._core.steps import (
    AllReaped,
    AnnounceRestart,
    Assemble,
    Assembled,
    CloseAsked,
    GroupEmptied,
    HurrySweep,
    LaunchRank,
    NotAssembled,
    Publish,
    RanksSwept,
    RelaunchRank,
    RestartAsked,
    StartAsked,
    StopOnFailure,
    SweepUp,
    Swept,
    TerminateAsked,
    TimerExpired,
    WorkerFailedToStart,
    WorkerUnkillable,
)
from supervise._core.verdict import judge
from supervise.messages import WorkerExited, WorkerStarted
from tests.core.stepping import decide, expired

S = 1_000_000_000


def started(rank=0):
    return WorkerStarted(local_rank=rank, pid=100 + rank, started_ns=0)


def exited(code, at_s=1.0, rank=0, **more):
    return WorkerExited(local_rank=rank, pid=100 + rank, exitcode=code, ended_ns=int(at_s * S), **more)


def close(reason="close"):
    return CloseAsked(death_sig=SIGTERM, timeout_s=1.0, reason=reason)


def census():
    return AllReaped(recorded={})


def gang_with(policy):
    return Gang(nprocs=1, grace_s=1.0, policy=policy)


def run(gang, *events):
    actions = []
    for event in events:
        gang, actions = decide(gang, event)
    return gang, actions


def fail(gang, at_s=1.0):
    """From the launch of an attempt to its end."""
    return run(gang, started(), exited(3, at_s), census(), Swept())


def delay_of(action):
    """Of the announcement of a restart, which always has a cause."""
    assert isinstance(action, AnnounceRestart)
    assert action.verdict.blamed
    return action.delay_s


def test_an_attempt_that_failed_is_announced_then_assembled_then_launched():
    gang, actions = fail(run(gang_with(RestartPolicy(1)), StartAsked())[0])
    assert gang.phase == "restarting"
    assert delay_of(actions[-1]) == 1.0
    gang, actions = decide(gang, expired("backoff"))
    assert actions == [Assemble()]
    assert (gang.phase, gang.attempt, gang.ends, gang.stop.reason) == ("starting", 1, (), None)
    gang, actions = decide(gang, Assembled())
    assert actions == [LaunchRank(local_rank=0)]


def test_one_failure_more_than_allowed_is_the_end():
    gang, _ = fail(run(gang_with(RestartPolicy(1)), StartAsked())[0])
    gang, _ = fail(run(gang, expired("backoff"), Assembled())[0], at_s=2.0)
    assert gang.phase == "finished"
    assert judge(gang).outcome == "failed"


def test_the_backoff_doubles_to_a_minute():
    policy = RestartPolicy(20, backoff=1.0)
    assert [policy.delay_s(n) for n in (0, 1, 2, 5, 6, 1000)] == [1.0, 2.0, 4.0, 32.0, 60.0, 60.0]


def test_restarts_count_within_the_window_only():
    gang, _ = fail(run(gang_with(RestartPolicy(1, within_s=10.0)), StartAsked())[0], at_s=100.0)
    late, actions = fail(run(gang, expired("backoff"), Assembled())[0], at_s=111.0)
    assert delay_of(actions[-1]) == 1.0, "the first one is long ago: it counts no more, nor for the delay"
    assert late.phase == "restarting"
    soon, _ = fail(run(gang, expired("backoff"), Assembled())[0], at_s=109.0)
    assert soon.phase == "finished"


@pytest.mark.parametrize("reason", ["close", "timeout"])
def test_an_end_that_was_asked_for_wins_at_any_moment(reason):
    begun, _ = run(gang_with(RestartPolicy(3)), StartAsked(), started())
    moments = {
        "while it runs": run(begun, close(reason), census(), exited(-15)),
        "while it stops after a failure": run(begun, exited(3, group_left=True), close(reason), census()),
        "while it is swept": run(begun, exited(3), census(), close(reason)),
        "while it waits": run(begun, exited(3), census(), Swept(), close(reason)),
        "while it is assembled": run(begun, exited(3), census(), Swept(), expired("backoff"), close(reason), census()),
    }
    for moment, (gang, actions) in moments.items():
        assert Publish() in actions or gang.phase == "finished", moment
        _, late = run(gang, GroupEmptied(local_rank=0), Swept(), expired("backoff"), Assembled())
        assert not any(isinstance(action, (Assemble, LaunchRank, AnnounceRestart)) for action in late), moment


def test_the_first_start_is_not_repeated_after_a_failure():
    error = WorkerFailedToStart(local_rank=0, error=OSError("no"))
    gang, _ = run(gang_with(RestartPolicy(3)), StartAsked(), error, census())
    assert gang.phase == "finished"
    assert gang.start_failure == error


def test_a_rank_of_a_later_attempt_that_cannot_be_launched_has_failed():
    """The others of the attempt are stopped, it counts and is tried again; at the end the rank is the root cause."""
    gang = Gang(nprocs=3, grace_s=1.0, policy=RestartPolicy(2))
    gang, _ = run(gang, StartAsked(), *map(started, range(3)), exited(3), census(), exited(-15, 1.5, 1))
    gang, _ = run(gang, exited(-15, 1.5, 2), Swept())
    error = WorkerFailedToStart(local_rank=1, error=OSError("no room"), at_ns=2 * S)
    gang, actions = run(gang, expired("backoff"), Assembled(), started(), error)
    assert gang.phase == "stopping"
    assert not any(isinstance(action, LaunchRank) for action in actions), "rank 2 is not launched"
    gang, actions = run(gang, census(), exited(-15, 2.5), Swept())
    assert judge(gang).roles == {0: "bystander", 1: "root_cause"}
    assert [delay_of(action) for action in actions] == [2.0]
    gang, actions = run(gang, expired("backoff"), Assembled(), started(), error, census(), exited(-15, 3.5))
    assert Publish() in actions
    assert (gang.start_failure, len(gang.restarts_ns)) == (None, 2)
    assert judge(gang).blamed == (1,)
    assert gang.ranks[1].end.complaint == "attempt 2 could not be started: no room"


def test_an_attempt_that_cannot_be_assembled_has_failed_with_its_first_rank():
    """Without a sweep, since it had no process."""
    gang, _ = fail(run(gang_with(RestartPolicy(2)), StartAsked())[0])
    gang, actions = run(gang, expired("backoff"), NotAssembled(OSError("no room"), 2 * S), census())
    assert delay_of(actions[-1]) == 2.0
    gang, actions = run(gang, expired("backoff"), NotAssembled(OSError("no room"), 3 * S), census())
    assert Publish() in actions
    assert judge(gang).blamed == (0,)
    assert gang.ranks[0].end.complaint == "attempt 2 could not be started: no room"


def test_an_attempt_without_a_terminated_rank_fails_with_the_first_that_restarts():
    gang = Gang(nprocs=2, grace_s=1.0, policy=RestartPolicy(max_restarts=1))
    gang, _ = run(gang, StartAsked(), started(0), started(1), TerminateAsked(1, frozenset({0})), exited(-15, 0.5, 0))
    gang, _ = run(gang, RanksSwept(1), exited(3, 1.0, 1), census(), Swept(), expired("backoff"))
    gang, _ = run(gang, NotAssembled(OSError("no room"), 2 * S), census())
    assert judge(gang).roles == {0: "terminated", 1: "root_cause"}


def test_a_close_while_a_later_attempt_is_launched_wins_over_a_failed_launch():
    gang, _ = fail(run(gang_with(RestartPolicy(2)), StartAsked())[0])
    gang, _ = run(gang, expired("backoff"), Assembled(), close())
    gang, actions = run(gang, WorkerFailedToStart(local_rank=0, error=OSError("no"), at_ns=2 * S), census())
    assert Publish() in actions
    assert (judge(gang).outcome, judge(gang).blamed) == ("failed", (0,))


def test_success_is_not_repeated():
    gang, actions = run(gang_with(RestartPolicy(3)), StartAsked(), started(), exited(0))
    assert Publish() in actions
    assert judge(gang).outcome == "succeeded"


def test_nothing_of_an_attempt_lives_when_the_next_is_announced():
    begun, _ = run(gang_with(RestartPolicy(3)), StartAsked(), started())
    gang, actions = run(begun, exited(3, group_left=True), census())
    assert gang.phase == "restarting"
    assert not any(isinstance(action, AnnounceRestart) for action in actions)
    assert decide(gang, expired("backoff")) == (gang, []), "an early timer is nobody's"
    gang, actions = decide(gang, GroupEmptied(local_rank=0))
    assert actions == [SweepUp(timeout_s=1.0)]
    assert decide(gang, expired("backoff")) == (gang, [])
    gang, actions = decide(gang, Swept())
    assert [delay_of(action) for action in actions] == [1.0]


def test_no_restart_beside_what_cannot_be_killed():
    begun, _ = run(gang_with(RestartPolicy(3)), StartAsked(), started())
    gang, _ = run(begun, exited(3, group_left=True), census())
    gang.stop.killed = True
    gang, actions = run(gang, expired("kill"), WorkerUnkillable(local_rank=0, pid=100, state="D"))
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
    begun, _ = run(gang_with(RestartPolicy(0)), StartAsked(), started(), exited(3), census(), close())
    assert begun.sweep.state == "asked"
    gang, actions = decide(begun, CloseAsked(death_sig=SIGTERM, timeout_s=0.5))
    assert actions == [HurrySweep(timeout_s=0.5)]
    assert decide(gang, CloseAsked(death_sig=SIGTERM, timeout_s=9.0))[1] == []
    assert decide(gang, CloseAsked(death_sig=SIGKILL, timeout_s=9.0))[1] == [HurrySweep(timeout_s=0.0)]


def test_a_close_by_sigkill_leaves_a_sweep_no_time():
    event = CloseAsked(death_sig=SIGKILL, timeout_s=30.0)
    _, actions = run(gang_with(None), StartAsked(), started(), event, census(), exited(-9))
    assert actions[-1] == SweepUp(timeout_s=0.0)


def test_a_terminated_rank_is_not_restarted_when_failures_are_heeded_again():
    """As an agent of PyTorch asks at each of its looks."""
    gang = Gang(nprocs=2, grace_s=1.0, window=2, policy=RestartPolicy(), strategy="one_for_one")
    for event in (
        StartAsked(),
        WorkerStarted(local_rank=0, pid=1, started_ns=0),
        WorkerStarted(local_rank=1, pid=2, started_ns=0),
        TerminateAsked(1, frozenset({1})),
        WorkerExited(local_rank=1, pid=2, exitcode=-15, ended_ns=1),
        RanksSwept(1),
    ):
        gang, _ = decide(gang, event)
    assert not gang.sets
    assert decide(gang, StopOnFailure(on=True))[1] == []


def test_timers_and_sweeps_of_a_restart_set_that_is_no_more_do_nothing():
    gang = Gang(nprocs=1, grace_s=1.0, policy=RestartPolicy(), strategy="one_for_one")
    for event in (StartAsked(), WorkerStarted(local_rank=0, pid=1, started_ns=0)):
        gang, _ = decide(gang, event)
    for name in ("grace", "kill", "backoff"):
        assert decide(gang, TimerExpired(name=name, key=7))[1] == []
    assert decide(gang, RanksSwept(7))[1] == []


def one_terminated():
    """Return a gang of two whose rank 1 was terminated, and whose rank 0 has failed: the next attempt is assembled."""
    gang = Gang(nprocs=2, grace_s=1.0, window=1, policy=RestartPolicy(max_restarts=5))
    return run(
        gang,
        *(StartAsked(), started(0), started(1), TerminateAsked(1, frozenset({1})), exited(-15, 0.5, 1), RanksSwept(1)),
        *(exited(3), census(), Swept(), expired("backoff"), Assembled()),
    )[0]


def test_a_terminated_rank_that_is_asked_for_while_all_restart_gets_a_new_life():
    """Its old life is not launched once more: it would be ready, and its end would be told, from the beginning."""
    gang = one_terminated()
    assert (gang.phase, gang.attempt, gang.ranks[1].attempt) == ("starting", 1, 0)
    gang, _ = decide(gang, RestartAsked(2, frozenset({1})))
    gang, actions = decide(gang, started(0))
    assert not [action for action in actions if isinstance(action, LaunchRank)]
    gang, actions = run(gang, RanksSwept(2), TimerExpired(name="backoff", key=2))
    assert [action for action in actions if isinstance(action, RelaunchRank)] == [RelaunchRank(local_rank=1, attempt=2)]
    assert not gang.ranks[1].told
    assert gang.ranks[1].end is None


def test_the_failed_launch_of_a_rank_that_was_terminated_in_an_earlier_attempt_is_its_own():
    """It stops no other rank, and no `Wait` raises."""
    gang, _ = decide(one_terminated(), started(0))
    gang, actions = run(gang, RestartAsked(2, frozenset({1})), RanksSwept(2), TimerExpired(name="backoff", key=2))
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
    gang, _ = run(gang, StartAsked(), started(0), started(1), exited(75, 0.5, 1))
    assert gang.phase == "running"
    gang, actions = run(gang, exited(3, 1.0, 0), census(), Swept())
    assert judge(gang).blamed == (0, 1)
    assert [delay_of(action) for action in actions if isinstance(action, AnnounceRestart)] == [1.0]
    gang, _ = decide(gang, expired("backoff"))
    assert len(gang.restarts_ns) == 1  # counted, by the code of rank 0
