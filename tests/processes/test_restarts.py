"""Restarts of a whole gang of real processes: anew in everything, never beside an old one, never against the user."""

import multiprocessing
import os
import signal
import sys
from multiprocessing import forkserver
from pathlib import Path

import psutil
import pytest

from supervise import (
    Close,
    DefaultLogsSpecs,
    GangFinished,
    GangRestarting,
    GangStarted,
    RestartPolicy,
    RestartRanks,
    Role,
    SpecError,
    Start,
    Status,
    Std,
    Subscribe,
    Supervisor,
    Wait,
    start_processes,
)
from supervise.testing import EventRecorder, Recorder
from tests.patience import PATIENCE_S
from tests.processes.gangs import each_kind, faulty, prepared
from tests.processes.work import BLOCK

AT_ONCE = RestartPolicy(max_restarts=3, backoff=0.0)
SLOWLY = RestartPolicy(max_restarts=3, backoff=60.0)
ATTEMPT = "attempt = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"


@each_kind
def test_a_gang_that_fails_twice_succeeds_the_third_time_as_one_gang(tmp_path, kind):
    """Attempts count up in the environment and the folders; one terminal message ends the whole."""
    flaky = f"{ATTEMPT}print('attempt', attempt)\nif attempt < 2: sys.exit(3)\nvalue = attempt"
    steady = f"{ATTEMPT}value = attempt\nif attempt < 2: {BLOCK}"
    with Recorder() as recorder, prepared(tmp_path, kind, [flaky, steady], restart_policy=AT_ONCE) as gang:
        gang.ask(Subscribe(ref=recorder.ref))
        result = gang.start().wait()
        gang.close()
        recorder.wait_for(GangFinished)
        told = recorder.messages
    assert result.outcome == "succeeded"
    assert result.return_values == ({0: None, 1: None} if kind == "binary" else {0: 2, 1: 2})
    assert Path(result.stdouts[0]).read_text() == "attempt 2\n"
    assert sorted(path.name for path in Path(result.stdouts[0]).parents[2].iterdir()) == [
        "attempt_0",
        "attempt_1",
        "attempt_2",
    ]
    assert (Path(result.stdouts[0]).parents[2] / "attempt_0/0/stdout.log").read_text() == "attempt 0\n"
    restarts = [message for message in told if isinstance(message, GangRestarting)]
    assert [(r.attempt, r.max_restarts, r.result.root_cause) for r in restarts] == [(1, 3, 0), (2, 3, 0)]
    assert [type(m) for m in told if isinstance(m, (GangStarted, GangFinished))][-2:] == [GangStarted, GangFinished]
    assert sum(isinstance(message, GangFinished) for message in told) == 1


def test_one_failure_too_many_is_the_result_of_the_last_attempt(tmp_path):
    source = f"{ATTEMPT}sys.exit(10 + attempt)"
    with faulty(tmp_path, "binary", [source, BLOCK], restart_policy=RestartPolicy(2, backoff=0.0)) as gang:
        result = gang.wait()
        gang.close()
        gang.await_event("supervise.gang.restarting", attempt=1, max_restarts=2)
        gang.await_event("supervise.gang.restarting", attempt=2)
        failed = gang.await_event("supervise.gang.failed")
    assert result.outcome == "failed"
    assert (result.root_cause, result.failures[0].exitcode) == (0, 12)
    assert failed["attempt"] == 2


@each_kind
def test_nothing_of_an_attempt_lives_beside_the_next(tmp_path, kind):
    """A rank's child that ignores SIGTERM is gone, by SIGKILL after the grace, before the next attempt begins."""
    source = f"""{ATTEMPT}
if attempt:
    say("again"); {BLOCK}
pid = os.fork()
if not pid:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say(f"child {{os.getpid()}}")
    while True: {BLOCK}
wait_for_word()
os._exit(3)
"""
    with faulty(tmp_path, kind, [source], restart_policy=AT_ONCE, grace=0.2) as gang:
        child = psutil.Process(int(gang.hear()[0].removeprefix("child ")))
        gang.tell(0)
        assert gang.hear() == ["again"]
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
        gang.close()


@pytest.mark.parametrize("within_s", [float(sys.maxsize), 1e-300])
def test_however_long_restarts_count_a_failed_gang_is_restarted(tmp_path, within_s):
    policy = RestartPolicy(max_restarts=1, within_s=within_s, backoff=0.0)
    source = ATTEMPT + "sys.exit(0 if attempt else 3)"
    with faulty(tmp_path, "binary", [source], restart_policy=policy) as gang:
        assert gang.wait().outcome == "succeeded"


@pytest.mark.parametrize(
    "wrong", [{"within_s": 1e300}, {"backoff": 1e300}, {"backoff": float("nan")}, {"max_restarts": 10**400}], ids=list
)
def test_a_policy_of_numbers_without_measure_is_refused(wrong):
    with pytest.raises(SpecError, match=next(iter(wrong))):
        RestartPolicy(**wrong)


def test_a_close_during_the_wait_is_the_end_with_the_result_of_what_failed(tmp_path):
    with faulty(tmp_path, "binary", ["sys.exit(3)"], restart_policy=SLOWLY) as gang:
        event = gang.await_event("supervise.gang.restarting")
        assert 45 <= event["backoff_s"] <= 75
        assert gang.ask(Status()).phase == "restarting"
        result = gang.close()
        assert result == gang.wait()
        assert result.failures[0].exitcode == 3
        assert gang.ask(Status()).phase == "finished"
        gang.await_event("supervise.gang.finished", outcome="failed")


def test_a_close_while_a_gang_stops_after_a_failure_forbids_the_restart(tmp_path):
    """Rank 1 takes its time to stop; the user closes meanwhile."""
    slow = "signal.signal(signal.SIGTERM, lambda *_: (say('stopping'), wait_for_word(), os._exit(0)))\nsay('ready')\n"
    loop = f"while True: {BLOCK}"
    with faulty(tmp_path, "binary", ["wait_for_word(); sys.exit(3)", slow + loop], restart_policy=AT_ONCE) as gang:
        assert gang.hear() == ["ready"]
        gang.tell(0)
        assert gang.hear() == ["stopping"]
        closing = gang.supervisor.ask(Close(), block=False)
        gang.ask(Status())  # the close has been taken in
        gang.tell(1)
        result = closing.get(timeout=30)
        assert (result.outcome, result.root_cause) == ("failed", 0)
        assert gang.ask(Status()).attempt == 0


def test_a_gang_that_cannot_start_is_not_started_again(tmp_path):
    missing = tmp_path / "no-such-program"
    with pytest.raises(FileNotFoundError, match="rank 0"):
        start_processes("x", str(missing), {0: ()}, restart_policy=AT_ONCE)


ONCE = "#!/bin/sh\nrm $0\nexit 3\n"
"""A program that is gone after its first life."""


def program_of(folder, text):
    program = folder / "program"
    program.write_text(text)
    program.chmod(0o700)
    return program


def test_r6_an_attempt_that_cannot_be_launched_is_tried_again_until_the_limit(tmp_path):
    """Each failed launch is a failure of the rank, which counts; `wait` returns a result and raises nothing."""
    program = program_of(tmp_path, ONCE)
    context = start_processes("x", str(program), {0: ()}, restart_policy=AT_ONCE)
    try:
        result = context.wait(PATIENCE_S)
    finally:
        context.close()
    assert (result.outcome, result.root_cause) == ("failed", 0)
    assert result.failures[0].message.startswith("attempt 3 could not be started: [Errno 2] ")
    assert (result.ends[0].pid, result.ends[0].exitcode) == (None, None)
    assert [(each.attempt, each.end.exitcode, each.counted) for each in result.restarts] == [
        *((0, 3, True), (1, None, True), (2, None, True)),
    ]


@each_kind
def test_r6_attempts_whose_logs_cannot_be_made_have_failed_and_a_later_one_succeeds(tmp_path, kind):
    """The log folders of three attempts cannot be made, so that these have no process."""
    source = f"{ATTEMPT}say(str(attempt)); wait_for_word(); sys.exit(3 if not attempt else 0)"
    policy = RestartPolicy(max_restarts=10_000, backoff=0.05)
    with faulty(tmp_path, kind, [source] * 2, restart_policy=policy) as gang:
        gang.hear(2)
        (run,) = (tmp_path / "logs").iterdir()
        in_the_way = [run / f"attempt_{number}" for number in range(1, 4)]
        for path in in_the_way:
            path.write_text("")
        gang.tell(0)
        for number in range(1, 4):
            failed = gang.await_event("supervise.gang.restarting", attempt=number + 1)
            assert failed["root_cause_rank"] == 0
        assert gang.hear(2) == ["4", "4"]
        gang.tell(0)
        gang.tell(1)
        result = gang.wait()
    assert result.outcome == "succeeded"
    assert [each.end.exitcode for each in result.restarts if each.local_rank == 0] == [3, None, None, None]


def test_r6_a_rank_above_the_first_that_cannot_be_launched_stops_the_ranks_below(tmp_path):
    roles = [
        Role(name="steady", entrypoint="sleep", args={0: ("1000",)}),
        Role(name="gone", entrypoint=str(program_of(tmp_path, ONCE)), args={0: ()}),
    ]
    policy = RestartPolicy(max_restarts=1, backoff=0.0)
    gang = Supervisor.start(name="x", roles=roles, restart_policy=policy, logs_specs=DefaultLogsSpecs(str(tmp_path)))
    try:
        gang.ask(Start(), timeout=PATIENCE_S)
        result = gang.ask(Wait(), timeout=PATIENCE_S)
        gang.ask(Close(), timeout=PATIENCE_S)
    finally:
        gang.stop(timeout=PATIENCE_S)
    assert (result.outcome, result.root_cause) == ("failed", 1)
    assert {rank: (end.role, end.exitcode) for rank, end in result.ends.items()} == {
        0: ("bystander", -signal.SIGTERM),
        1: ("root_cause", None),
    }


def test_r6_a_close_while_attempts_cannot_be_launched_ends_the_gang(tmp_path):
    policy = RestartPolicy(max_restarts=10_000, backoff=0.01)
    program, logs = str(program_of(tmp_path, ONCE)), DefaultLogsSpecs(str(tmp_path / "logs"))
    events = EventRecorder()
    more = {"restart_policy": policy, "logs_specs": logs, "event_sink": events}
    gang = Supervisor.start(name="x", entrypoint=program, args={0: ()}, **more)
    try:
        gang.ask(Start(), timeout=PATIENCE_S)
        events.wait_for("supervise.process.start_failed")
        result = gang.ask(Close(), timeout=PATIENCE_S)
    finally:
        gang.stop(timeout=PATIENCE_S)
    assert (result.outcome, result.root_cause) == ("failed", 0)
    assert result.failures[0].message.partition(":")[0].endswith("could not be started")


def test_the_contexts_pids_and_logs_are_those_of_the_last_attempt(tmp_path):
    """Attempt 1 writes its pid and succeeds when it is told to."""
    go = tmp_path / "go"
    os.mkfifo(go)
    script = f'echo $$; [ "$TORCHELASTIC_RESTART_COUNT" = 1 ] || exit 3; read line < {go}'
    logs = DefaultLogsSpecs(str(tmp_path / "logs"), redirects=Std.OUT)
    context = start_processes("x", "/bin/sh", {0: ("-c", script)}, logs_specs=logs, restart_policy=AT_ONCE)
    try:
        first = context.stdouts[0]
        go.write_text("go\n")  # returns when attempt 1 reads it
        result = context.wait(30)
    finally:
        context.close()
    assert "attempt_0" in first
    assert "attempt_1" in context.stdouts[0]
    assert context.stdouts == result.stdouts
    assert Path(context.stdouts[0]).read_text() == f"{context.pids()[0]}\n"


def test_functions_get_their_arguments_anew_in_each_attempt(tmp_path):
    """What was pickled in the caller's thread serves all attempts, also a queue that all of them share."""
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    context = start_processes("x", work_with_queue, {0: (queue,)}, {0: {}}, restart_policy=AT_ONCE)
    try:
        result = context.wait(60)
        assert result is not None
        assert result.return_values == {0: "1"}
        assert [queue.get(), queue.get()] == ["0", "1"]
    finally:
        context.close()
        queue.close()


def work_with_queue(queue):
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    queue.put(attempt)
    if attempt == "0":
        raise RuntimeError("the first attempt fails")
    return attempt


def test_a_fork_server_that_was_killed_between_attempts_is_replaced_where_sigchld_is_blocked(tmp_path):
    """The new one inherits the mask of the host, and would never hear that a rank has ended."""

    def kill_the_server(event):
        if event["event"] == "supervise.gang.restarting":
            server = forkserver._forkserver._forkserver_pid
            os.kill(server, signal.SIGKILL)
            os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)

    source = f"{ATTEMPT}if attempt == 0: sys.exit(3)\nvalue = attempt"
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        with faulty(tmp_path, "forkserver", [source], restart_policy=AT_ONCE, event_sink=kill_the_server) as gang:
            assert gang.wait().return_values == {0: 1}
            gang.close()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


HERE = ("-c", 'pwd >> "$OUT"; exec sleep 1000')


@pytest.mark.parametrize(("cwd", "program"), [(None, "sh"), ("below", "sh"), (None, "./shell"), ("below", "../shell")])
def test_later_lives_begin_in_the_folder_of_the_first_one(tmp_path, monkeypatch, cwd, program):
    """Although the host is in another folder meanwhile."""
    home, out = tmp_path / "home", tmp_path / "out"
    (home / "below").mkdir(parents=True)
    (home / "shell").symlink_to("/bin/sh")
    os.mkfifo(out)
    monkeypatch.chdir(home)
    gang = Supervisor.start(
        name="moved",
        entrypoint=program,
        args={0: HERE},
        envs={0: {"OUT": str(out)}},
        cwd=cwd,
        restart_policy=AT_ONCE,
        strategy="one_for_one",
    )
    try:
        start = gang.ask(Start(), block=False)
        with out.open() as said:
            first = said.read()  # to the end, which the shell makes before it goes on
        start.get(timeout=PATIENCE_S)
        monkeypatch.chdir("/")
        again = gang.ask(RestartRanks({0}), block=False)
        with out.open() as said:
            assert said.read() == first == f"{home / (cwd or '')}\n"
        assert again.get(timeout=PATIENCE_S).keys() == {0}
    finally:
        gang.stop()
