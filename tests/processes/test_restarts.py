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
    SpecError,
    Status,
    Std,
    Subscribe,
    start_processes,
)
from supervise.testing import Recorder
from tests.processes.gangs import each_kind, faulty
from tests.processes.work import BLOCK

AT_ONCE = RestartPolicy(max_restarts=3, backoff=0.0)
SLOWLY = RestartPolicy(max_restarts=3, backoff=60.0)
ATTEMPT = "attempt = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"


@each_kind
def test_a_gang_that_fails_twice_succeeds_the_third_time_as_one_gang(tmp_path, kind):
    """Attempts count up in the environment and the folders; one terminal message ends the whole."""
    flaky = f"{ATTEMPT}print('attempt', attempt)\nif attempt < 2: sys.exit(3)\nvalue = attempt"
    steady = f"{ATTEMPT}value = attempt\nif attempt < 2: {BLOCK}"
    with Recorder() as recorder, faulty(tmp_path, kind, [flaky, steady], restart_policy=AT_ONCE) as gang:
        gang.ask(Subscribe(ref=recorder.ref))
        result = gang.wait()
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


def test_an_attempt_that_cannot_be_started_ends_the_gang_and_says_which(tmp_path):
    """The program deletes itself: the restart fails, and the waiters get its error."""
    program = tmp_path / "once"
    program.write_text("#!/bin/sh\nrm $0\nexit 3\n")
    program.chmod(0o700)
    context = start_processes("x", str(program), {0: ()}, restart_policy=AT_ONCE)
    try:
        with pytest.raises(FileNotFoundError, match="rank 0"):
            context.wait(30)
    finally:
        context.close()


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
    source = f"{ATTEMPT}if attempt == 0: sys.exit(3)\nvalue = attempt"
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        with faulty(tmp_path, "forkserver", [source], restart_policy=RestartPolicy(1, backoff=1.5)) as gang:
            gang.await_event("supervise.gang.restarting")
            server = forkserver._forkserver._forkserver_pid
            os.kill(server, signal.SIGKILL)
            os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
            assert gang.wait().return_values == {0: 1}
            gang.close()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
