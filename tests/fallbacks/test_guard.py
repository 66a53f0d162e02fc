"""Without the kernel's own lifeline: one tiny process a host kills what the host leaves behind, and nobody else."""

import os
import signal
import subprocess
import threading
from contextlib import ExitStack, contextmanager

import psutil
import pytest

from supervise import Close, Pids
from supervise._process import platform
from supervise._process.lifeline import guard, lifeline
from supervise._process.lifeline.lifeline import Lifeline
from tests.processes.gangs import PATIENCE_S, Fifo, each_kind
from tests.processes.hosts import Host, make_gang, pids_of, start_gang, watched
from tests.processes.stubborn import DEAF

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture(autouse=True)
def _forced(monkeypatch):
    """Here, and in the programs that are run."""
    monkeypatch.setattr(platform, "F_SETSIG", None)
    monkeypatch.setenv("SUPERVISE_WITHOUT", "setsig")


@pytest.fixture
def ear(tmp_path):
    fifo = Fifo(tmp_path / "ear")
    yield fifo
    fifo.close()


@contextmanager
def sleepers(count=1, program="echo; exec sleep 1000"):
    """Yield processes that each lead a session, once they run; they are gone afterwards."""
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            words = ["sh", "-c", f"trap '' TERM; {program}"]
            process = subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            made.append(process)
            process.stdout.readline()
        yield made


@pytest.fixture
def line():
    """A lifeline that has a guard."""
    made = Lifeline()
    yield made
    made.cut()
    assert lifeline._guard is None
    assert not lifeline._owners


def ended(process):
    return process.wait(PATIENCE_S)


def test_there_is_one_for_all_gangs_and_it_ends_with_the_last():
    """It is a shell in a session of its own, and is reaped when the last gang has been stopped."""
    gangs = [start_gang("binary", ["signal.pause()"]) for _ in range(2)]
    (pid,) = {child.pid for child in psutil.Process().children() if child.name() == "sh"}
    assert os.getsid(pid) == pid
    gangs[0].stop(timeout=PATIENCE_S)
    assert psutil.pid_exists(pid)
    gangs[1].stop(timeout=PATIENCE_S)
    assert not psutil.pid_exists(pid)
    assert lifeline._guard is None


def test_it_ends_with_a_gang_that_was_never_started():
    """It is there before any process may be started."""
    gang = make_gang("binary", ["pass"])
    assert lifeline._guard is not None
    gang.stop(timeout=PATIENCE_S)
    assert lifeline._guard is None


def test_where_the_kernel_has_a_lifeline_there_is_none(monkeypatch):
    """It is for want of a better one."""
    monkeypatch.undo()
    if platform.F_SETSIG is None:
        pytest.skip("the kernel has none")
    gang = start_gang("binary", ["signal.pause()"])
    assert lifeline._guard is None
    gang.stop(timeout=PATIENCE_S)


GUARDS_PID = """
from supervise._process.lifeline import lifeline
def guard():
    return lifeline._guard._pid
"""


@each_kind
def test_k1_it_is_replaced_when_it_is_killed(kind, ear):
    """The next one knows of all groups, of which it was not there to hear."""
    program = f"""{GUARDS_PID}
start_gang(kind, [{DEAF!r}] * 3)
print(guard(), flush=True)
while sys.stdin.readline():
    print(guard(), flush=True)
"""
    with Host(program, kind, ear.path, stderr=subprocess.DEVNULL) as host:
        workers, first = pids_of([ear.hear() for _ in range(3)]), int(host.hear())
        os.kill(first, signal.SIGKILL)
        second = first
        while second in (0, first):  # 0 while there is none
            host.process.stdin.write(b"\n")
            host.process.stdin.flush()
            second = int(host.hear())
        with watched(workers) as watch:
            host.kill()
            assert watch.survivors(2.0) == set()


def test_k1_it_cannot_be_talked_out_of_it(ear):
    """Whatever signal a user or a terminal sends it, short of SIGKILL: it, or the next one, is there in the end."""
    program = f"{GUARDS_PID}start_gang(kind, [{DEAF!r}] * 3)\nprint(guard(), flush=True)\nsignal.pause()"
    with Host(program, "binary", ear.path, stderr=subprocess.DEVNULL) as host:
        workers, pid = pids_of([ear.hear() for _ in range(3)]), int(host.hear())
        for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
            os.kill(pid, sig)
        with watched(workers) as watch:
            host.kill()
            assert watch.survivors(2.0) == set()


def test_a_cut_kills_the_groups_of_its_own_gang(line):
    """And of no other."""
    other = Lifeline()
    with sleepers(3, "sleep 1000 & echo; wait") as (mine, others, unknown):
        line.hold(mine.pid)
        other.hold(others.pid)
        children = psutil.Process(mine.pid).children()
        line.cut()
        assert ended(mine) == -signal.SIGKILL
        assert psutil.wait_procs(children, PATIENCE_S)[1] == []
        assert others.poll() is unknown.poll() is None
        other.cut()
        assert ended(others) == -signal.SIGKILL
        assert unknown.poll() is None
        os.killpg(unknown.pid, signal.SIGKILL)


def test_a_process_that_comes_too_late_for_the_cut_is_killed(line):
    """Its launch was under way meanwhile."""
    line.cut()
    with sleepers() as (late,):
        line.hold(late.pid)
        assert ended(late) == -signal.SIGKILL


def test_a_group_that_is_disarmed_is_nobody_s_business(line):
    """Its number may be a stranger's by now."""
    with sleepers() as (stranger,):
        line.hold(stranger.pid)
        lifeline.disarm(stranger.pid)
        line.cut()
        assert stranger.poll() is None


def test_a_group_without_its_leader_is_killed_unless_somebody_has_its_number(line):
    """A process of that number cannot be the leader, who was reaped: so the group is not ours any more."""
    program = "(trap '' TERM; exec sleep 1000) <&- >&- & echo $!; read -r never"
    with sleepers(1) as (stranger,):
        line.hold(stranger.pid)
        line.leader_reaped(stranger.pid, -1)
        leader = subprocess.Popen(
            ["sh", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        with leader:
            left = int(leader.stdout.readline())
        line.hold(leader.pid)
        line.leader_reaped(leader.pid, -1)
        with watched([left]) as watch:
            line.cut()
            assert watch.survivors() == set()
        assert stranger.poll() is None


LETS_GO = """
from supervise._process.lifeline import lifeline
line = lifeline.Lifeline()
ours, stranger, disarmed = map(int, sys.stdin.readline().split())
for pid in (ours, stranger, disarmed):
    line.hold(pid)
line.leader_reaped(stranger, -1)
lifeline.disarm(disarmed)
print(lifeline._guard._pid, flush=True)
signal.pause()
"""


def test_the_guard_kills_by_the_same_rules():
    """Only what is still ours when the host is killed."""
    with sleepers(3) as (ours, stranger, disarmed), Host(LETS_GO) as host:
        host.process.stdin.write(f"{ours.pid} {stranger.pid} {disarmed.pid}\n".encode())
        host.process.stdin.flush()
        with watched([int(host.hear())]) as watch:
            host.kill()
            assert ended(ours) == -signal.SIGKILL
            assert watch.survivors(PATIENCE_S) == set()
        assert stranger.poll() is disarmed.poll() is None


def test_a_number_that_was_cut_off_kills_nobody():
    """The host died in the middle of a line: it may have been on its way to say a longer number."""
    with sleepers(2) as (whole, cut_off):
        said = f"led {whole.pid}\nled {cut_off.pid}".encode()
        subprocess.run(["sh", "-c", guard._PROGRAM], input=said, stderr=subprocess.DEVNULL, check=False, timeout=20)
        assert ended(whole) == -signal.SIGKILL
        assert cut_off.poll() is None


def test_a_forked_child_neither_cuts_nor_holds(line):
    """To it, the gang is dead; the guard is the parent's."""
    with sleepers() as (process,):
        line.hold(process.pid)
        pid = os.fork()
        if pid == 0:
            line.cut()
            os._exit(0 if lifeline._guard is None and not lifeline._owners else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert process.poll() is None
        line.cut()
        assert ended(process) == -signal.SIGKILL


def test_a_guard_that_does_not_listen_holds_up_nobody(line):
    """What does not fit into its socket is told once it listens again, by itself."""
    with sleepers(2) as (first, last), stopped(lifeline._guard):
        line.hold(first.pid)
        for number in range(20_000):
            tell(line, number)
        lifeline.disarm(first.pid)
        line.hold(last.pid)
        assert lifeline._guard._unsent
    catching_up = [thread for thread in threading.enumerate() if thread.name == "supervise-guard"]
    assert len(catching_up) == 2
    catching_up[1].join(PATIENCE_S)
    assert not lifeline._guard._unsent
    assert not lifeline._guard._catching_up


def test_a_guard_that_never_listens_is_ended_with_its_gang(line):
    """It must not kill later what it has not heard to be gone."""
    held = lifeline._guard
    with sleepers() as (process,):
        with stopped(held):
            line.hold(process.pid)
            for number in range(20_000):
                tell(line, number)
            lifeline.disarm(process.pid)
            line.cut()
        held.await_end(PATIENCE_S)
        assert process.poll() is None


@contextmanager
def stopped(held):
    """The guard does not run meanwhile."""
    os.kill(held._pid, signal.SIGSTOP)
    yield
    if held._pid:
        os.kill(held._pid, signal.SIGCONT)


def tell(line, number):
    """Hold a group that is not there, and let it go."""
    line.hold(2**22 + 1 + number)
    lifeline.disarm(2**22 + 1 + number)


def test_a_guard_that_cannot_be_started_is_an_error_before_any_start(monkeypatch):
    """Nothing is started without it, and nothing stays open."""
    monkeypatch.setattr(guard, "_SHELL", "/nowhere/sh")
    with pytest.raises(FileNotFoundError, match="/nowhere/sh"):
        make_gang("binary", ["pass"])
    assert lifeline._guard is None
    assert not lifeline._write_ends


@each_kind
def test_nothing_is_held_once_a_gang_is_closed(ear, monkeypatch, kind):
    """Each group is disarmed when nobody is left in it."""
    monkeypatch.setenv("EAR", ear.path)
    gang, other = start_gang(kind, [DEAF] * 2, grace=0.1), start_gang("binary", ["signal.pause()"])
    assert len(lifeline._owners) == 3
    assert len([ear.hear() for _ in range(2)]) == 2
    gang.ask(Close(), timeout=PATIENCE_S)
    assert set(lifeline._owners) == set(other.ask(Pids(), timeout=PATIENCE_S).values())
    assert lifeline._guard._groups.keys() == lifeline._owners.keys()
    for one in (gang, other):
        one.stop(timeout=PATIENCE_S)
