"""What the core decides about roles where the order of events is known: launches, services, an ordered close."""

from signal import SIGKILL, SIGTERM

from supervise import RestartPolicy
from supervise._core.model import Gang
from supervise._core.steps import (
    AllReaped,
    CloseAsked,
    LaunchRank,
    Publish,
    RanksSwept,
    RelaunchRank,
    SendSignal,
    SetTimer,
    StartAsked,
    SweepRanks,
    TerminateAsked,
    TimerExpired,
    WorkerFailedToStart,
    WorkerUnkillable,
)
from supervise._core.verdict import judge
from supervise.messages import WorkerExited, WorkerStarted
from tests.core.stepping import decide, expired

S = 1_000_000_000


def exited(rank, code=0, at_s=1):
    return WorkerExited(local_rank=rank, pid=100 + rank, exitcode=code, ended_ns=at_s * S)


def run(gang, *events):
    """Return the gang behind the events, and all actions on them."""
    actions = []
    for event in events:
        gang, more = decide(gang, event)
        actions += more
    return gang, actions


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
    assert [gang.may_launch(rank) for rank in range(3)] == [True, True, False]


def test_a_restart_of_several_roles_is_in_their_order():
    """Also where a rank of a later role had waited before."""
    policy = RestartPolicy(max_restarts=3, backoff=0.0)
    gang = running((0, 1), policy=policy, strategy="one_for_one")
    gang, actions = run(gang, exited(1, 3), RanksSwept(1), exited(0, 3), RanksSwept(2))
    gang, actions = run(gang, TimerExpired("backoff", 2), TimerExpired("backoff", 1))
    assert [each for each in actions if isinstance(each, RelaunchRank)] == [RelaunchRank(0, 1)]
    _, actions = run(gang, WorkerFailedToStart(0, OSError("no"), 2 * S))
    assert RelaunchRank(1, 1) in actions, "a failed launch holds nobody back"


def test_services_of_terminated_clients_end_and_the_gang_was_stopped():
    gang, actions = run(
        running((0, 1), services=frozenset({0})), TerminateAsked(1, frozenset({1})), exited(1, -15), RanksSwept(1)
    )
    assert signals(actions) == [([1], SIGTERM), ([0], SIGTERM)]
    gang, actions = run(gang, exited(0, -15), RanksSwept(2))
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


def test_a_timeout_during_the_stop_of_services_does_not_turn_success_into_its_opposite():
    gang, _ = run(running((0, 1), services=frozenset({0})), exited(1), expired("deadline"), AllReaped(recorded={}))
    gang, _ = run(gang, exited(0, -15, at_s=2))
    assert (gang.phase, judge(gang).outcome) == ("finished", "succeeded")


def test_a_close_with_a_timeout_has_one_deadline_and_one_without_has_one_a_role():
    def graces(order):
        close = CloseAsked(death_sig=SIGTERM, timeout_s=9.0, order=order)
        gang, actions = run(running((0, 1)), close, AllReaped(recorded={}), exited(1, -15))
        assert signals(actions) == [([1], SIGTERM), ([0], SIGTERM)]
        after, _ = run(gang, expired("grace"))
        assert after.stop.killed == (order == "whole")
        return sum(isinstance(each, SetTimer) for each in actions)

    assert (graces("whole"), graces("each")) == (1, 2)


def test_the_grace_of_a_role_kills_that_role_only():
    close = CloseAsked(death_sig=SIGTERM, timeout_s=9.0, order="each")
    gang, actions = run(running((0, 1, 1)), close, AllReaped(recorded={}), expired("grace"), exited(1, -9))
    assert signals(actions) == [([1, 2], SIGTERM), ([1, 2], SIGKILL)]
    _, actions = run(gang, exited(2, -9))
    assert signals(actions) == [([0], SIGTERM)]


def test_a_gang_of_one_role_is_closed_at_once_whatever_the_order():
    close = CloseAsked(death_sig=SIGTERM, timeout_s=9.0, order="each")
    gang, actions = run(running((0, 0)), close, AllReaped(recorded={}))
    assert signals(actions) == [([0, 1], SIGTERM)]
    assert gang.stop.turn is None


def test_services_wait_for_the_sweep_of_the_role_above_them():
    gang, actions = run(running((0, 1, 2), services=frozenset({0, 1})), exited(2), exited(1, -15))
    assert signals(actions) == [([1], SIGTERM)]
    (sweep,) = (each for each in actions if isinstance(each, SweepRanks))
    _, actions = run(gang, RanksSwept(sweep.number))
    assert signals(actions) == [([0], SIGTERM)]
