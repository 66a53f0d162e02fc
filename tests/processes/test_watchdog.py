"""The watchdog, on real processes: who hangs, what follows, and who is left alone."""

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from queue import SimpleQueue

import pytest

from supervise import (
    DefaultLogsSpecs,
    GangFinished,
    RestartPolicy,
    RestartRanks,
    Signal,
    SpecError,
    Status,
    Std,
    Subscribe,
    Supervisor,
    Watchdog,
    WorkerHung,
)
from supervise.testing import Recorder
from tests.kernels import NEEDS_FAULTHANDLER
from tests.patience import PATIENCE_S
from tests.processes import work
from tests.processes.gangs import each_function, each_kind, faulty
from tests.processes.hosts import ROOT

BEATS = f"""
sys.path.insert(0, {ROOT!r})
from supervise import notify
say("runs")
for word in iter(wait_for_word, "end"):
    if word == "stop":
        notify(stopping=True)
    elif word == "line":
        print("a line", flush=True)
    elif word == "fail":
        os._exit(3)
    elif word == "trigger":
        import socket
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.sendto(b"WATCHDOG=trigger", "\\0" + os.environ["NOTIFY_SOCKET"][1:])
    else:
        notify(step=int(word), status="all_reduce", heartbeat=True)
    say("told")
"""
"""Beats with the step that it is told, and hangs while it is told nothing."""
PERIOD_S = 2.0
SILENT = r"hung: no heartbeat for \d+\.\d s"
"""Without the number: a machine that stands still adds to it."""


@pytest.fixture
def no_py_spy(py_spy, stacks_may_come_late):
    """Every rank writes its stacks itself, on a machine that may stand still."""
    py_spy(None)


def beat(gang, rank, word):
    gang.tell(rank, str(word))
    assert gang.hear() == ["told"]


@each_kind
def test_w1_the_rank_with_the_lowest_step_is_reported_and_nobody_is_stopped(tmp_path, kind, stacks_may_come_late):
    with faulty(tmp_path, kind, [BEATS] * 3, watchdog=Watchdog(PERIOD_S)) as gang, Recorder() as recorder:
        gang.ask(Subscribe(ref=recorder.ref))
        gang.hear(3)
        beat(gang, 1, 5)
        beat(gang, 0, 7)
        beat(gang, 2, 7)
        event = gang.await_event("supervise.process.hung")
        assert (event["local_rank"], event["tier"], event["step"], event["status"]) == (1, "heartbeat", 5, "all_reduce")
        assert event["age_s"] >= PERIOD_S
        told = recorder.wait_for(WorkerHung)
        assert (told.local_rank, told.attempt, told.tier, told.step, told.status) == (
            1,
            0,
            "heartbeat",
            5,
            "all_reduce",
        )
        stacks = gang.await_event("supervise.gang.stacks")
        assert stacks["places"]
        for rank in range(3):
            gang.tell(rank, "end")
        assert gang.wait().outcome == "succeeded"
        recorder.wait_for(GangFinished)
        assert len([message for message in recorder.messages if isinstance(message, WorkerHung)]) == 1
    text = Path(stacks["path"]).read_text()
    assert text.startswith("rank 1 hung: no heartbeat for ")
    assert Path(stacks["path"]).parent == next((tmp_path / "logs").iterdir())


@each_kind
def test_w2_a_hang_may_be_a_failure_whatever_the_exit_code(tmp_path, kind):
    ends_well = "signal.signal(signal.SIGTERM, lambda *_: os._exit(0))\n" + BEATS
    with faulty(tmp_path, kind, [ends_well] * 2, watchdog=Watchdog(PERIOD_S, action="fail")) as gang:
        gang.hear(2)
        beat(gang, 1, 5)
        result = gang.wait()
    assert result.outcome == "failed"
    assert list(result.failures) == [1]
    assert re.fullmatch(rf'{SILENT} \(step 5, "all_reduce"\)', result.failures[1].message)
    assert (result.failures[1].exitcode, result.ends[1].role, result.ends[0].role) == (0, "root_cause", "bystander")


@each_function
def test_w2_an_exception_that_sigterm_raises_is_not_the_cause_of_a_hang(tmp_path, kind):
    """The rank records it when supervise stops it."""
    raises = "def leave(*_):\n    raise RuntimeError('told to stop')\nsignal.signal(signal.SIGTERM, leave)\n" + BEATS
    with faulty(tmp_path, kind, [raises], watchdog=Watchdog(PERIOD_S, action="fail")) as gang:
        gang.hear()
        beat(gang, 0, 5)
        result = gang.wait()
    assert result.failures[0].exitcode == 1
    assert re.match(SILENT, result.failures[0].message)


@each_function
def test_w2_an_exception_before_a_hang_is_its_cause(tmp_path, kind):
    """The rank raises, and hangs at its exit."""
    waits = "import threading\nthreading.Thread(target=threading.Event().wait).start()\n"
    raises = waits + BEATS.replace("os._exit(3)", "raise RuntimeError('the 7th shard is empty')")
    with faulty(tmp_path, kind, [raises], watchdog=Watchdog(3 * PERIOD_S, action="fail")) as gang:
        gang.hear()
        beat(gang, 0, 5)
        gang.tell(0, "fail")  # it must raise before the period is over
        result = gang.wait()
    assert result.failures[0].message["message"] == "RuntimeError: the 7th shard is empty"


def test_w2_a_peer_that_fails_while_stacks_are_collected_takes_no_blame(tmp_path, py_spy):
    """Reading stacks interrupts system calls, which some libraries take for an error."""
    py_spy("exec sleep 100")
    with faulty(tmp_path, "binary", [BEATS] * 2, watchdog=Watchdog(PERIOD_S, action="fail")) as gang:
        gang.hear(2)
        beat(gang, 1, 5)
        gang.await_event("supervise.process.hung")
        gang.tell(0, "fail")
        result = gang.wait()
    assert result.root_cause == 1
    assert re.match(SILENT, result.failures[1].message)


def test_w2_a_rank_fails_even_if_its_stacks_never_come(tmp_path, breaking):
    """The thread that collects them is held up until the rank has failed."""
    answers = threading.Event()
    breaking.instead("collection of stacks", lambda *_: answers.wait() and {})
    try:
        with faulty(tmp_path, "binary", [BEATS], watchdog=Watchdog(1.0, action="fail")) as gang:
            gang.hear()
            beat(gang, 0, 5)
            result = gang.wait()
    finally:
        answers.set()
    assert re.match(SILENT, result.failures[0].message)


def test_w2_the_policy_restarts_a_rank_that_hangs(tmp_path):
    """It ignores SIGTERM, too; the others never notice."""
    deaf = 'if os.environ["LOCAL_RANK"] == "1": signal.signal(signal.SIGTERM, signal.SIG_IGN)\n' + BEATS
    more = {"strategy": "one_for_one", "restart_policy": RestartPolicy(max_restarts=1, backoff=0.0), "grace": 0.5}
    with faulty(tmp_path, "binary", [deaf] * 2, watchdog=Watchdog(PERIOD_S, action="fail"), **more) as gang:
        gang.hear(2)
        before = gang.pids
        beat(gang, 1, 5)
        assert gang.hear() == ["runs"]
        gang.tell(0, "end")
        gang.tell(1, "end")
        result = gang.wait()
    assert result.outcome == "succeeded"
    assert result.ends[0].pid == before[0]
    (restart,) = result.restarts
    assert (restart.local_rank, restart.end.role, restart.counted) == (1, "root_cause", True)
    assert restart.end.exitcode == -signal.SIGKILL


def test_w3_a_rank_whose_logs_do_not_grow_is_reported(tmp_path):
    """A rank that has written nothing yet has no deadline."""
    watchdog = Watchdog(output_timeout_s=PERIOD_S)
    with faulty(tmp_path, "binary", [BEATS] * 2, watchdog=watchdog, strategy="one_for_one") as gang:
        gang.hear(2)
        beat(gang, 1, "line")
        event = gang.await_event("supervise.process.hung")
        assert (event["local_rank"], event["tier"]) == (1, "output")
        assert event["age_s"] >= PERIOD_S
        beat(gang, 1, "line")
        assert gang.await_event("supervise.process.hung")["local_rank"] == 1
        gang.close()


def test_w3_a_rank_that_truncates_its_log_and_writes_as_much_again_is_left_alone(tmp_path):
    """Rank 1 hangs twice meanwhile."""
    rewrites = """import threading, time
def rewrite():
    while True:
        os.ftruncate(1, 0)
        os.write(1, b"a line\\n")
        time.sleep(0.1)
if os.environ["LOCAL_RANK"] == "0":
    threading.Thread(target=rewrite, daemon=True).start()
"""
    watchdog = Watchdog(output_timeout_s=PERIOD_S)
    with faulty(tmp_path, "binary", [rewrites + BEATS] * 2, watchdog=watchdog, strategy="one_for_one") as gang:
        gang.hear(2)
        for _ in range(2):
            beat(gang, 1, "line")
            assert gang.await_event("supervise.process.hung")["local_rank"] == 1
        gang.close()


def test_w3_a_rank_without_a_log_has_no_deadline_for_its_output(tmp_path):
    """Rank 1 has one, and is reported twice meanwhile."""
    source = BEATS.replace('say("runs")', 'notify(ready=True)\nsay("runs")')
    logs = DefaultLogsSpecs(str(tmp_path / "logs"), redirects={0: Std.NONE, 1: Std.ALL})
    watchdog = Watchdog(output_timeout_s=1.0, stacks=False)
    more = {"ready": "notify", "strategy": "one_for_one", "logs_specs": logs}
    with faulty(tmp_path, "binary", [source] * 2, watchdog=watchdog, **more) as gang:
        gang.hear(2)
        for _ in range(2):
            beat(gang, 1, "line")
            assert gang.await_event("supervise.process.hung")["local_rank"] == 1
        gang.close()


def test_w4_who_is_suspended_stops_or_has_not_begun_is_left_alone(tmp_path):
    """Rank 3 hangs twice meanwhile. A rank that is continued has a full period from then on."""
    with faulty(tmp_path, "binary", [BEATS] * 4, watchdog=Watchdog(PERIOD_S), strategy="one_for_one") as gang:
        gang.hear(4)  # rank 2 sends nothing
        beat(gang, 0, 1)
        gang.ask(Signal(sig=signal.SIGSTOP, ranks=frozenset({0})))
        beat(gang, 1, 1)
        beat(gang, 1, "stop")
        for step in (1, 2):
            beat(gang, 3, step)
            assert gang.await_event("supervise.process.hung")["local_rank"] == 3
        gang.ask(Signal(sig=signal.SIGCONT, ranks=frozenset({0})))
        event = gang.await_event("supervise.process.hung")
        assert (event["local_rank"], event["step"]) == (0, 1)
        gang.close()


def test_w4_those_that_wait_for_a_suspended_rank_are_left_alone(tmp_path):
    """A gang of one rank measures the time: it hangs after three periods of the other gang."""
    (tmp_path / "clock").mkdir()
    with (
        faulty(tmp_path, "binary", [BEATS] * 2, watchdog=Watchdog(PERIOD_S, action="fail")) as gang,
        faulty(tmp_path / "clock", "binary", [BEATS], watchdog=Watchdog(3 * PERIOD_S)) as clock,
    ):
        gang.hear(2)
        clock.hear(1)
        beat(gang, 0, 1)
        gang.ask(Signal(sig=signal.SIGSTOP, ranks=frozenset({0})))
        beat(gang, 1, 1)  # and waits for rank 0
        beat(clock, 0, 1)
        clock.await_event("supervise.process.hung")
        gang.ask(Signal(sig=signal.SIGCONT, ranks=frozenset({0})))
        for rank in range(2):
            gang.tell(rank, "end")
        assert gang.wait().outcome == "succeeded"
        clock.tell(0, "end")
        assert clock.wait().outcome == "succeeded"


def test_w4_a_heartbeat_that_waits_in_the_socket_when_the_deadline_comes_counts(heartbeats_are_not_read, tmp_path):
    """The first heartbeat is read at once; after that, only the check of a deadline reads the socket."""
    with faulty(tmp_path, "binary", [BEATS], watchdog=Watchdog(2 * PERIOD_S)) as gang:
        gang.hear()
        deadline_s = time.monotonic() + PATIENCE_S
        for step in (1, 2):
            beat(gang, 0, step)
            while gang.ask(Status()).ranks[0].step != step:
                assert time.monotonic() < deadline_s
                threading.Event().wait(0.01)
        gang.close()
        names = iter(lambda: gang._events.get(timeout=PATIENCE_S)["event"], "supervise.gang.finished")
        assert "supervise.process.hung" not in names


TRACES = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.ptrace(0x4206, int(sys.argv[1]), None, None):  # PTRACE_SEIZE, which does not stop the process
    sys.exit(f"cannot trace: {os.strerror(ctypes.get_errno())}")
print("traces", flush=True)
sys.stdin.read()
"""


def test_w4_a_traced_rank_is_left_alone(tmp_path):
    """Its debugger holds it up whenever it likes. Rank 1 hangs twice meanwhile."""
    with faulty(tmp_path, "binary", [BEATS] * 2, watchdog=Watchdog(PERIOD_S), strategy="one_for_one") as gang:
        gang.hear(2)
        words = [sys.executable, "-S", "-c", TRACES, str(gang.pids[0])]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(words, **pipes) as tracer:
            if tracer.stdout.readline() != "traces\n":
                pytest.skip(tracer.stderr.read().strip())
            beat(gang, 0, 1)
            for step in (1, 2):
                beat(gang, 1, step)
                assert gang.await_event("supervise.process.hung")["local_rank"] == 1
            tracer.stdin.close()
            assert tracer.wait(PATIENCE_S) == 0
        assert gang.await_event("supervise.process.hung")["local_rank"] == 0
        gang.close()


def test_w4_a_rank_whose_socket_a_stranger_floods_is_left_alone(tmp_path):
    """Rank 1 hangs twice meanwhile. The stranger fills the queue again as soon as it was read."""
    source = "say(os.environ['LOCAL_RANK'] + os.environ['NOTIFY_SOCKET'])\n" + BEATS
    flood = "\nwhile True: end.sendto(b'x', address)"
    with faulty(tmp_path, "binary", [source] * 2, watchdog=Watchdog(PERIOD_S), strategy="one_for_one") as gang:
        (address,) = (word[1:] for word in gang.hear(4) if word.startswith("0@"))
        begin = f"import socket\nend = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\naddress = {address!r}"
        begin = begin.replace("'@", "'\\0") + "\nprint('ready', flush=True)\ninput()"
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen([sys.executable, "-S", "-c", begin + flood], **pipes) as stranger:
            assert stranger.stdout.readline() == "ready\n"
            beat(gang, 0, 1)
            stranger.stdin.write("go\n")
            stranger.stdin.flush()
            for step in (1, 2):
                beat(gang, 1, step)
                assert gang.await_event("supervise.process.hung")["local_rank"] == 1
            stranger.kill()
        assert gang.await_event("supervise.process.hung")["local_rank"] == 0
        gang.close()


def test_w5_a_rank_may_say_itself_that_it_hangs(tmp_path):
    """Once until its next heartbeat."""
    with faulty(tmp_path, "binary", [BEATS], watchdog=Watchdog(600.0, stacks=False)) as gang, Recorder() as recorder:
        gang.ask(Subscribe(ref=recorder.ref))
        gang.hear()
        for word in (1, "trigger", "trigger", 2, "trigger", "end"):
            gang.tell(0, str(word))
            if word != "end":
                gang.hear()
        gang.wait()
        recorder.wait_for(GangFinished)
        told = [message for message in recorder.messages if isinstance(message, WorkerHung)]
    assert [(message.local_rank, message.tier, message.step) for message in told] == [
        (0, "heartbeat", 1),
        (0, "heartbeat", 2),
    ]


def test_w5_the_deadline_is_no_second_report_of_a_rank_that_said_itself_that_it_hangs(tmp_path):
    """Rank 1 has the later deadline."""
    watchdog = Watchdog(1.0, stacks=False)
    with faulty(tmp_path, "binary", [BEATS] * 2, watchdog=watchdog, strategy="one_for_one") as gang:
        gang.hear(2)
        beat(gang, 0, 1)
        beat(gang, 0, "trigger")
        assert gang.await_event("supervise.process.hung")["local_rank"] == 0
        beat(gang, 1, 1)
        assert gang.await_event("supervise.process.hung")["local_rank"] == 1
        gang.close()


def test_w6_a_rank_knows_its_period(tmp_path):
    with faulty(tmp_path, "binary", ["say(os.environ['WATCHDOG_USEC'])"], watchdog=Watchdog(30.0)) as gang:
        assert gang.hear() == ["30000000"]
        gang.wait()


def test_w6_a_watchdog_leaves_no_thread_and_no_socket(tmp_path):
    """Also if the gang is closed while it reports; the fixture of all tests looks for what is left."""
    for _ in range(3):
        with faulty(tmp_path, "binary", [BEATS], watchdog=Watchdog(0.3)) as gang:
            gang.hear()
            beat(gang, 0, 1)
            gang.await_event("supervise.process.hung")
            gang.close()


def test_w6_each_gang_has_its_own_file_of_stacks_in_a_shared_folder(tmp_path, stacks_may_come_late):
    """Only this user may read it. Without the folder, the event names no file."""
    logs = DefaultLogsSpecs(str(tmp_path / "logs"))
    paths = []
    for _ in range(3):
        with faulty(tmp_path, "binary", [BEATS], watchdog=Watchdog(1.0), logs_specs=logs) as gang:
            gang.hear()
            if len(paths) == 2:
                shutil.rmtree(tmp_path / "logs")
            beat(gang, 0, len(paths))
            paths.append(gang.await_event("supervise.gang.stacks")["path"])
            gang.close()
            if len(paths) == 1:
                assert stat.S_IMODE(Path(paths[0]).stat().st_mode) == 0o600
    assert [Path(path).name for path in paths] == ["stacks-1.txt", "stacks-2.txt", ""]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"heartbeat_timeout_s": 0}, "heartbeat_timeout_s is 0"),
        ({"output_timeout_s": "1"}, "output_timeout_s is '1'"),
        ({"heartbeat_timeout_s": 1.0, "action": "kill"}, "action is 'kill'; it is one of report, fail"),
        ({"heartbeat_timeout_s": 1.0, "stacks": 1}, "stacks is 1; give True or False"),
    ],
)
def test_w7_settings_that_are_not_valid_are_refused(settings, text):
    with pytest.raises(SpecError, match=text):
        Watchdog(**settings)
    with pytest.raises(SpecError, match="a Watchdog needs heartbeat_timeout_s or output_timeout_s"):
        Supervisor.start(name="x", entrypoint="true", args={0: ()}, watchdog=Watchdog())
    with pytest.raises(SpecError, match="watchdog is 30"):
        Supervisor.start(name="x", entrypoint="true", args={0: ()}, watchdog=30)


def test_w8_the_command_line_fails_a_run_that_hangs(tmp_path):
    words = ["--output-timeout", "1", "--on-hang", "fail", "--log-dir", str(tmp_path), "--no-python"]
    run = subprocess.run(
        [sys.executable, "-m", "supervise", "run", *words, "sh", "-c", "echo begun; exec sleep 1000"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "PYTHONPATH": ROOT},
        check=False,
    )
    assert run.returncode == 1, run.stderr
    assert re.search(r"rank 0 hangs: no output for \d", run.stderr)
    assert run.stderr.count("hung") == 1
    assert re.search(r"supervise: rank 0 failed: hung: no output for \d", run.stderr)


def test_w2_a_hang_before_all_ranks_are_ready_is_not_told_as_a_rank_that_did_not_start(tmp_path):
    """The start fails, since the gang is not complete; the rank runs."""
    (tmp_path / "gang.toml").write_text("""
[roles.store]
command = "sh -c 'echo begun; exec sleep 1000'"
[roles.trainer]
command = "sleep 1000"
ready = "notify"
""")
    run = subprocess.run(
        [sys.executable, "-m", "supervise", "run", "--file", "gang.toml", "--output-timeout", "1", "--on-hang", "fail"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "PYTHONPATH": ROOT, "SUPERVISE_RUNS_DIR": str(tmp_path / "runs")},
        check=False,
    )
    assert run.returncode == 1, run.stderr
    assert "supervise: cannot start: rank 0 (store 0) hung before all ranks were ready: no output for " in run.stderr
    assert "did not start" not in run.stderr


TOGETHER = f"""
sys.path.insert(0, {ROOT!r})
import threading
from supervise import enable_stacks, notify
enable_stacks()
def barrier():
    threading.Event().wait()
def save():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
say("runs")
wait_for_word()
"""
REPORTS = TOGETHER + "notify(step=7)\n"
WAITS, SAVES, IDLES = REPORTS + "barrier()", REPORTS + "save()", REPORTS + "threading.Event().wait()"


def hang_of(tmp_path, kind, sources, stacks=True, **more):
    """Return the event and the result of a gang whose ranks report at almost the same time, and then fall silent."""
    watchdog = Watchdog(2 * PERIOD_S, action="fail", stacks=stacks)
    with faulty(tmp_path, kind, sources, watchdog=watchdog, **more) as gang:
        gang.hear(len(sources))
        for rank in range(len(sources)):
            gang.tell(rank)
        event = gang.await_event("supervise.process.hung")
        return event, gang.wait()


@NEEDS_FAULTHANDLER
@each_function
@pytest.mark.parametrize("culprit", [1, 2])
def test_w9_of_ranks_that_fall_silent_together_the_stacks_name_one(tmp_path, kind, culprit, no_py_spy):
    sources = [WAITS] * 3
    sources[culprit] = SAVES
    event, result = hang_of(tmp_path, kind, sources)
    others = [rank for rank in range(3) if rank != culprit]
    assert (event["local_rank"], event["waiting"]) == (culprit, others)
    assert re.fullmatch(r"by its stack: save \(<string>:\d+\), outside of the collective", event["evidence"])
    assert result.root_cause == culprit
    assert re.fullmatch(rf"{SILENT} \(step 7\); {re.escape(event['evidence'])}", result.failures[culprit].message)


def test_w9_without_stacks_the_rank_that_was_silent_longest_is_named(tmp_path, no_py_spy):
    event, result = hang_of(tmp_path, "fork", [WAITS, SAVES, WAITS], stacks=False)
    assert event["evidence"].startswith("silent longest: no stacks can be compared; no stack of ranks 0-2")
    assert result.root_cause == event["local_rank"]


@NEEDS_FAULTHANDLER
def test_w9_alike_stacks_are_said_to_be_alike(tmp_path, no_py_spy):
    event, _ = hang_of(tmp_path, "fork", [WAITS] * 2)
    assert event["evidence"] == "silent longest: the stacks are alike"


@NEEDS_FAULTHANDLER
def test_w9_of_two_ranks_without_a_known_collective_none_is_named_by_its_stack(tmp_path, no_py_spy):
    event, _ = hang_of(tmp_path, "fork", [IDLES, SAVES])
    assert event["evidence"] == "silent longest: the stacks do not decide"


@NEEDS_FAULTHANDLER
def test_w9_a_rank_that_reports_nothing_may_be_the_one_that_hangs(tmp_path, no_py_spy):
    """Only rank 0 sends heartbeats, as in many trainings."""
    event, result = hang_of(tmp_path, "fork", [WAITS, TOGETHER + "save()"])
    assert (event["local_rank"], event["waiting"]) == (1, [0])
    assert event["evidence"].startswith("by its stack: save (")
    assert result.root_cause == 1


@NEEDS_FAULTHANDLER
@each_function
def test_w9_a_rank_that_left_early_is_named_with_its_time(tmp_path, kind, no_py_spy):
    event, result = hang_of(tmp_path, kind, [WAITS, REPORTS, WAITS])
    assert re.fullmatch(r"rank 1 exited \d+\.\d s ago with code 0, while these ranks wait", event["evidence"])
    assert result.root_cause in (0, 2)
    assert result.failures[result.root_cause].message.endswith(event["evidence"])


@NEEDS_FAULTHANDLER
@each_function
def test_w9_a_rank_that_has_returned_and_is_held_is_named(tmp_path, kind, no_py_spy):
    event, result = hang_of(tmp_path, kind, [WAITS, REPORTS, WAITS], hold_returned=True)
    assert event["evidence"] == "rank 1 returned before, while these ranks wait"
    assert result.root_cause in (0, 2)


def test_w9_a_rank_that_has_started_again_meanwhile_takes_no_blame(tmp_path, breaking, stacks_may_come_late):
    """Its earlier life was silent, and exited with code 0 when it was told to stop."""
    begun, answers, events = threading.Event(), threading.Event(), SimpleQueue()
    breaking.instead("collection of stacks", lambda *_: begun.set() or (answers.wait() and {}))
    polite = REPORTS.replace("import threading\n", "signal.signal(signal.SIGTERM, lambda *_: os._exit(0))\n")
    sources = [f"{polite}while True: {work.LOOK}"] * 2
    try:
        watchdog = Watchdog(PERIOD_S, action="fail")
        with faulty(tmp_path, "binary", sources, watchdog=watchdog, event_sink=events.put) as gang:
            gang.hear(2)
            for rank in range(2):
                gang.tell(rank)
            assert begun.wait(PATIENCE_S)
            gang.ask(RestartRanks(frozenset({0, 1})))
            gang.hear(2)
            for event in iter(lambda: events.get(timeout=PATIENCE_S)["event"], "supervise.gang.stacks"):
                assert event != "supervise.process.hung"
            assert gang.close().root_cause is None
    finally:
        answers.set()


def test_w9_a_lower_step_needs_no_stack(tmp_path, no_py_spy):
    event, _ = hang_of(tmp_path, "fork", [SAVES, WAITS.replace("step=7", "step=6"), WAITS])
    assert (event["local_rank"], event["evidence"]) == (1, "")
