"""The core of a gang over several hosts: its rules one by one. `test_search.py` has all orders of events."""

import copy
from dataclasses import replace
from signal import SIGINT

import pytest

from supervise._hosts import decide as steps
from supervise._hosts.decide import HostsGang, decide
from supervise.errors import SuperviseError
from supervise.restarts import RestartPolicy
from tests.hosts.world import ended, failed


def running(nnodes=2, policy=None):
    gang = HostsGang(nnodes=nnodes, policy=policy)
    decide(gang, steps.StartAsked(), 0)
    place(gang)
    return gang


def place(gang):
    decide(gang, steps.Placed(gang.epoch), 0)
    for number in range(gang.nnodes):
        last = decide(gang, steps.HostStarted(gang.epoch, number, {0: 7}), 0)
    return last


def stops(actions):
    return [action.host for action in actions if isinstance(action, steps.StopHost)]


def names(actions):
    return [type(action).__name__ for action in actions]


def test_a_start_places_then_launches_then_answers():
    gang = HostsGang(nnodes=2)
    assert decide(gang, steps.StartAsked(), 0) == [steps.Place(0)]
    assert decide(gang, steps.Placed(0), 0) == [steps.Launch(0, 0), steps.Launch(0, 1)]
    assert decide(gang, steps.HostStarted(0, 1, {0: 7}), 0) == []
    assert decide(gang, steps.HostStarted(0, 0, {0: 7}), 0) == [steps.AnswerStart(0)]


def test_a_restart_in_which_a_rank_could_not_be_launched_has_not_started():
    gang = running(policy=RestartPolicy(3))
    decide(gang, failed(0, 0), 0)
    decide(gang, steps.HostEnded(0, 0, ended()), 0)
    decide(gang, steps.HostEnded(0, 1, ended("stopped")), 0)
    decide(gang, steps.BackoffOver(1), 0)
    decide(gang, steps.Placed(1), 0)
    decide(gang, steps.HostStarted(1, 1, {0: 7}), 0)
    result = ended()
    result.ends[1] = replace(result.ends[0], local_rank=1, pid=None)
    assert names(decide(gang, steps.HostEnded(1, 0, result), 0)) == ["StopHost"]


def test_a_rank_that_was_stopped_because_of_another_one_is_not_the_cause_of_a_failed_start():
    """A rank hung; its neighbor ended first, by SIGTERM."""
    gang, result = launching(notifies=True), ended()
    decide(gang, steps.RankFailed(0, 0, replace(failed(0, 0).end, local_rank=1, exitcode=-15)), 0)
    decide(gang, steps.HostEnded(0, 0, result), 0)
    [_, end] = decide(gang, steps.HostEnded(0, 1, ended("stopped")), 0)
    assert str(end.error) == "rank 0 failed before all hosts had started: exit code 3"


@pytest.mark.parametrize("late", [0, 1])
def test_a_reply_to_a_launch_behind_the_end_of_its_ranks_answers_the_start(late: int):
    """The network does not keep the order of a reply and of the news."""
    gang = HostsGang(nnodes=2)
    decide(gang, steps.StartAsked(), 0)
    decide(gang, steps.Placed(0), 0)
    decide(gang, steps.HostStarted(0, 1 - late, {0: 7}), 0)
    assert decide(gang, steps.HostEnded(0, late, ended("succeeded")), 0) == [steps.AnswerStart(0)]
    assert gang.hosts[late].pids == {0: 7}
    assert decide(gang, steps.HostStarted(0, late, {0: 7}), 0) == []
    assert names(decide(gang, steps.HostEnded(0, 1 - late, ended("succeeded")), 0)) == ["Release", "Finish"]


def launching(notifies=False):
    gang = HostsGang(nnodes=2, notifies=notifies)
    decide(gang, steps.StartAsked(), 0)
    decide(gang, steps.Placed(0), 0)
    decide(gang, steps.HostStarted(0, 0, {0: 7}), 0)
    return gang


def test_a_failure_while_hosts_are_launched_waits_for_their_launch():
    """So all ranks have an end, and the start is no error."""
    gang = launching()
    assert decide(gang, failed(0, 0), 0) == []
    actions = decide(gang, steps.HostStarted(0, 1, {0: 7}), 0)
    assert names(actions) == ["AnswerStart", "StopHost", "StopHost"]
    assert gang.causes == [0]


def test_a_failure_before_all_ranks_have_reported_that_they_are_ready_fails_the_start():
    gang = launching(notifies=True)
    assert stops(decide(gang, failed(0, 0), 0)) == [0, 1]
    decide(gang, steps.HostEnded(0, 0, ended()), 0)
    [_, end] = decide(gang, steps.HostEnded(0, 1, ended("stopped")), 0)
    assert (end.host, str(end.error)) == (0, "rank 0 failed before all hosts had started: exit code 3")


def test_the_error_of_a_start_has_the_exception_of_the_rank_that_failed_first():
    """Its first line, on one line."""
    gang, result = launching(notifies=True), ended()
    result.failures[0].message = {"message": "ValueError: no\x07data\nand more", "extraInfo": {}}
    decide(gang, failed(0, 0), 0)
    decide(gang, steps.HostEnded(0, 0, result), 0)
    [_, end] = decide(gang, steps.HostEnded(0, 1, ended("stopped")), 0)
    assert str(end.error).endswith(": exit code 3, ValueError: nodata")


def test_a_failure_while_a_host_cannot_be_launched_stops_the_others_and_fails_the_start():
    gang, error = launching(), SuperviseError("no")
    decide(gang, failed(0, 0), 0)
    assert stops(decide(gang, steps.HostNotStarted(0, 1, error), 0)) == [0]
    assert decide(gang, steps.HostEnded(0, 0, ended()), 0)[-1] == steps.Finish(error, 1)


@pytest.mark.parametrize(
    ("outcome", "asked", "is_cause"),
    [("failed", True, True), ("failed", False, True), ("stopped", True, False), ("stopped", False, True)],
)
def test_an_end_is_a_failure_of_its_own_unless_the_host_was_asked_to_stop(outcome: str, asked: bool, is_cause: bool):
    gang = running()
    if asked:
        decide(gang, steps.CloseAsked(), 0)
    decide(gang, steps.HostEnded(0, 1, ended(outcome)), 0)
    assert gang.causes == ([1] if is_cause else [])


def test_a_loss_is_known_once_and_an_ended_host_cannot_be_lost():
    gang = running()
    assert steps.AwaitLease(0, 0) in decide(gang, steps.HostLost(0, 0, "no contact"), 0)
    assert decide(gang, steps.HostLost(0, 0, "no contact"), 0) == []
    decide(gang, steps.HostEnded(0, 1, ended("stopped")), 0)
    assert decide(gang, steps.HostLost(0, 1, "no contact"), 0) == []
    assert names(decide(gang, steps.LeaseOver(0, 0), 0)) == ["Release", "Finish"]
    assert gang.causes == [0]


def test_a_loss_before_all_have_started_is_the_error_of_the_start():
    gang = HostsGang(nnodes=2, policy=RestartPolicy())
    decide(gang, steps.StartAsked(), 0)
    decide(gang, steps.Placed(0), 0)
    assert stops(decide(gang, steps.HostLost(0, 1, "it died"), 0)) == [0]
    decide(gang, steps.HostNotStarted(0, 0, SuperviseError("stopped")), 0)
    release, finish = decide(gang, steps.LeaseOver(0, 1), 0)
    assert release == steps.Release(0)
    assert str(finish.error) == "host 1 did not start its ranks: it died"


def test_a_restart_that_cannot_be_placed_ends_the_gang_with_its_error():
    gang, error = running(1, RestartPolicy()), SuperviseError("no room")
    decide(gang, steps.HostEnded(0, 0, ended()), 0)
    decide(gang, steps.BackoffOver(1), 0)
    assert decide(gang, steps.NotPlaced(1, error), 0) == [steps.Release(1), steps.Finish(error)]


def test_a_later_attempt_that_does_not_start_counts_as_a_restart():
    gang = running(1, RestartPolicy(max_restarts=2))
    decide(gang, steps.HostEnded(0, 0, ended()), 0)
    decide(gang, steps.BackoffOver(1), 0)
    decide(gang, steps.Placed(1), 0)
    assert names(decide(gang, steps.HostNotStarted(1, 0, SuperviseError("no")), 0)) == ["Release", "Restart"]
    assert len(gang.backoff.counted_ns) == 2


def test_restarts_that_do_not_count_double_the_delay_too_and_are_never_at_once():
    """An exit code that does not count would otherwise restart without pause and without limit."""
    policy = RestartPolicy(max_restarts=1, backoff=0.5, uncounted_exit_codes=frozenset({3}))
    gang, delays = running(1, policy), []
    for epoch in range(3):
        delays.append(decide(gang, steps.HostEnded(epoch, 0, ended()), 0)[-1].delay_s)
        decide(gang, steps.BackoffOver(epoch + 1), 0)
        place(gang)
    assert delays == [0.5, 1.0, 2.0]
    gang = running(1, RestartPolicy(backoff=0.0, uncounted_exit_codes=frozenset({3})))
    assert decide(gang, steps.HostEnded(0, 0, ended()), 0)[-1].delay_s == 0.134


def test_each_restart_in_a_row_doubles_the_delay():
    gang, delays = running(1, RestartPolicy(max_restarts=3, backoff=0.5)), []
    for epoch in range(3):
        delays.append(decide(gang, steps.HostEnded(epoch, 0, ended()), 0)[-1].delay_s)
        decide(gang, steps.BackoffOver(epoch + 1), 0)
        place(gang)
    assert delays == [0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        (failed(0, 0), steps.CloseAsked(), "close"),
        (failed(0, 0), steps.TimeUp(), "timeout"),
        (steps.CloseAsked(), steps.TimeUp(), "close"),
        (steps.TimeUp(), steps.CloseAsked(), "timeout"),
        (steps.CloseAsked(), failed(0, 0), "close"),
    ],
)
def test_the_first_wish_of_the_caller_is_why_the_gang_stops(first: steps.Event, second: steps.Event, why: str):
    gang = running(policy=RestartPolicy())
    decide(gang, first, 0)
    decide(gang, second, 0)
    assert gang.stopping == why
    for number in range(2):
        last = decide(gang, steps.HostEnded(0, number, ended("stopped")), 0)
    assert names(last) == ["Release", "Finish"]


def test_the_time_limit_changes_nothing_of_a_close():
    """The hosts keep its signal and its grace."""
    gang = running()
    stops = decide(gang, steps.CloseAsked(SIGINT, 2.0), 0)
    assert stops == [steps.StopHost(0, number, SIGINT, 2.0) for number in range(2)]
    assert decide(gang, steps.TimeUp(), 0) == []


def test_success_is_the_success_of_all():
    gang = running()
    assert decide(gang, steps.HostEnded(0, 0, ended("succeeded")), 0) == []
    assert names(decide(gang, steps.HostEnded(0, 1, ended("succeeded")), 0)) == ["Release", "Finish"]
    assert gang.causes == []


def test_the_first_failure_stops_all_and_is_the_cause():
    gang = running(3)
    assert stops(decide(gang, failed(0, 1), 0)) == [0, 1, 2]
    assert decide(gang, failed(0, 0), 0) == [], "it was asked to stop before"
    for number in range(2):
        assert decide(gang, steps.HostEnded(0, number, ended()), 0) == []
    assert names(decide(gang, steps.HostEnded(0, 2, ended("stopped")), 0)) == ["Release", "Finish"]
    assert gang.causes[0] == 1


def test_a_failure_before_the_stop_is_a_cause_as_well():
    """Both hosts have reported a result of their own; the driver learned of the second later."""
    gang = running()
    decide(gang, steps.HostEnded(0, 1, ended()), 0)
    decide(gang, steps.HostEnded(0, 0, ended()), 0)
    assert gang.causes == [1, 0]


def test_a_lost_host_ends_the_attempt_when_its_lease_is_over():
    gang = running(policy=RestartPolicy(max_restarts=1))
    actions = decide(gang, steps.HostLost(0, 0, "no contact"), 0)
    assert stops(actions) == [1]
    assert steps.AwaitLease(0, 0) in actions
    assert decide(gang, steps.HostEnded(0, 1, ended("stopped")), 0) == [], "the lost host may compute"
    assert names(decide(gang, steps.LeaseOver(0, 0), 0)) == ["Release", "Restart"]


def test_the_count_of_restarts_is_that_of_the_gang():
    gang = running(policy=RestartPolicy(max_restarts=2))
    for epoch in range(2):
        decide(gang, failed(epoch, epoch), 0)
        decide(gang, steps.HostEnded(epoch, 1 - epoch, ended("stopped")), 0)
        assert names(decide(gang, steps.HostEnded(epoch, epoch, ended()), 0)) == ["Release", "Restart"]
        assert decide(gang, steps.BackoffOver(epoch + 1), 0) == [steps.Place(epoch + 1)]
        assert place(gang) == [steps.AnswerStart(epoch + 1)]
    decide(gang, steps.HostEnded(2, 0, ended()), 0)
    assert names(decide(gang, steps.HostEnded(2, 1, ended("stopped")), 0)) == ["Release", "Finish"]


@pytest.mark.parametrize(("code", "restarts", "counted"), [(75, True, 0), (9, False, 0), (3, True, 1)])
def test_exit_codes_of_the_policy(code: int, restarts: bool, counted: int):
    policy = RestartPolicy(
        max_restarts=1, uncounted_exit_codes=frozenset({75}), never_restart_exit_codes=frozenset({9})
    )
    gang = running(1, policy)
    assert ("Restart" in names(decide(gang, steps.HostEnded(0, 0, ended(code=code)), 5))) is restarts
    assert len(gang.backoff.counted_ns) == counted


def test_the_exit_code_of_a_rank_that_failed_before_the_loss_of_its_host_is_that_for_the_policy():
    gang = running(policy=RestartPolicy(never_restart_exit_codes=frozenset({7})))
    decide(gang, failed(0, 0, 7), 0)
    decide(gang, steps.HostLost(0, 0, "no contact"), 0)
    decide(gang, steps.HostEnded(0, 1, ended("stopped")), 0)
    assert names(decide(gang, steps.LeaseOver(0, 0), 0)) == ["Release", "Finish"]


def test_a_first_start_that_fails_is_an_error_and_is_not_retried():
    gang = HostsGang(nnodes=2, policy=RestartPolicy())
    decide(gang, steps.StartAsked(), 0)
    decide(gang, steps.Placed(0), 0)
    decide(gang, steps.HostStarted(0, 0, {0: 7}), 0)
    error = SuperviseError("no")
    assert stops(decide(gang, steps.HostNotStarted(0, 1, error), 0)) == [0]
    assert decide(gang, steps.HostEnded(0, 0, ended("stopped")), 0) == [steps.Release(0), steps.Finish(error, 1)]


def test_no_room_is_the_error_of_the_start():
    gang, error = HostsGang(nnodes=2), SuperviseError("no room")
    decide(gang, steps.StartAsked(), 0)
    assert decide(gang, steps.NotPlaced(0, error), 0) == [steps.Release(0), steps.Finish(error)]


@pytest.mark.parametrize("event", [steps.CloseAsked(SIGINT, 2.0), steps.TimeUp()])
@pytest.mark.parametrize("phase", ["new", "placing", "launching", "running", "backoff"])
def test_a_close_and_the_time_limit_win_at_every_moment(phase: str, event: steps.Event):
    gang = HostsGang(nnodes=1, policy=RestartPolicy())
    if phase != "new":
        decide(gang, steps.StartAsked(), 0)
    if phase in ("launching", "running", "backoff"):
        decide(gang, steps.Placed(0), 0)
    if phase in ("running", "backoff"):
        decide(gang, steps.HostStarted(0, 0, {0: 7}), 0)
    if phase == "backoff":
        decide(gang, steps.HostEnded(0, 0, ended()), 0)
    assert gang.phase == phase
    actions = decide(gang, event, 0)
    if phase in ("launching", "running"):
        assert stops(actions) == [0]
        actions = decide(gang, steps.HostEnded(0, 0, ended("stopped")), 0)
    assert isinstance(actions[-1], steps.Finish)
    assert decide(gang, steps.StartAsked(), 0) == []


def test_a_second_close_brings_its_signal_to_the_hosts():
    gang = running()
    decide(gang, steps.CloseAsked(), 0)
    assert decide(gang, steps.CloseAsked(SIGINT, 0.0), 0)[0] == steps.StopHost(0, 0, SIGINT, 0.0)


def test_events_of_an_earlier_epoch_have_no_effect():
    gang = running(1, RestartPolicy())
    decide(gang, steps.HostEnded(0, 0, ended()), 0)
    decide(gang, steps.BackoffOver(1), 0)
    place(gang)
    before = copy.deepcopy(gang)
    for event in (
        failed(0, 0),
        steps.HostEnded(0, 0, ended()),
        steps.HostLost(0, 0, ""),
        steps.Placed(0),
        steps.HostNotStarted(0, 0, SuperviseError()),
    ):
        assert decide(gang, event, 0) == []
    assert gang == before
