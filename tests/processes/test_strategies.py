"""Strategies, restart kinds and requests for single ranks, on real processes."""

import signal
import time
from pathlib import Path

import pykka
import pytest

from supervise import (
    Close,
    DefaultLogsSpecs,
    GangFinished,
    RestartPolicy,
    RestartRanks,
    SpecError,
    Status,
    Std,
    Subscribe,
    SuperviseError,
    TerminateRanks,
    Watchdog,
    WorkerExited,
    WorkerRestarting,
    WorkerStarted,
    start_processes,
)
from supervise.testing import Recorder
from tests.patience import PATIENCE_S
from tests.processes import work
from tests.processes.gangs import each_kind, faulty
from tests.processes.hosts import pids_of, watched

LIFE = """
life = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
rank = os.environ["LOCAL_RANK"]
print("rank", rank, "life", life, flush=True)
say(f"{rank}:{life}")
value = life
code = int(wait_for_word())
if code: os._exit(code)
"""
"""Each life says which it is, and ends with the exit code that it is told."""
LEAVES_DEAF = """
if not life and os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    AWAY
    say(f"ready {os.getpid()}")
    while True: signal.pause()
"""
AT_ONCE = RestartPolicy(max_restarts=3, backoff=0.0)
SLOWLY = RestartPolicy(max_restarts=3, backoff=60.0)


def lives(gang, count=1):
    """Return the next lives that are said, sorted."""
    return sorted(gang.hear(count))


def states(gang):
    """Return the state of each rank once no launch is pending: a life may say that it runs before supervise knows."""
    give_up_s = time.monotonic() + PATIENCE_S
    while True:
        rows = gang.ask(Status()).ranks
        if all(row.state != "starting" for row in rows.values()):
            return {rank: (row.state, row.attempt, row.restarts) for rank, row in rows.items()}
        assert time.monotonic() < give_up_s, rows


@each_kind
def test_r1_one_for_one_starts_the_failed_rank_anew_and_nobody_else(tmp_path, kind):
    """Its life has its own logs and environment; the result has those of the last life, and its value."""
    with faulty(tmp_path, kind, [LIFE] * 3, strategy="one_for_one", restart_policy=AT_ONCE) as gang:
        assert lives(gang, 3) == ["0:0", "1:0", "2:0"]
        before = gang.pids
        gang.tell(1, "3")
        assert lives(gang) == ["1:1"]
        assert states(gang) == {0: ("ready", 0, 0), 1: ("ready", 1, 1), 2: ("ready", 0, 0)}
        after = gang.pids
        for rank in range(3):
            gang.tell(rank, "0")
        result = gang.wait()
    assert {rank for rank in before if before[rank] != after[rank]} == {1}
    assert result.outcome == "succeeded"
    assert not result.failures
    assert result.return_values == (dict.fromkeys(range(3)) if kind == "binary" else {0: 0, 1: 1, 2: 0})
    assert Path(result.stdouts[1]).read_text() == "rank 1 life 1\n"
    assert Path(result.stdouts[1]).parts[-3:-1] == ("attempt_1", "1")
    assert Path(result.stdouts[0]).parts[-3:-1] == ("attempt_0", "0")
    # A folder for every rank, of which a long run may restart one a thousand times, would fill the disk
    assert [path.name for path in Path(result.stdouts[1]).parents[1].iterdir()] == ["1"]
    (restart,) = result.restarts
    assert (restart.local_rank, restart.attempt, restart.counted, result.restarts_total) == (1, 0, True, 1)
    assert (restart.end.pid, restart.end.exitcode, restart.end.role) == (before[1], 3, "root_cause")
    assert Path(restart.end.stdout_log).read_text() == "rank 1 life 0\n"


@pytest.mark.parametrize("own", [False, True])
def test_a_layout_of_the_user_gets_the_folders_of_all_ranks(tmp_path, own):
    """Its `reify` may put files into them. Later lives with the same number share one call of it."""

    class Marked(DefaultLogsSpecs):
        def reify(self, envs):
            dest = super().reify(envs)
            for path in dest.error_files.values():
                Path(path).with_name("mark").touch()
            return dest

    logs = (Marked if own else DefaultLogsSpecs)(str(tmp_path), redirects=Std.ALL)
    with faulty(
        tmp_path, "binary", [LIFE] * 3, strategy="one_for_one", restart_policy=AT_ONCE, logs_specs=logs
    ) as gang:
        lives(gang, 3)
        for rank in (2, 0):
            gang.tell(rank, "3")
            lives(gang)
        for rank in range(3):
            gang.tell(rank, "0")
        result = gang.wait()
    assert {Path(result.stdouts[rank]).parent.parent.name for rank in (0, 2)} == {"attempt_1"}
    made = sorted(path.name for path in Path(result.stdouts[2]).parents[1].iterdir() if path.is_dir())
    assert made == (["0", "1", "2"] if own else ["0", "2"])


@each_kind
def test_r1_rest_for_one_starts_the_failed_rank_and_those_above_anew(tmp_path, kind):
    with faulty(tmp_path, kind, [LIFE] * 3, strategy="rest_for_one", restart_policy=AT_ONCE) as gang:
        lives(gang, 3)
        before = gang.pids
        gang.tell(1, "3")
        assert lives(gang, 2) == ["1:1", "2:1"]
        assert gang.pids[0] == before[0]
        for rank in range(3):
            gang.tell(rank, "0")
        result = gang.wait()
    assert result.outcome == "succeeded"
    roles = [(each.local_rank, each.end.role, each.end.exitcode, each.counted) for each in result.restarts]
    assert roles == [(1, "root_cause", 3, True), (2, "bystander", -signal.SIGTERM, False)]


def test_r1_a_restart_that_another_failure_delays_is_announced_once(tmp_path):
    with Recorder() as recorder:
        with faulty(tmp_path, "binary", [LIFE] * 2, strategy="rest_for_one", restart_policy=SLOWLY) as gang:
            gang.ask(Subscribe(ref=recorder.ref))
            lives(gang, 2)
            for rank in (1, 0):
                gang.tell(rank, "3")
                gang.await_event("supervise.process.restarting", local_rank=rank)
            gang.close()
        recorder.wait_for(GangFinished)
        announced = [each for each in recorder.messages if isinstance(each, WorkerRestarting)]
    assert [(each.local_rank, each.attempt) for each in announced] == [(1, 1), (0, 1)]
    assert {each.end.role for each in announced} == {"root_cause"}


def test_r1_a_restart_is_announced_with_the_number_of_the_life(tmp_path):
    """Also that of a rank which restarts of all others have left out."""
    with Recorder() as recorder, faulty(tmp_path, "binary", [LIFE] * 2, restart_policy=AT_ONCE) as gang:
        gang.ask(Subscribe(ref=recorder.ref))
        assert lives(gang, 2) == ["0:0", "1:0"]
        gang.ask(TerminateRanks(frozenset({1})))
        for life in (1, 2):
            gang.tell(0, "3")
            assert lives(gang) == [f"0:{life}"]
        gang.ask(RestartRanks(frozenset({1})))
        assert lives(gang) == ["1:3"]
        recorder.wait_for(WorkerRestarting)
        announced = [each for each in recorder.messages if isinstance(each, WorkerRestarting)]
        assert [(each.local_rank, each.attempt) for each in announced] == [(1, 3)]


@pytest.mark.parametrize(
    ("strategy", "stopped"), [("one_for_all", {0, 2}), ("one_for_one", set()), ("rest_for_one", {2})]
)
def test_r1_without_a_policy_a_strategy_says_who_is_stopped(tmp_path, strategy, stopped):
    """The others end by themselves; the failure is the root cause of a failed gang."""
    with faulty(tmp_path, "binary", [LIFE] * 3, strategy=strategy) as gang:
        lives(gang, 3)
        gang.tell(1, "3")
        for _ in {1} | stopped:
            gang.await_event("supervise.process.exited")
        for rank in {0, 2} - stopped:
            assert states(gang)[rank][0] == "ready"
            gang.tell(rank, "0")
        result = gang.wait()
    assert (result.outcome, result.root_cause, list(result.failures)) == ("failed", 1, [1])
    assert {rank for rank, end in result.ends.items() if end.role == "bystander"} == stopped


def test_r1_without_a_policy_every_cause_is_listed_the_first_as_root(tmp_path):
    with faulty(tmp_path, "binary", [LIFE] * 3, strategy="one_for_one") as gang:
        lives(gang, 3)
        for rank, code in ((2, "5"), (0, "4"), (1, "0")):
            gang.tell(rank, code)
            gang.await_event("supervise.process.exited", local_rank=rank)
        result = gang.wait()
    assert [(rank, failure.exitcode) for rank, failure in result.failures.items()] == [(2, 5), (0, 4)]
    assert result.root_cause == 2


def test_r2_the_limit_counts_the_failures_of_all_ranks_and_the_last_is_the_root_cause(tmp_path):
    policy = RestartPolicy(max_restarts=2, backoff=0.0)
    with faulty(tmp_path, "binary", [LIFE] * 2, strategy="one_for_one", restart_policy=policy) as gang:
        lives(gang, 2)
        gang.tell(0, "3")
        lives(gang)
        gang.tell(1, "4")
        lives(gang)
        gang.tell(0, "5")
        result = gang.wait()
    assert (result.outcome, result.root_cause) == ("failed", 0)
    assert {rank: failure.exitcode for rank, failure in result.failures.items()} == {0: 5}
    assert result.ends[1].role == "bystander"
    assert [each.end.exitcode for each in result.restarts] == [3, 4]


def test_r2_exit_codes_that_do_not_count_and_one_that_ends_the_gang(tmp_path):
    policy = RestartPolicy(
        max_restarts=0, backoff=0.0, uncounted_exit_codes=frozenset({75}), never_restart_exit_codes=frozenset({9})
    )
    with faulty(tmp_path, "binary", [LIFE] * 2, strategy="one_for_one", restart_policy=policy) as gang:
        lives(gang, 2)
        for life in (1, 2):
            gang.tell(0, "75")
            assert lives(gang) == [f"0:{life}"]
        gang.tell(0, "9")
        result = gang.wait()
    assert (result.outcome, result.root_cause, result.failures[0].exitcode) == ("failed", 0, 9)
    assert [(each.end.exitcode, each.counted) for each in result.restarts] == [(75, False), (75, False)]


def test_r2_exit_codes_that_do_not_count_restart_all_ranks(tmp_path):
    """Under `one_for_all`, the root cause is counted, or not."""
    policy = RestartPolicy(max_restarts=0, backoff=0.0, uncounted_exit_codes=frozenset({75}))
    with faulty(tmp_path, "binary", [LIFE] * 2, restart_policy=policy) as gang:
        lives(gang, 2)
        gang.tell(0, "75")
        assert lives(gang, 2) == ["0:1", "1:1"]
        gang.tell(1, "3")
        result = gang.wait()
    assert (result.outcome, result.root_cause) == ("failed", 1)
    assert [(each.local_rank, each.counted) for each in result.restarts] == [(0, False), (1, False)]


def test_r2_success_exit_codes_are_a_success(tmp_path):
    with faulty(tmp_path, "binary", [LIFE] * 2, success_exit_codes=frozenset({0, 3})) as gang:
        lives(gang, 2)
        gang.tell(0, "3")
        gang.tell(1, "0")
        result = gang.wait()
    assert (result.outcome, dict(result.failures)) == ("succeeded", {})
    assert result.ends[0].exitcode == 3


def test_r2_a_failure_with_exit_code_0_says_why(tmp_path):
    with faulty(tmp_path, "binary", [LIFE], success_exit_codes=frozenset({3})) as gang:
        lives(gang, 1)
        gang.tell(0, "0")
        result = gang.wait()
    assert result.failures[0].message == "exited with code 0, which is not one of the success_exit_codes"


def test_r2_a_permanent_rank_restarts_after_a_success_until_the_limit(tmp_path):
    """Then it is listed with code 0, and the text says why."""
    policy = RestartPolicy(max_restarts=1, backoff=0.0, restart="permanent")
    with faulty(tmp_path, "binary", [LIFE] * 2, strategy="one_for_one", restart_policy=policy) as gang:
        lives(gang, 2)
        gang.tell(0, "0")
        assert lives(gang) == ["0:1"]
        gang.tell(0, "0")
        result = gang.wait()
    assert (result.outcome, result.root_cause, result.failures[0].exitcode) == ("failed", 0, 0)
    assert "permanent" in result.failures[0].message


def test_r2_a_temporary_rank_is_not_restarted_and_stops_nobody(tmp_path):
    policy = RestartPolicy(max_restarts=3, restart="temporary")
    with faulty(tmp_path, "binary", [LIFE] * 2, restart_policy=policy) as gang:
        lives(gang, 2)
        gang.tell(0, "3")
        gang.await_event("supervise.process.exited", local_rank=0)
        assert states(gang) == {0: ("failed", 0, 0), 1: ("ready", 0, 0)}
        gang.tell(1, "0")
        result = gang.wait()
    assert (result.outcome, list(result.failures), result.restarts) == ("failed", [0], [])


@each_kind
@pytest.mark.parametrize("containment", ["group", "sweep"])
def test_r3_what_a_life_left_is_gone_before_the_next_begins(tmp_path, kind, containment):
    """A process of its group that ignores SIGTERM; and with `sweep`, a daemon. A stranger's rank lives on."""
    away = "os.setsid()" if containment == "sweep" else "pass"
    source = LIFE.replace("value = life", LEAVES_DEAF.replace("AWAY", away) + "value = life")
    more = {"strategy": "one_for_one", "restart_policy": AT_ONCE, "containment": containment, "grace": 0.3}
    with faulty(tmp_path, kind, [source, LIFE], **more) as gang:
        heard = gang.hear(3)
        (left,) = set(pids_of([line for line in heard if line.startswith("ready")]))
        with watched([left]) as watch:
            gang.tell(0, "3")
            assert lives(gang) == ["0:1"]
            assert watch.survivors(0) == set()
        assert states(gang)[1] == ("ready", 0, 0)


def test_r3_a_daemon_of_a_past_life_is_reported_once(tmp_path):
    """With the containment `group` it lives on; the sweep at the end is about the last life."""
    source = LIFE.replace("value = life", LEAVES_DEAF.replace("AWAY", "os.setsid()") + "value = life")
    with faulty(tmp_path, "binary", [source], strategy="one_for_one", restart_policy=AT_ONCE) as gang:
        heard = gang.hear(2)
        (left,) = set(pids_of([line for line in heard if line.startswith("ready")]))
        with watched([left]) as watch:
            gang.tell(0, "3")
            assert lives(gang) == ["0:1"]
            assert gang.await_event("supervise.process.leaked")["descendants"] == [left]
            gang.tell(0, "0")
            gang.wait()
            gang.close()
            gang.await_event("supervise.gang.finished")
            assert watch.survivors(0) == {left}
            assert gang._events.empty()


@each_kind
def test_r4_restart_ranks_restarts_exactly_these_and_answers_with_their_pids(tmp_path, kind):
    """Without a policy, under every strategy; a rank that has ended and one that runs; nothing is counted."""
    with faulty(tmp_path, kind, [LIFE] * 3, strategy="one_for_one") as gang:
        lives(gang, 3)
        before = gang.pids
        gang.tell(0, "3")
        gang.await_event("supervise.process.exited", local_rank=0)
        answer = gang.ask(RestartRanks({0, 1}))
        assert lives(gang, 2) == ["0:1", "1:1"]
        assert answer == {rank: gang.pids[rank] for rank in (0, 1)}
        assert gang.pids[2] == before[2]
        for rank in range(3):
            gang.tell(rank, "0")
        result = gang.wait()
    assert (result.outcome, result.restarts_total) == ("succeeded", 2)
    assert [(each.local_rank, each.counted) for each in result.restarts] == [(0, False), (1, False)]


def test_r4_terminate_ranks_keeps_them_down_until_they_are_restarted(tmp_path):
    """Their ends are not failures; the other ranks run on, also under `one_for_all`."""
    with faulty(tmp_path, "spawn", [LIFE] * 2) as gang:
        lives(gang, 2)
        pid = gang.pids[1]
        assert gang.ask(TerminateRanks({1})) == {1: pid}
        assert states(gang) == {0: ("ready", 0, 0), 1: ("terminated", 0, 0)}
        gang.ask(RestartRanks({1}))
        assert lives(gang) == ["1:1"]
        gang.ask(TerminateRanks({1}))
        gang.tell(0, "0")
        result = gang.wait()
    assert (result.outcome, dict(result.failures), result.return_values) == ("succeeded", {}, {0: 0, 1: None})
    assert (result.ends[1].role, result.ends[1].exitcode) == ("terminated", -signal.SIGTERM)


def test_r4_a_restart_of_all_ranks_leaves_a_terminated_rank_down(tmp_path):
    """It keeps its end; the others start anew, and the gang ends with them."""
    with faulty(tmp_path, "spawn", [LIFE] * 3, restart_policy=AT_ONCE) as gang:
        lives(gang, 3)
        gang.ask(TerminateRanks({1}))
        gang.tell(0, "3")
        assert lives(gang, 2) == ["0:1", "2:1"]
        assert states(gang) == {0: ("ready", 1, 1), 1: ("terminated", 0, 0), 2: ("ready", 1, 1)}
        gang.tell(0, "0")
        gang.tell(2, "0")
        result = gang.wait()
    assert (result.outcome, result.return_values) == ("succeeded", {0: 1, 1: None, 2: 1})
    assert result.ends[1].role == "terminated"


def test_r4_the_last_rank_s_termination_ends_the_gang(tmp_path):
    with faulty(tmp_path, "binary", [LIFE] * 2) as gang:
        lives(gang, 2)
        gang.ask(TerminateRanks({0, 1}))
        result = gang.wait()
    assert (result.outcome, dict(result.failures)) == ("stopped", {})


def test_r4_a_request_in_the_backoff_starts_at_once(tmp_path):
    with faulty(tmp_path, "binary", [LIFE] * 2, strategy="one_for_one", restart_policy=SLOWLY) as gang:
        lives(gang, 2)
        gang.tell(0, "3")
        gang.await_event("supervise.process.restarting", local_rank=0, attempt=1, exit_code=3, end_role="root_cause")
        assert states(gang)[0] == ("backoff", 0, 0)
        gang.ask(RestartRanks({0}))
        assert lives(gang) == ["0:1"]


def test_r4_a_termination_in_the_backoff_cancels_it(tmp_path):
    with faulty(tmp_path, "binary", [LIFE] * 2, strategy="one_for_one", restart_policy=SLOWLY) as gang:
        lives(gang, 2)
        gang.tell(0, "3")
        gang.await_event("supervise.process.restarting", local_rank=0)
        gang.ask(TerminateRanks({0}))
        gang.tell(1, "0")
        result = gang.wait()
    assert (result.outcome, result.ends[0].role, result.ends[0].exitcode) == ("succeeded", "terminated", 3)


def in_backoff(gang, count):
    """Fail rank 1 under `one_for_all`; return when all ranks wait for their restart."""
    lives(gang, count)
    gang.tell(1, "3")
    gang.await_event("supervise.gang.restarting")
    assert states(gang) == dict.fromkeys(range(count), ("backoff", 0, 0))


def test_r4_a_request_in_the_backoff_of_all_ranks_starts_them_at_once(tmp_path):
    with faulty(tmp_path, "binary", [LIFE] * 2, restart_policy=SLOWLY) as gang:
        in_backoff(gang, 2)
        assert gang.ask(RestartRanks({0})) == {0: gang.pids[0]}
        assert lives(gang, 2) == ["0:1", "1:1"]


def test_r4_a_termination_in_the_backoff_of_all_ranks_keeps_them_down(tmp_path):
    """It is answered at once; the terminated life is not in the history, since none replaces it."""
    with faulty(tmp_path, "binary", [LIFE] * 3, restart_policy=SLOWLY) as gang:
        in_backoff(gang, 3)
        pid = gang.pids[2]
        assert gang.ask(TerminateRanks({2})) == {2: pid}
        assert states(gang) == {0: ("backoff", 0, 0), 1: ("backoff", 0, 0), 2: ("terminated", 0, 0)}
        gang.ask(RestartRanks({0}))
        assert lives(gang, 2) == ["0:1", "1:1"]
        for rank in (0, 1):
            gang.tell(rank, "0")
        result = gang.wait()
    assert (result.outcome, result.ends[2].role) == ("succeeded", "terminated")
    assert [(each.local_rank, each.counted) for each in result.restarts] == [(0, False), (1, True)]


def test_r4_requests_in_the_backoff_of_all_ranks_are_carried_out_in_their_order(tmp_path):
    """The last one counts; an earlier restart fails."""
    with faulty(tmp_path, "binary", [LIFE] * 2, restart_policy=SLOWLY) as gang:
        in_backoff(gang, 2)
        asked = [
            gang.supervisor.ask(TerminateRanks({0}), block=False),
            gang.supervisor.ask(RestartRanks({0}), block=False),
        ]
        assert [set(each.get(timeout=PATIENCE_S)) for each in asked] == [{0}, {0}]
        assert lives(gang, 2) == ["0:1", "1:1"]


def test_r4_a_termination_of_the_failed_rank_while_the_others_are_stopped_leaves_it_the_cause(tmp_path):
    """The others restart, and the restart is told as that of the rank that failed."""
    slow = 'if os.environ["LOCAL_RANK"] == "0": signal.signal(signal.SIGTERM, lambda *_: say("stopping"))\n' + LIFE
    with faulty(tmp_path, "binary", [slow] * 2, restart_policy=AT_ONCE) as gang:
        lives(gang, 2)
        pid = gang.pids[1]
        gang.tell(1, "3")
        assert gang.hear() == ["stopping"]
        asked = gang.supervisor.ask(TerminateRanks({1}), block=False)
        gang.tell(0, "0")
        event = gang.await_event("supervise.gang.restarting")
        assert (event["root_cause_rank"], event["error_type"], event["left_out"]) == (1, "exit code 3", [1])
        assert asked.get(timeout=PATIENCE_S) == {1: pid}
        assert lives(gang) == ["0:1"]
        gang.tell(0, "0")
        result = gang.wait()
    assert (result.outcome, result.ends[1].role) == ("succeeded", "terminated")


def test_r4_a_termination_of_all_ranks_in_their_backoff_ends_the_gang(tmp_path):
    with faulty(tmp_path, "binary", [LIFE] * 2, restart_policy=SLOWLY) as gang:
        in_backoff(gang, 2)
        gang.ask(TerminateRanks({0, 1}))
        result = gang.wait()
    assert (result.outcome, dict(result.failures), result.restarts_total) == ("stopped", {}, 0)


def test_r4_a_rank_whose_life_could_not_be_launched_is_terminated(tmp_path):
    """It has no process, so its pid is not in the reply."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    policy = RestartPolicy(max_restarts=3, backoff=1.0)  # the second delay is 2 s
    with faulty(tmp_path, "binary", [LIFE] * 2, strategy="one_for_one", restart_policy=policy, cwd=folder) as gang:
        lives(gang, 2)
        folder.rmdir()
        gang.tell(0, "3")
        gang.await_event("supervise.process.start_failed", local_rank=0)
        assert gang.ask(TerminateRanks({0})) == {}
        assert states(gang)[0][0] == "terminated"
        gang.tell(1, "0")
        assert gang.wait().outcome == "succeeded"


@pytest.mark.parametrize(
    ("ranks", "named"), [({5}, "5"), (frozenset(), "give the local ranks"), (7, "7"), ({"a"}, "'a'")]
)
def test_r4_unknown_ranks_are_refused(tmp_path, ranks, named):
    with faulty(tmp_path, "binary", [LIFE]) as gang:
        for message in (RestartRanks, TerminateRanks):
            with pytest.raises(SpecError, match=named):
                gang.ask(message(ranks))


def test_r4_a_gang_that_has_ended_refuses_requests(tmp_path):
    with faulty(tmp_path, "binary", [LIFE]) as gang:
        gang.tell(0, "0")
        gang.wait()
        for message in (RestartRanks({0}), TerminateRanks({0})):
            with pytest.raises(SpecError, match="finished"):
                gang.ask(message)


def test_r5_a_close_wins_over_a_backoff_and_names_the_rank(tmp_path):
    with faulty(tmp_path, "binary", [LIFE] * 2, strategy="one_for_one", restart_policy=SLOWLY) as gang:
        lives(gang, 2)
        gang.tell(1, "3")
        gang.await_event("supervise.process.restarting", local_rank=1)
        result = gang.close()
    assert (result.outcome, result.root_cause, result.ends[0].role) == ("failed", 1, "bystander")


def test_r5_a_close_fails_a_request(tmp_path):
    """The rank ignores SIGTERM, so that its restart is pending."""
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + LIFE
    with faulty(tmp_path, "binary", [deaf], grace=60.0) as gang:
        lives(gang)
        asked = gang.supervisor.ask(RestartRanks({0}), block=False)
        gang.await_event("supervise.process.signaled", local_rank=0)
        assert states(gang)[0][0] == "stopping"
        result = gang.close(timeout=0.1)
        with pytest.raises(SuperviseError, match="the gang ends"):
            asked.get(timeout=PATIENCE_S)
    assert result.outcome == "stopped"


def test_r5_a_rank_that_ignores_sigterm_is_killed_after_the_grace_and_restarted(tmp_path):
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + LIFE
    with faulty(tmp_path, "binary", [deaf], grace=0.2) as gang:
        lives(gang)
        gang.ask(RestartRanks({0}))
        assert lives(gang) == ["0:1"]
        gang.await_event("supervise.process.exited", local_rank=0, exit_signal="SIGKILL", spontaneous=False)


@pytest.mark.parametrize("kind", ["a restart", "a termination", "a failure below", "a hang"])
def test_e3_a_signal_to_a_rank_of_a_gang_that_goes_on_has_its_reason(tmp_path, kind):
    strategy = "rest_for_one" if kind == "a failure below" else "one_for_one"
    watchdog = Watchdog(output_timeout_s=1.0, action="fail", stacks=False) if kind == "a hang" else None
    with faulty(tmp_path, "binary", [LIFE] * 3, strategy=strategy, watchdog=watchdog) as gang:
        lives(gang, 3)
        if kind == "a restart":
            gang.supervisor.tell(RestartRanks({2}))
        elif kind == "a termination":
            gang.supervisor.tell(TerminateRanks({2}))
        elif kind == "a failure below":
            gang.tell(1, "3")
        reasons = {"a restart": "restart", "a termination": "terminate", "a failure below": "peer_failed"}
        signaled = gang.await_event("supervise.process.signaled", local_rank=2)
        assert signaled["reason"] == reasons.get(kind, "fault")


def test_r5_a_close_in_the_backoff_of_all_ranks_replaces_no_life(tmp_path):
    with faulty(tmp_path, "binary", [LIFE] * 2, restart_policy=SLOWLY) as gang:
        in_backoff(gang, 2)
        result = gang.close()
    assert (result.outcome, result.root_cause, result.restarts, result.restarts_total) == ("failed", 1, [], 0)


@pytest.mark.parametrize("kind", ["binary", "spawn"])
def test_r6_a_life_that_cannot_be_launched_is_a_failure_of_its_rank(tmp_path, kind):
    """It is counted and tried again until no restart is left; then there is a result."""
    policy = RestartPolicy(max_restarts=2, backoff=0.0)
    folder = tmp_path / "cwd"
    folder.mkdir()
    with faulty(tmp_path, kind, [LIFE] * 2, strategy="one_for_one", restart_policy=policy, cwd=folder) as gang:
        lives(gang, 2)
        folder.rmdir()
        gang.tell(0, "3")
        gang.await_event("supervise.process.start_failed", local_rank=0)
        result = gang.wait()
    assert (result.outcome, result.root_cause) == ("failed", 0)
    assert result.ends[0].pid is None
    assert "could not be started" in result.failures[0].message
    assert [each.end.exitcode for each in result.restarts] == [3, None]


def test_r6_logs_that_cannot_be_made_are_a_failed_launch(tmp_path):
    policy = RestartPolicy(max_restarts=1, backoff=0.0)
    with faulty(tmp_path, "binary", [LIFE] * 2, strategy="one_for_one", restart_policy=policy) as gang:
        lives(gang, 2)
        (run,) = (tmp_path / "logs").iterdir()
        (run / "attempt_1").write_text("in the way")
        gang.tell(0, "3")
        result = gang.wait()
    assert (result.outcome, result.root_cause) == ("failed", 0)
    assert "attempt_1" in result.failures[0].message


@pytest.mark.parametrize("strategy", ["one_for_one", "one_for_all"])
def test_r6_logs_specs_that_raise_in_a_later_life_are_a_failed_launch(tmp_path, strategy):
    class OnceOnly(DefaultLogsSpecs):
        used = False

        def reify(self, envs):
            if self.used:
                raise KeyError("the folder of this job")
            self.used = True
            return super().reify(envs)

    policy = RestartPolicy(max_restarts=1, backoff=0.0)
    logs = OnceOnly(str(tmp_path / "own"))
    with faulty(tmp_path, "binary", [LIFE] * 2, strategy=strategy, restart_policy=policy, logs_specs=logs) as gang:
        lives(gang, 2)
        gang.tell(0, "3")
        result = gang.wait()
    assert (result.outcome, result.root_cause) == ("failed", 0)
    assert "OnceOnly.reify raised KeyError: 'the folder of this job'" in result.failures[0].message


def open_files_and_actors():
    return len([*Path("/proc/self/fd").iterdir()]), len(pykka.ActorRegistry.get_all())


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.stress)])
def test_r7_two_hundred_lives_leave_nothing_and_lose_no_line(tmp_path, capfd, count):
    """Descriptors, actors and threads stay as few; a Tail shows each line of each life once."""
    source = LIFE.replace("value = life", "print(*[f'line {life}.{n}' for n in range(20)], sep='\\n', flush=True)")
    policy = RestartPolicy(max_restarts=1000, backoff=0.0)
    logs = DefaultLogsSpecs(str(tmp_path / "shown"), tee=Std.ALL)
    with faulty(tmp_path, "binary", [source], strategy="one_for_one", restart_policy=policy, logs_specs=logs) as gang:
        lives(gang)
        for _ in range(5):
            gang.tell(0, "3")
            lives(gang)
        before = open_files_and_actors()
        for life in range(6, count + 1):
            gang.tell(0, "3")
            assert lives(gang) == [f"0:{life}"]
        give_up_s = time.monotonic() + PATIENCE_S
        # A life that is being shown has its files open, and a Worker may be leaving
        while any(now > then + more for now, then, more in zip(open_files_and_actors(), before, (4, 1), strict=True)):
            assert time.monotonic() < give_up_s
        gang.tell(0, "0")
        result = gang.wait()
        gang.close()
    assert (result.outcome, result.restarts_total, len(result.restarts)) == ("succeeded", count, count)
    shown = [line for line in capfd.readouterr().out.splitlines() if "line" in line]
    assert shown == [f"[fault0]:line {life}.{n}" for life in range(count + 1) for n in range(20)]


def test_r8_subscribers_are_told_of_each_life_and_late_ones_of_the_present_only(tmp_path):
    with Recorder() as early, Recorder() as late:
        with faulty(tmp_path, "binary", [LIFE] * 2, strategy="one_for_one", restart_policy=AT_ONCE) as gang:
            gang.ask(Subscribe(ref=early.ref))
            lives(gang, 2)
            gang.tell(1, "3")
            lives(gang)
            gang.await_event("supervise.process.started", local_rank=1, attempt=1)
            gang.ask(Subscribe(ref=late.ref))
            gang.tell(0, "0")
            gang.tell(1, "0")
            gang.wait()
        for recorder in (early, late):
            recorder.wait_for(GangFinished)
        (restarting,) = [each for each in early.messages if isinstance(each, WorkerRestarting)]
        ours = (WorkerStarted, WorkerExited)
        of_one = [(type(m), m.attempt) for m in early.messages if isinstance(m, ours) and m.local_rank == 1]
        of_late = [(type(m), m.attempt) for m in late.messages if isinstance(m, ours) and m.local_rank == 1]
    assert (restarting.local_rank, restarting.attempt, restarting.delay_s) == (1, 1, 0.0)
    assert (restarting.end.exitcode, restarting.end.role) == (3, "root_cause")
    assert of_one == [(WorkerStarted, 0), (WorkerExited, 0), (WorkerStarted, 1), (WorkerExited, 1)]
    assert of_late == [(WorkerStarted, 1), (WorkerExited, 1)]


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"strategy": "all"}, "strategy is 'all'"),
        ({"success_exit_codes": {1}}, "add 0"),
        ({"success_exit_codes": "0"}, "success_exit_codes is '0'"),
        ({"success_exit_codes": {0, 300}}, "300"),
    ],
)
def test_r9_a_setting_that_is_wrong_is_named(more, named):
    with pytest.raises(SpecError, match=named):
        start_processes("r9", work.double, {0: (1,)}, **more)


@pytest.mark.parametrize(
    "sets",
    [
        {"uncounted_exit_codes": {75}, "never_restart_exit_codes": {75}},
        {"uncounted_exit_codes": {0}},
    ],
)
def test_r9_an_exit_code_in_two_sets_is_refused(sets):
    with pytest.raises(SpecError, match="exit code"):
        start_processes("r9", work.double, {0: (1,)}, restart_policy=RestartPolicy(**sets))


def test_r9_start_processes_takes_a_strategy(tmp_path):
    with start_processes(
        "r9", work.run_source, {0: ("os._exit(3)",), 1: ("value = 1",)}, strategy="one_for_one", start_method="fork"
    ) as context:
        result = context.wait()
    assert (result.outcome, list(result.failures)) == ("failed", [0])
    assert result.ends[1].role == "finished"


def test_r9_a_close_during_every_step_of_a_restart_leaves_nothing(tmp_path):
    """The gang is closed at once after a failure was told; the fixture looks for what is left."""
    for _ in range(20):
        with faulty(tmp_path, "binary", [LIFE] * 2, strategy="rest_for_one", restart_policy=AT_ONCE) as gang:
            lives(gang, 2)
            gang.tell(0, "3")
            result = gang.ask(Close(timeout=0.5))
        assert result.outcome in {"failed", "stopped"}
