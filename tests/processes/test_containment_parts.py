"""The parts of containment: who is known again, who is never meant, and how what was found is ended."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psutil
import pytest

from supervise import SpecError
from supervise import _platform as platform
from supervise._core.steps import Swept
from supervise._gang.sweep import Sweep
from supervise._process.containment import ancestry, cgroup, marker
from supervise._process.containment import escapees as containments
from supervise._process.containment.escapees import Contained, Escaped, make
from supervise._process.containment.procfs import Layout
from supervise._process.launch import program
from supervise._process.launch.launch_spec import LaunchSpec, Streams
from supervise._process.lifeline import lifeline
from supervise._runtime.loop import Loop
from tests.patience import PATIENCE_S
from tests.processes.hosts import watched

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
WAITS = "echo ready; exec sleep 1000"
DEAF = "trap '' TERM; echo ready; while :; do sleep 1000; done"
"""A loop in a shell; what it waits for has the marker, too."""
SUCCEEDED = "trap 'setsid sleep 1000 & exit' TERM; echo ready; while :; do sleep 1000 & wait; done"
"""Leaves another process behind when it is asked to end."""
FORKED = """
import os, signal
from supervise._process.containment import marker
os.environ["SUPERVISE_WORKER"] = os.environ.pop("MARKER")
marker.carry()
if os.fork() == 0:
    os.setsid()
    print("ready", flush=True)
signal.pause()
"""
"""Gets its environment as a forked rank does, after its exec."""

both_ways = pytest.mark.parametrize("pidfd", [pytest.param(True, id="pidfd"), pytest.param(False, id="without_pidfd")])


def need_cgroup() -> None:
    """Skip the test where there is no tree in which control groups can be made."""
    try:
        cgroup.own_folder()
    except SpecError as error:
        pytest.skip(str(error))


@contextmanager
def running(script: str, env: dict[str, str] | None = None, argv: tuple[str, ...] = ("sh",)) -> Iterator[int]:
    """Yield the pid of a program in a session of its own, once it has said a line; kill it afterwards."""
    everything = {**os.environ, **(env or {})}
    argv = (*argv, "-c", script)
    process = subprocess.Popen(argv, env=everything, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield process.pid
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextmanager
def found_by(contained: Contained, skip: Any = ()) -> Iterator[list[Escaped]]:
    found = contained.find(skip).live
    try:
        yield found
    finally:
        for escaped in found:
            escaped.close()


def pids_and_ranks(contained: Contained, skip: Any = ()) -> set[tuple[int, int | None]]:
    with found_by(contained, skip) as found:
        return {(escaped.pid, escaped.local_rank) for escaped in found}


@pytest.fixture
def sweep() -> Iterator[Callable[..., Swept]]:
    """Run a `Sweep` on a loop of its own, to its end."""
    loop = Loop("test-sweep", lost=print)
    loop.start()

    def run(contained: Contained, *, timeout_s: float = PATIENCE_S, end: bool = True) -> Swept:
        done: SimpleQueue[Swept] = SimpleQueue()
        swept = Sweep(loop, contained, end=end, timeout_s=timeout_s, skip=(), done=done.put)
        loop.post(swept.begin)
        message = done.get(timeout=PATIENCE_S)
        ended: SimpleQueue[None] = SimpleQueue()
        loop.post(ended.put, None)
        ended.get(timeout=PATIENCE_S)
        assert done.empty()  # said once
        return message

    yield run
    loop.post(loop.end)
    loop.join(PATIENCE_S)


# Who is meant


@both_ways
def test_a_marked_process_is_found_with_its_rank_and_nobody_else(monkeypatch, pidfd):
    """Neither an unmarked process, nor another gang's, nor one in the group of a rank that still lives."""
    monkeypatch.setattr(platform, "PIDFD", pidfd)
    ours, other = make("sweep", "a"), make("sweep", "b")
    with running(WAITS, ours.env(3)) as pid, running(WAITS, other.env(0)), running(WAITS):
        assert pids_and_ranks(ours) == {(pid, 3)}
        assert pids_and_ranks(ours, skip={pid}) == set()


@pytest.mark.parametrize("told", [True, False])
def test_of_processes_older_than_this_one_nothing_but_the_age_is_read(monkeypatch, told):
    """Unless the kernel does not tell the age: then every process may be meant."""
    if not told:
        monkeypatch.setattr(containments, "started", lambda _pid: None)
    read, real = [], ancestry.number_of

    def look(pid, *args, **settings):
        read.append(pid)
        return real(pid, *args, **settings)

    monkeypatch.setattr(ancestry, "number_of", look)
    contained = make("sweep", "a")
    with running(WAITS, contained.env(3)) as pid:
        assert pids_and_ranks(contained) == {(pid, 3)}
    assert pid in read
    assert (1 in read) is (not told and os.getpid() != 1)


def test_the_marker_of_an_outer_gang_stays(monkeypatch):
    """What a gang within a rank leaves behind is the outer gang's, too."""
    outer, inner = make("sweep", "outer"), make("sweep", "inner")
    monkeypatch.setenv(marker.VARIABLE, outer.env(2)[marker.VARIABLE])
    with running(WAITS, inner.env(12)) as pid:
        assert pids_and_ranks(outer) == {(pid, 2)}
        assert pids_and_ranks(inner) == {(pid, 12)}


def test_a_forked_rank_and_what_it_forks_are_known_by_their_file():
    """/proc shows the environment that the fork server had."""
    contained = make("sweep", "a")
    env = {"MARKER": contained.env(5)[marker.VARIABLE], "PYTHONPATH": str(Path(__file__).parents[2])}
    with running(FORKED, env, (sys.executable,)) as pid:
        family = {pid, *(child.pid for child in psutil.Process(pid).children())}
        assert len(family) == 2
        assert pids_and_ranks(contained) == {(each, 5) for each in family}
        with found_by(contained) as found:
            for escaped in found:
                escaped.send(signal.SIGKILL)


@both_ways
def test_who_dies_at_once_was_not_left_behind(monkeypatch, pidfd):
    """A lifeline may have killed it just before the look."""
    monkeypatch.setattr(platform, "PIDFD", pidfd)
    monkeypatch.setattr(containments, "DYING_S", 1.0)  # a busy machine takes more than the usual time to kill
    contained = make("group", "a")
    real = Escaped.alive

    def last_seen_alive(escaped: Escaped) -> bool:
        alive = real(escaped)
        os.kill(escaped.pid, signal.SIGKILL)
        return alive

    with running(WAITS, contained.env(0)):
        monkeypatch.setattr(Escaped, "alive", last_seen_alive)
        assert pids_and_ranks(contained) == set()


def test_who_is_in_the_middle_of_an_exec_is_found():
    """While the kernel exchanges its program, a process has no environment to know it by."""
    contained = make("sweep", "a", forked=False)
    again = 'echo ready; exec sh -c "$AGAIN"'
    with running(again, {**contained.env(3), "AGAIN": 'exec sh -c "$AGAIN"'}) as pid:
        assert {ancestry.number_of(pid, contained.token, forked=False) for _ in range(5000)} == {3}


def test_an_exec_that_does_not_end_is_looked_at_again(monkeypatch):
    """Nobody is taken for gone who could not be looked at."""
    contained = make("sweep", "a", forked=False)
    read, look, hanging = ancestry._environment_now, ancestry.layout, True
    with running(WAITS, contained.env(1)) as pid:
        monkeypatch.setattr(ancestry, "_environment_now", lambda one: b"" if hanging and one == str(pid) else read(one))
        monkeypatch.setattr(
            ancestry, "layout", lambda one: Layout(0, 0, 0) if hanging and one == str(pid) else look(one)
        )
        assert contained.find() == ([], True)
        hanging = False
        found, in_motion = contained.find()
        assert [(escaped.pid, escaped.local_rank) for escaped in found] == [(pid, 1)]
        assert not in_motion
        for escaped in found:
            escaped.close()


LEADERLESS = """
import ctypes, threading
thread = threading.Thread(target=threading.Event().wait)
thread.start()
print("ready", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_who_has_no_main_thread_any_more_is_found():
    """Its other threads live on, and the kernel shows it as a zombie."""
    contained = make("sweep", "a", forked=False)
    with running(LEADERLESS, contained.env(4), argv=(sys.executable, "-S")) as pid:
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert psutil.pid_exists(pid)
        assert pids_and_ranks(contained) == {(pid, 4)}


HIDES = """
import ctypes, os, signal
fields = open("/proc/self/stat").read().rpartition(")")[2].split()
start, end = int(fields[47]), int(fields[48])
page = os.sysconf("SC_PAGE_SIZE")
os.environ.clear()
first = start // page * page
print("ready", flush=True)
ctypes.CDLL(None).munmap(ctypes.c_void_p(first), ctypes.c_size_t((end - first + page - 1) // page * page))
signal.pause()
"""


def test_who_has_unmapped_its_environment_holds_up_no_look(monkeypatch):
    """It is not in the middle of an exec, which would be waited for. Anybody can do that, a stranger too."""
    contained = make("sweep", "a", forked=False)
    monkeypatch.setenv("LONG", "x" * 20_000)
    with running(HIDES, argv=(sys.executable, "-S")) as pid:
        while ancestry._environment_now(str(pid)):
            assert psutil.pid_exists(pid)
        assert contained.find() == ([], False)


def test_who_was_forked_by_one_that_ended_before_it_was_looked_at_is_found(monkeypatch):
    """The forker was on the list of processes and died unseen; its child came after the list."""
    contained = make("sweep", "a", forked=False)
    real = ancestry.number_of
    forker = "trap 'sleep 1000 & exit' TERM; echo ready; while :; do :; done"
    with running(forker, contained.env(1)) as pid, watched([pid]) as watch:

        def look(one: int, token: str, *, forked: bool, waits: bool) -> int | None:
            if one == pid:
                os.kill(pid, signal.SIGTERM)
                assert not watch.survivors(PATIENCE_S)
            return real(one, token, forked=forked, waits=waits)

        monkeypatch.setattr(ancestry, "number_of", look)
        with found_by(contained) as found:
            assert [escaped.local_rank for escaped in found] == [1]
            found[0].send(signal.SIGKILL)


# Who is not


@pytest.mark.own_pids
@both_ways
def test_s7_a_number_reused_after_the_look_is_a_stranger(monkeypatch, pidfd):
    """What was found has ended; who has its number now is not signalled."""
    if not os.access(LAST_PID, os.W_OK):
        pytest.skip(f"{LAST_PID} cannot be written")
    monkeypatch.setattr(platform, "PIDFD", pidfd)
    contained = make("sweep", "a")
    with ExitStack() as stack:
        with running("sleep 0.1; echo ready; exec sleep 1000", contained.env(0)) as pid:
            (escaped,) = contained.find().live
            stack.callback(escaped.close)
        for _ in range(100):
            LAST_PID.write_text(str(pid - 1))
            stranger = stack.enter_context(running(WAITS))
            if stranger == pid:
                break
        else:
            pytest.skip("the number was never free")
        escaped.send(signal.SIGKILL)
        assert not escaped.alive()
        with watched([pid]) as watch:
            assert watch.survivors(0.3) == {pid}


@both_ways
def test_s7_a_number_reused_during_the_look_is_a_stranger(monkeypatch, pidfd):
    """The marker was seen, then the number became another process's: the second look tells."""
    monkeypatch.setattr(platform, "PIDFD", pidfd)
    contained = make("sweep", "a")
    real, seen = ancestry.number_of, []

    def look(pid: int, token: str, *, forked: bool, waits: bool) -> int | None:
        if pid == stranger and not seen:
            seen.append(pid)
            return 0
        return real(pid, token, forked=forked, waits=waits)

    with running(WAITS) as stranger:
        monkeypatch.setattr(ancestry, "number_of", look)
        assert pids_and_ranks(contained) == set()
    assert seen


# How it is ended


@both_ways
@pytest.mark.parametrize("kind", ["sweep", "cgroup"])
@pytest.mark.parametrize("script", [WAITS, DEAF, SUCCEEDED], ids=["obedient", "deaf", "succeeded"])
def test_what_is_found_is_ended(monkeypatch, sweep, kind, script, pidfd):
    """Politely, by SIGKILL after the time given, and also what it starts meanwhile."""
    monkeypatch.setattr(platform, "PIDFD", pidfd)
    if kind == "cgroup":
        need_cgroup()
    contained = make(kind, "a", forked=False)
    if (enter := contained.enter(1)) is not None:
        script = f"echo 0 > {enter}; {script}"
    with running(script, contained.env(1)) as pid:
        swept = sweep(contained, timeout_s=0.5 if "trap ''" in script else 5.0)
        assert swept.ended
        assert pid in swept.leaked[1]
        assert set(swept.leaked) == {1}
        assert not any(psutil.pid_exists(left) and alive(left) for left in swept.leaked[1])
        assert pids_and_ranks(contained) == set()
    assert contained.close()


def alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def test_the_default_only_reports(sweep):
    """The process lives on."""
    contained = make("group", "a")
    with running(WAITS, contained.env(0)) as pid:
        assert sweep(contained, end=contained.ends) == Swept(leaked={0: (pid,)}, ended=False)
        assert alive(pid)


def test_a_look_that_fails_is_told_and_ends_nothing(monkeypatch, sweep, caplog):
    """Whoever waits for the sweep is answered all the same."""
    contained = make("sweep", "a")
    monkeypatch.setattr(contained, "find", None)
    assert sweep(contained) == Swept(leaked={}, ended=False)
    assert "looking for escaped processes failed" in caplog.text


def test_without_another_thread_the_loop_looks_itself(monkeypatch, sweep):
    """A limit of threads is reached, or the interpreter is exiting."""

    def refuse(thread: Any) -> None:
        raise RuntimeError("can't start new thread")

    contained = make("sweep", "a")
    with running(WAITS, contained.env(0)) as pid:
        monkeypatch.setattr("threading.Thread.start", refuse)
        assert sweep(contained) == Swept(leaked={0: (pid,)}, ended=True)


def test_a_sweep_that_is_cancelled_says_nothing_and_lets_go(monkeypatch):
    """The leak check would find its descriptors."""
    contained = make("sweep", "a")
    loop, said = Loop("test-cancel", lost=print), []
    with running(WAITS, contained.env(0)) as pid:
        seen: SimpleQueue[None] = SimpleQueue()
        real = Escaped.send
        monkeypatch.setattr(Escaped, "send", lambda self, sig: (seen.put(None), sig == 9 and real(self, sig))[1])
        loop.start()
        swept = Sweep(loop, contained, end=True, timeout_s=PATIENCE_S, skip=(), done=said.append)
        loop.post(swept.begin)
        seen.get(timeout=PATIENCE_S)
        loop.post(swept.cancel)
        loop.post(loop.end)
        assert loop.join(PATIENCE_S)
        assert alive(pid)
    assert said == []


# Control groups


def test_a_program_is_in_its_control_group_from_its_first_instruction(tmp_path):
    """Started as a rank is; the number of its rank is its group's name."""
    need_cgroup()
    contained = make("cgroup", "it's a/name", forked=False)
    out = tmp_path / "out"
    line = lifeline.Lifeline()
    read_end = line.read_end()
    how = LaunchSpec(
        env=os.environ, cwd=str(tmp_path), streams=Streams(stdout=str(out)), line=line, enter=contained.enter(7)
    )
    process = program.run_program(["grep", "^0::", "/proc/self/cgroup"], how, read_end)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert process.reap() is not None
    process.close()
    os.close(read_end)
    line.cut()
    assert out.read_text().strip().endswith(f"/supervise-{os.getpid()}-it_s_a_name-{contained.token}/rank-7")
    assert contained.close()
    assert contained.close()  # again


def test_a_program_that_is_not_there_is_an_error_of_the_start():
    """Also where a shell enters the control group first."""
    need_cgroup()
    contained = make("cgroup", "a")
    line = lifeline.Lifeline()
    with pytest.raises(FileNotFoundError):
        program.run_program(["no-such-program"], LaunchSpec(env=os.environ, line=line, enter=contained.enter(0)), -1)
    line.cut()
    assert contained.close()


def test_one_stroke_kills_a_control_group_and_those_within(sweep):
    """Whoever made groups of its own in it does not escape by that."""
    need_cgroup()
    contained = make("cgroup", "a")
    procs = contained.enter(0)
    inner = Path(procs).parent / "inner"
    with running(f"mkdir {inner}; echo 0 > {inner}/cgroup.procs; {DEAF}") as pid:
        with found_by(contained) as found:
            assert (pid, 0) in {(escaped.pid, escaped.local_rank) for escaped in found}
        assert not contained.close()  # somebody is in it
        assert contained.kill()
        assert sweep(contained).ended
        assert contained.close()


def test_the_next_use_clears_away_what_a_dead_host_left():
    """Only of hosts that are no more."""
    need_cgroup()
    own = Path(cgroup.own_folder())
    process = subprocess.Popen(["true"])
    process.wait()
    stale = own / f"supervise-{process.pid}-gone-0123" / "rank-0"
    stale.mkdir(parents=True)
    live = own / f"supervise-{os.getppid()}-live-0123"
    live.mkdir()
    try:
        assert make("cgroup", "a").close()
        assert not stale.parent.exists()
        assert live.exists()
    finally:
        live.rmdir()


def test_without_a_tree_the_error_says_why(monkeypatch):
    """A clear error before any process starts."""
    monkeypatch.setattr(cgroup, "_unified", lambda: None)
    with pytest.raises(SpecError, match="no cgroup v2 tree is mounted"):
        make("cgroup", "a")
    monkeypatch.setattr(cgroup, "_unified", lambda: cgroup.Tree("/sys/fs/cgroup", "/elsewhere", ""))
    with pytest.raises(SpecError, match="own cgroup is not below"):
        make("cgroup", "a")
    monkeypatch.setattr(cgroup, "_unified", lambda: cgroup.Tree("/nowhere", "/", ""))
    with pytest.raises(SpecError, match=r"/nowhere.* cannot be written"):
        make("cgroup", "a")
    with pytest.raises(SpecError, match="'groop'; it is one of group, cgroup, sweep"):
        make("groop", "a")
