"""Requests for ranks that meet a restart of all ranks: the last word about a rank counts."""

from supervise import RestartPolicy
from supervise._core.model import Gang
from supervise._core.steps import (
    AllReaped,
    AnnounceRestart,
    AnswerAsk,
    Assembled,
    FailAsks,
    Publish,
    RanksSwept,
    RestartAsked,
    SetTimer,
    StartAsked,
    Swept,
    TerminateAsked,
    TimerExpired,
    WorkerFailedToStart,
)
from supervise._core.verdict import judge
from supervise.messages import WorkerExited, WorkerStarted
from tests.core.stepping import decide, expired

BOTH, FIRST, SECOND = frozenset({0, 1}), frozenset({0}), frozenset({1})
NOT_LAUNCHED = WorkerFailedToStart(local_rank=1, error=OSError("no"), at_ns=5)


def started(rank):
    return WorkerStarted(local_rank=rank, pid=100 + rank, started_ns=0)


def exited(rank, code):
    return WorkerExited(local_rank=rank, pid=100 + rank, exitcode=code, ended_ns=1)


def run(gang, *events):
    actions = []
    for event in events:
        gang, done = decide(gang, event)
        actions += done
    return gang, actions


def running(**more):
    gang = Gang(nprocs=2, grace_s=1.0, window=1, policy=RestartPolicy(max_restarts=3), **more)
    return run(gang, StartAsked(), started(0), started(1))[0]


def in_backoff():
    gang = run(running(), exited(0, 3), AllReaped(recorded={}), exited(1, -15), Swept())[0]
    assert gang.restart_announced
    return gang


def test_a_termination_in_the_backoff_is_answered_at_once_and_the_rank_stays_down():
    gang, actions = run(in_backoff(), TerminateAsked(1, SECOND))
    assert actions == [AnswerAsk(key=1, ranks=SECOND)]
    assert run(gang, expired("backoff"))[0].left_out == SECOND


def test_a_restart_in_the_backoff_lifts_a_termination_and_ends_the_wait():
    gang, actions = run(in_backoff(), TerminateAsked(1, SECOND), RestartAsked(2, SECOND))
    assert actions[1:] == [SetTimer(name="backoff", delay_s=0.0)]
    gang, actions = run(gang, expired("backoff"), Assembled(), started(0), started(1))
    assert not gang.left_out
    assert AnswerAsk(key=2, ranks=SECOND) in actions


def test_a_termination_of_all_ranks_in_the_backoff_ends_the_gang():
    gang, actions = run(in_backoff(), TerminateAsked(1, BOTH))
    assert Publish() in actions
    assert judge(gang).outcome == "stopped"


def test_requests_during_the_stop_are_carried_out_before_the_backoff():
    """In their order, so that the termination fails only the request before it."""
    gang = run(running(), exited(0, 3))[0]
    gang = run(gang, RestartAsked(1, FIRST), TerminateAsked(2, FIRST), RestartAsked(3, FIRST))[0]
    actions = run(gang, AllReaped(recorded={}), exited(1, -15), Swept())[1]
    failed = [action.keys for action in actions if isinstance(action, FailAsks)]
    assert failed == [(1,)]
    assert AnswerAsk(key=2, ranks=FIRST) in actions
    announced = actions[-1]
    assert isinstance(announced, AnnounceRestart)
    assert announced.delay_s == 0.0


def test_a_termination_of_the_failed_rank_during_the_stop_leaves_the_restart_its_cause():
    gang = run(running(), exited(0, 3))[0]
    gang, actions = run(gang, TerminateAsked(1, FIRST), AllReaped(recorded={}), exited(1, -15), Swept())
    announced = actions[-1]
    assert isinstance(announced, AnnounceRestart)
    assert (announced.verdict.outcome, announced.verdict.blamed) == ("failed", (0,))
    assert announced.verdict.roles == {0: "root_cause", 1: "bystander"}
    assert gang.restarting == {1}


def test_an_older_request_does_not_start_a_rank_that_was_terminated_since():
    """Rank 0 had started again when it was terminated; the request still waits for rank 1, which fails to start."""
    gang = run(running(), RestartAsked(1, BOTH), exited(0, -15), exited(1, -15), RanksSwept(1))[0]
    gang = run(gang, TimerExpired(name="backoff", key=1), started(0), TerminateAsked(2, FIRST), exited(0, -15))[0]
    gang, actions = run(gang, RanksSwept(2), NOT_LAUNCHED, AllReaped(recorded={}), Swept())
    assert AnswerAsk(key=2, ranks=FIRST) in actions
    gang, actions = run(gang, expired("backoff"), Assembled(), started(1))
    assert gang.left_out == FIRST
    assert not gang.set_of
    assert AnswerAsk(key=1, ranks=BOTH) in actions


def test_a_temporary_rank_that_a_restart_of_all_cannot_launch_fails_its_request():
    """It is not tried again, so that it must not be said to run."""
    gang = run(running(kinds=("transient", "temporary")), exited(0, 3), RestartAsked(1, SECOND))[0]
    gang = run(gang, AllReaped(recorded={}))[0]
    gang.move(1, "overdue")  # its launch was pending, and nothing waits for it any more
    gang = run(gang, Swept(), expired("backoff"), Assembled(), started(0))[0]
    actions = run(gang, NOT_LAUNCHED)[1]
    assert [action.keys for action in actions if isinstance(action, FailAsks)] == [(1,)]
