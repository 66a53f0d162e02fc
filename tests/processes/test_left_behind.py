"""What ended ranks left behind: in their groups when the host is killed, outside of them when time is short."""

import errno
import inspect
import multiprocessing
import os
import time
from pathlib import Path
from signal import SIGKILL, pause

import psutil
import pytest

from supervise import Close, DefaultLogsSpecs, LogsDest, RestartPolicy, Start, Status, Std, Supervisor, Wait
from tests.patience import PATIENCE_S
from tests.processes.gangs import Fifo, Stopwatch, each_kind, faulty
from tests.processes.hosts import Host, watched
from tests.processes.test_containment import DEAF_FORKED

LEAVES = """
import subprocess
if os.environ["LOCAL_RANK"] == "0":
    child = subprocess.Popen(["sh", "-c", "trap '' TERM; echo $$ > $EAR; exec sleep 1000"])
else:
    signal.pause()
"""
ONE_HAS_ENDED = """
gang = make_gang(kind, [{source!r}] * 2, envs={{rank: {{"EAR": ear, "LOCAL_RANK": rank}} for rank in range(2)}})
gang.ask(Start())
sub = threading.Event()
while not gang.ask(Status()).leftovers:
    sub.wait(0.02)
print("left", flush=True)
signal.pause()
"""


@each_kind
@pytest.mark.parametrize("without", ["", "group"])
def test_k1_what_a_rank_that_has_ended_left_in_its_group_dies_with_the_host(tmp_path, monkeypatch, kind, without):
    """It has closed all descriptors that it inherited, so its rank's end of the lifeline is gone with the rank."""
    monkeypatch.setenv("SUPERVISE_WITHOUT", without)
    ear = Fifo(tmp_path / "ear")
    try:
        with Host(ONE_HAS_ENDED.format(source=LEAVES), kind, ear.path) as host:
            child = int(ear.hear())
            assert host.hear() == "left"
            with watched([child]) as watch:
                host.kill()
                assert watch.survivors() == set()
    finally:
        ear.close()


SAVES = """
trap 'sh -c "sleep 0.3; echo saved > $EAR"; exit' TERM
exec 3<> $1
echo up > $EAR
while :; do read word <&3; done
"""
"""It waits without a child, which might not have got a signal that came while it was forked."""
CLOSES = """
many = "for _ in 1 2 3 4; do sh {path} {hold} & done"
gang = Supervisor.start(name="g", entrypoint="sh", args={{0: ("-c", many)}}, grace=1000)
gang.ask(Start())
sys.stdin.readline()
gang.ask(Close())
gang.stop()
"""


@pytest.mark.parametrize("without", ["", "group", "pidfd"])
def test_a_stop_does_not_signal_what_its_own_signal_has_started(tmp_path, monkeypatch, without):
    """A handler of a process that was left saves by a program; SIGTERM reaches those that ran, as by `killpg`."""
    monkeypatch.setenv("SUPERVISE_WITHOUT", without)
    (tmp_path / "saves.sh").write_text(SAVES)
    ear, hold = Fifo(tmp_path / "ear"), Fifo(tmp_path / "hold")
    try:
        with Host(CLOSES.format(path=tmp_path / "saves.sh", hold=hold.path), ear=ear.path) as host:
            assert [ear.hear() for _ in range(4)] == ["up"] * 4
            host.process.stdin.write(b"close\n")
            host.process.stdin.flush()
            assert [ear.hear() for _ in range(4)] == ["saved"] * 4
            assert host.exit_code() == 0
    finally:
        ear.close()
        hold.close()


@pytest.mark.parametrize("how", [{"timeout": 0.2}, {"death_sig": SIGKILL}])
@pytest.mark.parametrize("first", ["failed", "running"])
def test_s10_a_close_bounds_what_is_done_about_who_left_the_groups(tmp_path, how, first):
    """Not the gang's grace of a minute; also if it comes when the gang has ended already, or is being closed."""
    source = DEAF_FORKED + ("wait_for_word()\nos._exit(3)" if first == "failed" else "signal.pause()")
    with faulty(tmp_path, "fork", [source], containment="sweep", grace=60.0) as gang:
        daemon = int(gang.hear()[0].split()[1])
        closing = []
        if first == "failed":
            gang.tell(0)
            assert gang.wait().failures[0].exitcode == 3
            closing = [gang.supervisor.ask(Close(), block=False)]
        with Stopwatch() as taken, watched([daemon]) as watch:
            gang.close(**how)
            assert watch.survivors(0) == set()
        assert taken.seconds < 20
        for reply in closing:
            reply.get(timeout=PATIENCE_S)


def test_k5_a_daemon_that_is_to_be_ended_does_not_outlive_the_interpreters_exit(tmp_path):
    """The exit waits for the ranks, then for who left their groups, each for some seconds."""
    ear = Fifo(tmp_path / "ear")
    try:
        source = DEAF_FORKED + "os._exit(3)"
        program = (
            f"gang = start_gang(kind, [{source!r}], containment='sweep', grace=1.0)\nprint(gang.ask(Wait()).outcome)"
        )
        with Host(program, "fork", ear.path) as host:
            daemon = int(ear.hear().split()[1])
            with watched([daemon]) as watch:
                assert host.hear() == "failed"
                assert host.exit_code() == 0
                assert watch.survivors() == set()
    finally:
        ear.close()


def work(connection):
    """Send which attempt it is; the first fails."""
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    connection.send(attempt)
    if attempt == "0":
        raise RuntimeError("the first attempt fails")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_connection_travels_again_although_the_host_has_closed_its_own_end(tmp_path: Path, method: str):
    """As one does after a start. The numbers of its descriptors are others' by then."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    policy = RestartPolicy(1, backoff=0.0)
    gang = Supervisor.start(name="c", entrypoint=work, args={0: (theirs,)}, start_method=method, restart_policy=policy)
    try:
        gang.ask(Start(), timeout=PATIENCE_S)
        theirs.close()
        result = gang.ask(Wait(), timeout=PATIENCE_S)
        assert result.outcome == "succeeded"
        assert [ours.recv(), ours.recv()] == ["0", "1"]
    finally:
        gang.stop(timeout=PATIENCE_S)
        ours.close()


def hold(connection):
    """Keep a connection open, or none, until a signal."""
    if connection is not None:
        connection.send("here")
    pause()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("policy", [None, RestartPolicy(1, restart="temporary")])
def test_the_death_of_a_rank_that_has_no_later_life_is_the_eof_of_its_connection(policy, method: str):
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    more = {"start_method": method, "restart_policy": policy, "strategy": "one_for_one"}
    gang = Supervisor.start(name="c", entrypoint=hold, args={0: (theirs,), 1: (None,)}, **more)
    try:
        pids = gang.ask(Start(), timeout=PATIENCE_S)
        theirs.close()
        assert ours.recv() == "here"
        os.kill(pids[0], SIGKILL)
        assert ours.poll(PATIENCE_S)
        with pytest.raises((EOFError, ConnectionResetError)):
            ours.recv()
    finally:
        gang.stop(timeout=PATIENCE_S)
        ours.close()


def test_s3_who_is_left_by_a_rank_that_was_gone_before_it_could_be_held_is_ended_too(tmp_path, system_call):
    """A fork server tells the number of a process that it has reaped already: there is no descriptor for it."""

    def too_late(opened, pid):
        if inspect.currentframe().f_back.f_code.co_qualname == "exit_notice":
            raise ProcessLookupError(errno.ESRCH, "no such process")
        return opened(pid)

    source = "import subprocess\nsay(str(subprocess.Popen(['sleep', '1000']).pid))\nos._exit(3)"
    system_call("pidfd_open", too_late)
    with faulty(tmp_path, "forkserver", [source]) as gang:
        child = psutil.Process(int(gang.hear()[0]))
        gang.wait()
        gang.close()
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


class _OneFile(DefaultLogsSpecs):
    """The stdout of all ranks is one file."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        dest = super().reify(envs)
        dest.stdouts = dict.fromkeys(dest.stdouts, dest.stdouts[0])
        return dest


def test_ranks_with_one_log_may_all_leave_processes_behind(tmp_path):
    """What they left ends by the stop, before the last rank does."""
    ear = Fifo(tmp_path / "ear")
    sources = [
        "sleep 1000 &",
        "sleep 1000 &",
        "trap 'sleep 0.5; exit 0' TERM; echo up > $EAR; while :; do sleep 0.1; done",
    ]
    try:
        gang = Supervisor.start(
            name="one",
            entrypoint="sh",
            args={rank: ("-c", source) for rank, source in enumerate(sources)},
            envs={rank: {"EAR": ear.path} for rank in range(3)},
            logs_specs=_OneFile(tmp_path / "logs", redirects=Std.ALL),
        )
        gang.ask(Start(), timeout=PATIENCE_S)
        ear.hear()
        deadline_s = time.monotonic() + PATIENCE_S
        while gang.ask(Status(), timeout=PATIENCE_S).leftovers != {0, 1}:
            assert time.monotonic() < deadline_s
        gang.ask(Close(), timeout=PATIENCE_S)
        assert gang.ask(Wait(), timeout=PATIENCE_S).outcome == "stopped"
    finally:
        gang.stop(timeout=PATIENCE_S)
        ear.close()
