"""A real Supervisor over fake processes: every message and its reply, whoever asks and whenever."""

import errno
import signal
from signal import SIGINT, SIGKILL, SIGTERM, SIGUSR1

import numpy as np
import pykka
import pytest

from supervise import (
    Close,
    GangStatus,
    Pids,
    Poll,
    RankStatus,
    RestartRanks,
    Signal,
    SpawnError,
    SpecError,
    Start,
    Status,
    Subscribe,
    TerminateRanks,
    UnkillableError,
    Unsubscribe,
    Wait,
)
from supervise.testing import FakeGang, FakeLauncher
from tests.patience import PATIENCE_S


def ask(gang, message):
    return gang.supervisor.ask(message, timeout=PATIENCE_S)


def later(gang, message):
    return gang.supervisor.ask(message, block=False)


def closing(gang, **how):
    """Ask for the close, and return once it is under way."""
    reply = later(gang, Close(**how))
    gang.events.wait_for("supervise.gang.stopping")
    return reply


# Every message


def test_start_answers_the_pids_once_every_rank_runs():
    with FakeGang(3) as gang:
        assert ask(gang, Pids()) == {}
        pids = ask(gang, Start())
        assert pids == {rank: gang.processes[rank].pid for rank in range(3)}
        assert ask(gang, Pids()) == pids


def test_a_second_start_is_an_error_and_harms_nothing():
    with FakeGang(1) as gang:
        ask(gang, Start())
        with pytest.raises(SpecError, match="was started or closed before"):
            ask(gang, Start())
        gang.processes[0].exit(0)
        assert ask(gang, Wait()).outcome == "succeeded"


def test_wait_answers_when_all_have_ended_and_poll_says_none_before():
    with FakeGang(2) as gang:
        ask(gang, Start())
        early = later(gang, Wait())
        gang.processes[0].exit(0)
        gang.events.wait_for("supervise.process.exited")
        assert ask(gang, Poll()) is None
        gang.processes[1].exit(0)
        result = early.get(timeout=PATIENCE_S)
        assert (result.outcome, result.return_values, result.is_failed()) == ("succeeded", {0: None, 1: None}, False)
        assert ask(gang, Wait()) is result
        assert ask(gang, Poll()) is result
        assert gang.processes[0].signals == gang.processes[1].signals == []  # success signals nobody


def test_a_wait_may_come_before_the_start():
    with FakeGang(1) as gang:
        early = later(gang, Wait())
        ask(gang, Start())
        gang.processes[0].exit(0)
        assert early.get(timeout=PATIENCE_S).outcome == "succeeded"


def test_a_wait_with_a_timeout_answers_none_and_is_forgotten():
    with FakeGang(1) as gang:
        ask(gang, Start())
        assert ask(gang, Wait(timeout=0)) is None
        assert ask(gang, Wait(timeout=0.01)) is None
        assert ask(gang, Status()).waiters == 0


def test_an_asker_that_gives_up_harms_nobody():
    with FakeGang(1) as gang:
        ask(gang, Start())
        with pytest.raises(pykka.Timeout):
            gang.supervisor.ask(Wait(), timeout=0.01)
        gang.processes[0].exit(0)
        assert ask(gang, Wait()).outcome == "succeeded"


def _rows(pids, state):
    return {
        rank: RankStatus(pid=pids.get(rank), state=state, attempt=0, restarts=0, role="fake", role_rank=rank)
        for rank in (0, 1)
    }


def test_status_says_what_is_the_case():
    with FakeGang(2, launchers={1: FakeLauncher(held=True)}) as gang:
        assert ask(gang, Status()) == GangStatus(
            phase="new", pids={}, running=frozenset(), leftovers=frozenset(), waiters=0, ranks=_rows({}, "waiting")
        )
        starting = later(gang, Start())
        assert gang.launchers[1].asked.wait(PATIENCE_S)
        assert ask(gang, Status()).phase == "starting"
        gang.launchers[1].release()
        pids = starting.get(timeout=PATIENCE_S)
        waiting = later(gang, Wait())
        status = ask(gang, Status())
        assert status == GangStatus(
            phase="running",
            pids=pids,
            running=frozenset({0, 1}),
            leftovers=frozenset(),
            waiters=1,
            ranks=_rows(pids, "ready"),
        )
        gang.processes[0].exit(0, group_left=True)
        gang.processes[1].exit(0)
        waiting.get(timeout=PATIENCE_S)
        status = ask(gang, Status())
        assert (status.phase, status.running, status.leftovers) == ("finished", frozenset(), frozenset({0}))


def test_signal_reaches_running_ranks_and_stops_nobody():
    with FakeGang(3) as gang:
        ask(gang, Start())
        for process in gang.processes.values():
            process.ignored.add(SIGUSR1)
        gang.processes[0].exit(0)
        gang.events.wait_for("supervise.process.exited")
        assert ask(gang, Signal(sig=SIGUSR1)) == frozenset({1, 2})
        assert ask(gang, Signal(sig=SIGUSR1, ranks=frozenset({0, 2}))) == frozenset({2})
        gang.processes[2].wait_for_signal(SIGUSR1)
        assert ask(gang, Status()).phase == "running"
        assert gang.processes[0].signals == []
        with pytest.raises(SpecError, match=r"\[7\]"):
            ask(gang, Signal(sig=SIGUSR1, ranks=frozenset({0, 7})))


def test_a_user_signal_that_kills_is_the_rank_s_own_failure():
    with FakeGang(2) as gang:
        ask(gang, Start())
        ask(gang, Signal(sig=SIGUSR1, ranks=frozenset({1})))
        result = ask(gang, Wait())
        assert (result.outcome, result.root_cause, result.failures[1].exitcode) == ("failed", 1, -SIGUSR1)


def test_a_rank_that_a_request_restarts_gets_another_process():
    with FakeGang(2) as gang:
        pids = ask(gang, Start())
        first = gang.processes[0]
        assert ask(gang, RestartRanks({0})) == {0: gang.processes[0].pid}
        assert first.signals[0] == SIGTERM
        assert gang.processes[0].pid not in pids.values()
        assert ask(gang, TerminateRanks({1})).keys() == {1}
        assert ask(gang, RestartRanks({1})) == {1: gang.processes[1].pid}
        for process in gang.processes.values():
            process.exit(0)
        assert ask(gang, Wait()).outcome == "succeeded"
    lives = [(it["rank"], it.get("attempt", 0)) for it in gang.events.named("supervise.process.started")]
    assert sorted(lives) == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"nprocs": 0}, "nprocs is 0; give a whole number, 1 or more"),
        ({"nprocs": 2, "window": "x"}, "window is 'x'; give a whole number, 1 or more"),
        ({"nprocs": 2, "window": 0}, "window is 0; give"),
        ({"name": 3}, "name is 3; give a text"),
        ({"event_sink": 5}, "event_sink is 5; give"),
        ({"launchers": [FakeLauncher()]}, "give a mapping of local rank to FakeLauncher"),
        ({"launchers": {0: 5}}, "launchers is {0: 5}; give a mapping of local rank to FakeLauncher"),
        ({"nprocs": 2, "launchers": {5: FakeLauncher()}}, r"launchers has the ranks \[5\]; the ranks are 0 to 1"),
        ({"nprocs": 2, "launchers": dict.fromkeys((0, 1), FakeLauncher())}, "has one launcher for two ranks"),
    ],
)
def test_a_fake_gang_that_could_not_run_is_refused(settings, told):
    with pytest.raises(SpecError, match=told):
        FakeGang(**settings)


def test_a_fake_gang_is_entered_once():
    with FakeGang(1) as gang:
        pass
    with pytest.raises(SpecError, match="was entered before"), gang:
        pass


@pytest.mark.parametrize("code", [256, -65, 1.5, "x", None, True])
def test_a_fake_process_ends_with_an_exit_code(code):
    with FakeGang(1) as gang:
        ask(gang, Start())
        with pytest.raises(SpecError, match="give an exit code: 0 to 255, or -N for signal N"):
            gang.processes[0].exit(code)
        assert not gang.processes[0].ended


def test_close_stops_politely_and_answers_the_result():
    with FakeGang(2) as gang:
        ask(gang, Start())
        result = ask(gang, Close())
        assert (result.outcome, sorted(result.failures)) == ("stopped", [0, 1])
        assert {end.exitcode for end in result.ends.values()} == {-SIGTERM}
        for process in gang.processes.values():
            assert SIGTERM in process.signals
            assert SIGKILL not in process.signals
        assert ask(gang, Close()) is result
        assert ask(gang, Wait()) is result


def test_close_with_another_signal():
    with FakeGang(1) as gang:
        ask(gang, Start())
        assert ask(gang, Close(death_sig=SIGINT)).failures[0].exitcode == -SIGINT


def test_close_before_the_start_ends_the_gang():
    with FakeGang(2) as gang:
        assert ask(gang, Close()).outcome == "stopped"
        assert ask(gang, Wait()).outcome == "stopped"
        with pytest.raises(SpecError):
            ask(gang, Start())
        assert gang.processes == {}


@pytest.mark.parametrize("bad", [-1, float("nan"), float("inf")])
def test_a_close_with_a_senseless_timeout_is_the_asker_s_mistake(bad):
    with FakeGang(1) as gang:
        ask(gang, Start())
        with pytest.raises(SpecError, match="timeout is"):
            ask(gang, Close(timeout=bad))
        assert ask(gang, Status()).phase == "running"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("hey", "a Supervisor does not accept 'hey'; send it Start"),
        (Start, r"the message is the class Start; send an instance: Start\("),
        (None, "a Supervisor does not accept None"),
        (Wait(timeout="soon"), "timeout is 'soon'; it is a number of seconds, 0 or more"),
        (Wait(timeout=True), "timeout is True"),
        (Wait(timeout=1e300), r"timeout is 1e\+300; it is a number of seconds, 0 or more, at most 9\.2"),
        (Wait(timeout=10**400), "timeout is 1000"),
        (Close(timeout=1e300), r"timeout is 1e\+300"),
        (Close(timeout="1"), "timeout is '1'"),
        (Close(death_sig="KILL"), "death_sig is 'KILL'; give a signal, such as signal.SIGTERM"),
        (Signal(sig="x"), "sig is 'x'; give a signal"),
        (Signal(sig=4711), "sig is 4711"),
        (Signal(sig=True), "sig is True"),
        (Close(death_sig=True), "death_sig is True"),
        (Signal(sig=SIGUSR1, ranks=0), "ranks is 0; give a set of local ranks"),
        (Signal(sig=SIGUSR1, ranks={0, 7, "a"}), r"\['a', 7\] are not in this gang"),
        (Signal(sig=SIGUSR1, ranks={0.0}), r"ranks \[0\.0\] are not in this gang"),
        (RestartRanks({0.0}), r"ranks \[0\.0\] are not in this gang"),
        (TerminateRanks({0.0}), r"ranks \[0\.0\] are not in this gang"),
        (Subscribe(ref=3), "ref is 3; give the ref of an actor"),
        (Unsubscribe(ref=None), "ref is None"),
    ],
)
def test_a_message_that_makes_no_sense_is_an_error_to_its_asker_and_a_warning_when_told(wrong, why, caplog):
    """And harms nobody: the gang runs on."""
    with FakeGang(1) as gang:
        ask(gang, Start())
        with pytest.raises(SpecError, match=why):
            ask(gang, wrong)
        gang.supervisor.tell(wrong)
        assert ask(gang, Status()).phase == "running"
        assert gang.processes[0].signals == []
    assert "refused a message of tell()" in caplog.text


def test_the_numbers_of_numpy_are_ranks():
    """The reply has ints in their place, as has every mapping of a result."""
    with FakeGang(2) as gang:
        ask(gang, Start())
        numbers = np.array([0, 1])
        assert {type(rank) for rank in ask(gang, Signal(sig=SIGUSR1, ranks=set(numbers)))} == {int}


def test_a_supervisor_is_no_subscriber_of_another_one():
    """It would take the exits of the other's ranks for those of its own."""
    with FakeGang(1) as one, FakeGang(1) as other:
        ask(one, Start())
        ask(other, Start())
        for gang in (one, other):
            with pytest.raises(SpecError, match="a supervisor; subscribe another kind of actor"):
                ask(one, Subscribe(ref=gang.supervisor))
        one.processes[0].exit(3)
        assert ask(one, Wait()).outcome == "failed"
        assert ask(other, Status()).phase == "running"


# Ends


def test_one_failure_stops_the_others_who_are_bystanders():
    with FakeGang(4) as gang:
        ask(gang, Start())
        gang.processes[2].exit(3)
        result = ask(gang, Wait())
        assert (result.outcome, result.root_cause, list(result.failures)) == ("failed", 2, [2])
        assert result.failures[2].exitcode == 3
        assert {rank: end.role for rank, end in result.ends.items()} == {
            0: "bystander",
            1: "bystander",
            2: "root_cause",
            3: "bystander",
        }
        assert gang.processes[2].signals == []


def test_who_ignores_the_polite_signal_is_killed_after_the_grace_all_at_once():
    """GraceExpired comes after a short grace; nobody is killed before all were asked."""
    launchers = {rank: FakeLauncher(ignored=[SIGTERM]) for rank in range(3)}
    with FakeGang(4, launchers=launchers, grace=0.05) as gang:
        ask(gang, Start())
        gang.processes[3].exit(1)
        result = ask(gang, Wait())
        assert result.root_cause == 3
        for rank in range(3):
            sent = [sig for sig in gang.processes[rank].signals if sig != signal.SIGCONT]
            assert sent == [SIGTERM, SIGKILL]
        assert [result.ends[rank].exitcode for rank in range(3)] == [-9] * 3


def test_a_close_without_grace_kills():
    with FakeGang(1, launchers={0: FakeLauncher(ignored=[SIGTERM])}) as gang:
        ask(gang, Start())
        assert ask(gang, Close(timeout=0)).failures[0].exitcode == -9
        assert SIGTERM not in gang.processes[0].signals


def test_a_second_close_hurries_the_first():
    with FakeGang(1, launchers={0: FakeLauncher(ignored=[SIGTERM])}) as gang:
        ask(gang, Start())
        first = closing(gang)
        gang.processes[0].wait_for_signal(SIGTERM)
        result = ask(gang, Close(death_sig=SIGKILL))
        assert first.get(timeout=PATIENCE_S) is result


def test_the_gang_s_timeout_stops_it():
    with FakeGang(2, timeout=5.0) as gang:
        ask(gang, Start())
        result = ask(gang, Wait())
        assert (result.outcome, result.is_failed()) == ("timed_out", True)


def test_what_finished_ranks_left_behind_is_signaled_at_close_only():
    with FakeGang(1) as gang:
        ask(gang, Start())
        gang.processes[0].exit(0, group_left=True)
        assert ask(gang, Wait()).outcome == "succeeded"
        assert gang.processes[0].signals == []
        assert ask(gang, Close()).outcome == "succeeded"
        assert gang.processes[0].signals[0] == SIGTERM


def test_an_unkillable_rank_is_reported_and_the_others_are_reaped():
    with FakeGang(2, launchers={1: FakeLauncher(ignored=[SIGTERM, SIGKILL])}, grace=0.01) as gang:
        actor = gang.supervisor._actor_weakref()
        actor._runner.gang.kill_wait_s = 0.05
        ask(gang, Start())
        with pytest.raises(UnkillableError, match="rank 1") as caught:
            ask(gang, Close())
        assert caught.value.pids == {1: gang.processes[1].pid}
        result = ask(gang, Wait())
        assert (result.outcome, result.ends[0].role, result.ends[1].role) == ("stopped", "bystander", "unkillable")
        gang.events.wait_for("supervise.process.unkillable")


# Starts that fail


@pytest.mark.parametrize(
    "error", [FileNotFoundError(errno.ENOENT, "none", "prog"), PermissionError(errno.EACCES, "no", "prog")]
)
def test_a_start_that_fails_names_the_rank_keeps_the_class_and_reaps_the_others(error):
    with FakeGang(3, launchers={1: FakeLauncher(error=error)}, window=3) as gang:
        early = later(gang, Wait())
        with pytest.raises(type(error), match="rank 1") as caught:
            ask(gang, Start())
        assert (caught.value.errno, caught.value.filename) == (error.errno, "prog")
        assert all(process.ended for process in gang.processes.values())
        for reply in (early, later(gang, Wait()), later(gang, Poll())):
            with pytest.raises(type(error), match="rank 1"):
                reply.get(timeout=PATIENCE_S)
        assert ask(gang, Close()) is None


def test_a_start_that_fails_for_another_reason_is_a_spawn_error():
    with FakeGang(2, launchers={1: FakeLauncher(error=KeyError("odd"))}) as gang:
        with pytest.raises(SpawnError, match="rank 1") as caught:
            ask(gang, Start())
        assert caught.value.local_rank == 1
        assert isinstance(caught.value.__cause__, KeyError)


def test_a_launch_that_fails_late_is_a_failed_start_too():
    with FakeGang(2, launchers={1: FakeLauncher(held=True)}) as gang:
        starting = later(gang, Start())
        assert gang.launchers[1].asked.wait(PATIENCE_S)
        gang.launchers[1].release(ChildProcessError("the server died"))
        with pytest.raises(SpawnError, match="the server died"):
            starting.get(timeout=PATIENCE_S)
        assert gang.processes[0].ended


def test_a_close_during_the_start_ends_both():
    with FakeGang(3, launchers={1: FakeLauncher(held=True)}) as gang:
        starting = later(gang, Start())
        assert gang.launchers[1].asked.wait(PATIENCE_S)
        closed = closing(gang)
        gang.launchers[1].release()
        assert closed.get(timeout=PATIENCE_S).outcome == "stopped"
        with pytest.raises(SpawnError, match="closed before every rank ran"):
            starting.get(timeout=PATIENCE_S)
        assert not hasattr(gang.launchers[2], "process")
        assert SIGTERM in gang.processes[1].signals


def test_a_rank_that_fails_before_all_run_fails_the_gang_not_the_start():
    with FakeGang(2, launchers={1: FakeLauncher(held=True)}) as gang:
        starting = later(gang, Start())
        assert gang.launchers[1].asked.wait(PATIENCE_S)
        gang.processes[0].exit(9)
        gang.events.wait_for("supervise.process.exited")
        gang.launchers[1].release()
        assert sorted(starting.get(timeout=PATIENCE_S)) == [0, 1]
        assert ask(gang, Wait()).root_cause == 0
