"""Readiness, on real processes: the start of a gang, and the later lives of its ranks."""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from functools import partial
from pathlib import Path

import pykka
import pytest

from supervise import (
    DefaultLogsSpecs,
    GangFinished,
    GangStarted,
    RestartPolicy,
    RestartRanks,
    Signal,
    SpawnError,
    SpecError,
    Start,
    Status,
    Subscribe,
    SuperviseError,
    Supervisor,
    Wait,
    WorkerReady,
    WorkerStarted,
)
from supervise.testing import Recorder
from tests.patience import PATIENCE_S
from tests.processes.gangs import each_kind, faulty, launched, prepared
from tests.processes.hosts import ROOT, watched

NOTIFY = f"""
sys.path.insert(0, {ROOT!r})
from supervise import notify
life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
rank = os.environ["LOCAL_RANK"]
notify(status="loading\\n" + rank)
say(f"{{rank}}:{{life}}:{{os.getpid()}}")
"""
OBEYS = (
    NOTIFY
    + """
for word in iter(wait_for_word, "end"):
    if word.isdigit(): os._exit(int(word))
    notify(ready=True, status="serving", step=7)
    say(f"{rank}:told")
"""
)
"""Says that it runs, and is ready, or ends, as it is told."""
EARLY = """
import os, socket
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
    end.sendto(b"READY=1", "\\0" + os.environ["NOTIFY_SOCKET"][1:])
open(os.environ["GATE"]).readline()
os._exit(3)
"""
"""Is ready as soon as it can be, and fails when it is told to."""
AT_ONCE = RestartPolicy(max_restarts=2, backoff=0.0)


def begin(gang, count):
    """Begin to start a gang; return the pending reply when this many lives run."""
    reply = gang.supervisor.ask(Start(), block=False)
    gang.hear(count)
    return reply


def row(gang, rank, state):
    """Return the row of a rank when it is in this state: a life may speak before supervise knows of it."""
    give_up_s = time.monotonic() + PATIENCE_S
    while (found := gang.ask(Status()).ranks[rank]).state != state:
        assert time.monotonic() < give_up_s, found
    return found


def make_ready(gang, rank):
    gang.tell(rank, "ready")
    assert gang.hear() == [f"{rank}:told"]


def test_a_timeout_that_expires_during_the_start_is_named_and_is_the_outcome(tmp_path):
    with prepared(tmp_path, "binary", [OBEYS], ready="notify", timeout=0.5) as gang:
        waited = gang.supervisor.ask(Wait(), block=False)
        with pytest.raises(SpawnError, match=r"rank 0 was not ready: .* timeout before every rank was ready"):
            gang.start()
        assert waited.get(timeout=PATIENCE_S).outcome == "timed_out"


@each_kind
def test_n1_a_gang_has_started_when_every_rank_is_ready(tmp_path, kind):
    with prepared(tmp_path, kind, [OBEYS] * 2, ready="notify") as gang, Recorder() as recorder:
        gang.ask(Subscribe(ref=recorder.ref))
        reply = begin(gang, 2)
        make_ready(gang, 1)
        ready = row(gang, 1, "ready")
        assert (ready.status, ready.step) == ("serving", 7)
        assert ready.beat_age_s is not None
        waiting = row(gang, 0, "starting")
        assert (waiting.status, waiting.step, waiting.beat_age_s) == ("loading 0", None, None)
        assert gang.ask(Status()).phase == "starting"
        make_ready(gang, 0)
        assert reply.get(timeout=PATIENCE_S) == gang.pids
        assert gang.await_event("supervise.process.ready", local_rank=1)
        assert gang.await_event("supervise.process.ready", local_rank=0)
        assert gang.await_event("supervise.gang.started")
        for rank in range(2):
            gang.tell(rank, "end")
        assert gang.wait().outcome == "succeeded"
        recorder.wait_for(GangFinished)
        told = recorder.messages
    kinds = [type(message) for message in told if isinstance(message, (WorkerStarted, WorkerReady, GangStarted))]
    assert kinds == [WorkerStarted, WorkerStarted, WorkerReady, WorkerReady, GangStarted]
    assert [message.local_rank for message in told if isinstance(message, WorkerReady)] == [1, 0]


@each_kind
@pytest.mark.parametrize("code", [0, 3])
def test_n2_an_end_before_readiness_fails_the_start(tmp_path, kind, code):
    """Whatever the exit code; the error names the rank and its last status."""
    with prepared(tmp_path, kind, [OBEYS] * 2, ready="notify") as gang:
        reply = gang.supervisor.ask(Start(), block=False)
        with watched([int(line.split(":")[2]) for line in gang.hear(2)]) as watch:
            make_ready(gang, 0)
            gang.tell(1, str(code))
            with pytest.raises(SpawnError) as failed:
                reply.get(timeout=PATIENCE_S)
            assert watch.survivors(0) == set()
        assert str(failed.value) == (f"rank 1 ended before it was ready: exit code {code}; its last status: loading 1")
        with pytest.raises(SpawnError):
            gang.ask(Wait())
        event = gang.await_event("supervise.process.start_failed")
        assert (event["local_rank"], event["exception_message"]) == (1, "ended before it was ready")


def read_settings(key: str) -> None:
    raise ValueError(f"no setting {key}")


@pytest.mark.parametrize("start_method", ["spawn", "fork", "forkserver"])
def test_n2_the_error_of_a_function_that_raises_before_readiness_has_its_traceback(tmp_path, start_method):
    start = partial(Supervisor.start, entrypoint=read_settings, args={0: ("lr",)}, start_method=start_method)
    with (
        start(name="early", ready="notify", logs_specs=DefaultLogsSpecs(str(tmp_path))) as gang,
        pytest.raises(SpawnError, match=r"^rank 0 ended before it was ready: exit code 1$") as failed,
    ):
        gang.ask(Start(), timeout=PATIENCE_S)
    shown = "".join(traceback.format_exception(failed.value))
    assert "in read_settings" in shown
    assert "ValueError: no setting lr" in shown


def test_n2_a_failure_after_readiness_fails_the_start_while_another_rank_is_not_ready(tmp_path):
    with prepared(tmp_path, "binary", [OBEYS] * 2, ready="notify") as gang:
        reply = begin(gang, 2)
        make_ready(gang, 0)
        row(gang, 0, "ready")
        gang.tell(0, "3")
        with pytest.raises(SpawnError, match=r"^rank 0 ended before all ranks were ready: exit code 3"):
            reply.get(timeout=PATIENCE_S)


def test_n2_a_success_after_readiness_is_a_success(tmp_path):
    """Also if the process ends at once, when its report and its end arrive together."""
    with prepared(tmp_path, "binary", [NOTIFY + "notify(ready=True)", OBEYS], ready="notify") as gang:
        reply = begin(gang, 2)
        row(gang, 0, "finished")
        make_ready(gang, 1)
        assert reply.get(timeout=PATIENCE_S).keys() == {0, 1}
        gang.tell(1, "end")
        assert gang.wait().outcome == "succeeded"


def test_n2_a_close_before_readiness_names_a_rank_that_was_not_ready(tmp_path):
    """Also if all ranks run."""
    with prepared(tmp_path, "binary", [OBEYS] * 3, ready="notify") as gang:
        reply = begin(gang, 3)
        make_ready(gang, 0)
        row(gang, 0, "ready")
        gang.close()
        with pytest.raises(SpawnError, match="rank 1 was not ready: the gang was closed") as failed:
            reply.get(timeout=PATIENCE_S)
        assert failed.value.local_rank == 1


@each_kind
def test_n3_a_rank_that_is_not_ready_in_time_fails_the_start(tmp_path, kind):
    late = "rank [01] did not start: was not ready within 2 s"
    with (
        prepared(tmp_path, kind, [OBEYS] * 2, ready="notify", ready_timeout_s=2.0) as gang,
        pytest.raises(SpawnError, match=late),
    ):
        gang.start()


@pytest.mark.stress
def test_n3_a_rank_may_ask_for_more_time(tmp_path):
    extends = NOTIFY + (
        "import socket\n"
        "with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:\n"
        "    end.sendto(b'EXTEND_TIMEOUT_USEC=60000000', '\\0' + os.environ['NOTIFY_SOCKET'][1:])\n"
        "say('extended')\nwait_for_word()\nnotify(ready=True)\nwait_for_word()\n"
    )
    with prepared(tmp_path, "binary", [extends], ready="notify", ready_timeout_s=15.0) as gang:
        begun_s = time.monotonic()
        reply = begin(gang, 1)
        assert gang.hear() == ["extended"]
        while time.monotonic() < begun_s + 16.0:  # longer than the time that it had
            assert gang.ask(Status()).phase == "starting"
        gang.tell(0)
        reply.get(timeout=PATIENCE_S)


@pytest.mark.stress
def test_n3_a_rank_that_is_continued_has_the_whole_time_again(tmp_path):
    """It may have been suspended for long, as by Ctrl-Z."""
    with prepared(tmp_path, "binary", [OBEYS], ready="notify", ready_timeout_s=5.0) as gang:
        reply, begun_s = begin(gang, 1), time.monotonic()
        pause = threading.Event()
        while time.monotonic() < begun_s + 7.0:  # longer than the time that it has
            gang.ask(Signal(sig=signal.SIGSTOP))
            pause.wait(0.1)
            gang.ask(Signal(sig=signal.SIGCONT))
        make_ready(gang, 0)
        reply.get(timeout=PATIENCE_S)


@each_kind
def test_n4_a_later_life_that_ends_before_it_is_ready_is_a_failure_of_the_rank(tmp_path, kind):
    """Counted and tried again until the policy gives up; then there is a result."""
    more = {"ready": "notify", "strategy": "one_for_one", "restart_policy": AT_ONCE}
    with prepared(tmp_path, kind, [OBEYS] * 2, **more) as gang:
        reply = begin(gang, 2)
        make_ready(gang, 0)
        make_ready(gang, 1)
        reply.get(timeout=PATIENCE_S)
        gang.tell(1, "3")
        for life in (1, 2):
            assert gang.hear()[0].startswith(f"1:{life}:")
            gang.tell(1, "0")  # before it is ready
        result = gang.wait()
        gang.await_event("supervise.process.exited", local_rank=1, exit_code=0, level="error")
    assert result.outcome == "failed"
    assert (result.ends[1].role, result.ends[0].role) == ("root_cause", "bystander")
    assert list(result.failures) == [1]
    assert result.failures[1].message == "ended with exit code 0 before it was ready"
    assert [(each.end.exitcode, each.end.role, each.counted) for each in result.restarts] == [
        (3, "root_cause", True),
        (0, "root_cause", True),
    ]


def test_n4_a_later_life_that_is_not_ready_in_time_is_a_failure_of_the_rank(tmp_path):
    """Its process is stopped, and the message says why."""
    source = f"[ $TORCHELASTIC_RESTART_COUNT = 0 ] || exec sleep 1000; exec {sys.executable} -S -c '{EARLY}'"
    policy = RestartPolicy(max_restarts=1, backoff=0.0)
    more = {"ready": "notify", "ready_timeout_s": 6.0, "strategy": "one_for_one", "restart_policy": policy}
    with launched(tmp_path, "sh", {0: ("-c", source)}, **more) as gang:
        gang.start().tell(0, "end")
        assert gang.await_event("supervise.process.faulted", local_rank=0)["message"] == "was not ready within 6 s"
        result = gang.wait()
    assert result.outcome == "failed"
    assert result.failures[0].message == "was not ready within 6 s"
    assert result.failures[0].exitcode == -signal.SIGTERM
    assert [each.end.exitcode for each in result.restarts] == [3]


def test_n4_a_later_attempt_of_all_ranks_that_is_not_ready_has_a_result(tmp_path):
    policy = RestartPolicy(max_restarts=1, backoff=0.0)
    with prepared(tmp_path, "binary", [OBEYS] * 2, ready="notify", restart_policy=policy) as gang:
        reply = begin(gang, 2)
        make_ready(gang, 0)
        make_ready(gang, 1)
        reply.get(timeout=PATIENCE_S)
        gang.tell(1, "3")
        assert sorted(line[:4] for line in gang.hear(2)) == ["0:1:", "1:1:"]
        gang.tell(0, "0")
        result = gang.wait()
    assert result.outcome == "failed"
    assert result.failures[0].message == "ended with exit code 0 before it was ready"


def test_n5_a_request_is_answered_when_the_rank_is_ready_again(tmp_path):
    with prepared(tmp_path, "binary", [OBEYS] * 2, ready="notify") as gang:
        reply = begin(gang, 2)
        make_ready(gang, 0)
        make_ready(gang, 1)
        pids = reply.get(timeout=PATIENCE_S)
        answer = gang.supervisor.ask(RestartRanks(frozenset({1})), block=False)
        assert gang.hear()[0].startswith("1:1:")
        assert row(gang, 1, "starting").attempt == 1
        assert not answer.done()
        make_ready(gang, 1)
        again = answer.get(timeout=PATIENCE_S)
        assert again.keys() == {1}
        assert again[1] != pids[1]
        assert row(gang, 1, "ready").restarts == 1
        gang.close()


@each_kind
def test_n5_a_request_whose_rank_ends_before_it_is_ready_again_has_the_reason(tmp_path, kind):
    """Without a policy, no life follows. The traceback is the cause for a function, and a note for a program."""
    raises = "if life == '1': raise ValueError('no setting lr')\n"
    with prepared(tmp_path, kind, [NOTIFY + raises + OBEYS.removeprefix(NOTIFY)], ready="notify") as gang:
        reply = begin(gang, 1)
        make_ready(gang, 0)
        reply.get(timeout=PATIENCE_S)
        with pytest.raises(SuperviseError) as failed:
            gang.ask(RestartRanks(frozenset({0})))
    assert str(failed.value) == "fault: rank 0 ended, and will not restart: exit code 1"
    shown = "".join(traceback.format_exception(failed.value))
    assert "ValueError: no setting lr" in shown


def test_n5_a_life_that_cannot_be_launched_has_no_cause_of_an_earlier_life(tmp_path):
    sources = ["raise ValueError('of the first life')", "signal.pause()"]
    with faulty(tmp_path, "spawn", sources, strategy="one_for_one") as gang:
        row(gang, 0, "failed")
        (next(tmp_path.rglob("attempt_0")).parent / "attempt_1").touch()
        with pytest.raises(SuperviseError, match="attempt 1 could not be started") as failed:
            gang.ask(RestartRanks(frozenset({0})))
        assert failed.value.__cause__ is None
        gang.close()


def test_n6_the_hosts_own_variables_do_not_reach_a_rank(tmp_path, monkeypatch):
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.setenv(name, "the host's")
    shows = 'say(sorted(name for name in os.environ if name.startswith(("NOTIFY", "WATCHDOG"))))\n'
    with faulty(tmp_path, "binary", [shows]) as gang:
        assert gang.hear() == ["[]"]
        gang.wait()
    with prepared(tmp_path, "spawn", [shows + NOTIFY + "notify(ready=True)"], ready="notify") as gang:
        gang.supervisor.ask(Start(), block=False)
        assert gang.hear() == ["['NOTIFY_SOCKET']"]
        gang.wait()


def test_n6_a_stranger_cannot_make_a_rank_ready(tmp_path):
    with prepared(tmp_path, "binary", [NOTIFY + "say(os.environ['NOTIFY_SOCKET'])\n" + OBEYS], ready="notify") as gang:
        begin(gang, 1)
        address = gang.hear()[0]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.sendto(b"READY=1\nSTATUS=mine", "\0" + address[1:])
        gang.hear()
        gang.tell(0, "0")
        with pytest.raises(SpawnError, match="its last status: loading 0"):
            gang.ask(Wait())


def test_n6_a_socket_that_cannot_be_made_fails_the_start_and_leaves_no_actor(tmp_path, breaking):
    """Rank 1 of 2 gets none. The fixture of all tests looks for what is left after the stop."""

    def refuse(made, sockets, rank, address):
        if rank == 1:
            raise OSError(errno.EMFILE, "local rank 1 gets no notify socket")
        return made(sockets, rank, address)

    breaking.instead("notify socket", refuse)
    with prepared(tmp_path, "binary", [OBEYS] * 2, ready="notify") as gang:
        with pytest.raises(OSError, match="local rank 1 gets no notify socket"):
            gang.ask(Start())
        gang.supervisor.stop(timeout=PATIENCE_S)
        assert pykka.ActorRegistry.get_by_class_name("Worker") == []


def test_n7_a_killed_host_leaves_no_rank_that_is_not_ready(tmp_path):
    source = (
        f"import sys; sys.path.insert(0, {ROOT!r})\n"
        "from supervise import Start, Supervisor\n"
        "gang = Supervisor.start(name='x', entrypoint='sh', ready='notify', gate=True,\n"
        "    args={r: ('-c', 'trap : TERM; echo $$; while :; do sleep 1000; done') for r in range(2)})\n"
        "gang.ask(Start())\n"
    )
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        with watched([int(host.stdout.readline()) for _ in range(2)]) as watch:
            assert len(watch.survivors(0)) == 2
            host.kill()
            assert watch.survivors() == set()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"ready": "soon"}, "ready is 'soon'; it is one of exec, notify"),
        ({"ready": "notify", "ready_timeout_s": 0}, "ready_timeout_s is 0"),
        ({"ready": "notify", "envs": {0: {"NOTIFY_SOCKET": "x"}}}, "rank 0: its envs set NOTIFY_SOCKET"),
    ],
)
def test_n8_settings_that_are_not_valid_are_refused(settings, text):
    with pytest.raises(SpecError, match=text):
        Supervisor.start(name="x", entrypoint="true", args={0: ()}, **settings)


def test_n9_gunicorn_as_a_permanent_rank_is_ready_is_killed_and_comes_back(tmp_path):
    pytest.importorskip("gunicorn", reason="not installed: pip install gunicorn")
    (tmp_path / "application.py").write_text(
        "def app(environ, start_response):\n    start_response('200 OK', [])\n    return [b'here']\n"
    )
    web = tmp_path / "web"
    words = ("-m", "gunicorn", "--bind", f"unix:{web}", "--workers", "2", "application:app")
    policy = RestartPolicy(max_restarts=3, backoff=0.0, restart="permanent")
    gang = Supervisor.start(
        name="web",
        entrypoint=sys.executable,
        args={0: words},
        cwd=tmp_path,
        ready="notify",
        restart_policy=policy,
        strategy="one_for_one",
        containment="sweep",
    )
    try:
        pids = [gang.ask(Start(), timeout=PATIENCE_S)[0]]
        for life in range(3):
            assert answer(web) == b"here"
            if life < 2:
                os.kill(pids[life], signal.SIGKILL)
                pids.append(await_ready(gang, life + 1))
        result = gang.ask(RestartRanks(frozenset({0})), timeout=PATIENCE_S)
        assert answer(web) == b"here"
        assert len({*pids, result[0]}) == 4
    finally:
        gang.stop(timeout=PATIENCE_S)


def await_ready(gang, life):
    """Return the pid of this life when it is ready."""
    give_up_s = time.monotonic() + PATIENCE_S
    while ((found := gang.ask(Status()).ranks[0]).attempt, found.state) != (life, "ready"):
        assert time.monotonic() < give_up_s, found
    return found.pid


def answer(web: Path) -> bytes:
    """Return the body of the answer to a request."""
    with socket.socket(socket.AF_UNIX) as end:
        end.settimeout(PATIENCE_S)
        end.connect(str(web))
        end.sendall(b"GET / HTTP/1.0\r\n\r\n")
        said = b""
        while data := end.recv(4096):
            said += data
    return said.rpartition(b"\r\n\r\n")[2]


def test_n10_the_command_line_waits_for_readiness(tmp_path):
    words = ["--ready", "notify", "--ready-timeout", "1", "--log-dir", str(tmp_path), "-n", "1", "--no-python"]
    run = subprocess.run(
        [sys.executable, "-m", "supervise", "run", *words, "sleep", "1000"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "PYTHONPATH": ROOT},
        check=False,
    )
    assert run.returncode != 0
    assert "was not ready within 1 s" in run.stderr
