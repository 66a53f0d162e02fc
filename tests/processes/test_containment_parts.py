"""The parts of containment: who is known again, who is never meant, and how what was found is ended."""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psutil
import pytest

from supervise import SpecError, Supervisor
from supervise._core.steps import Swept
from supervise._gang.shutdown import Sweep
from supervise._process import lifeline
from supervise._process.containment import cgroup, escapees, escapees as containments, groups, marker
from supervise._process.containment.cgroup import GangFolder
from supervise._process.containment.escapees import Contained
from supervise._process.containment.groups import Member
from supervise._process.containment.procfs import Layout, state_of
from supervise._process.launch import program
from supervise._process.launch.program import LaunchSpec, Streams
from supervise._runtime.descriptors import anonymous_file
from supervise._runtime.loop import Loop
from tests.kernels import need_cgroup, use_older_kernel
from tests.patience import PATIENCE_S
from tests.processes.gangs import each_kind, faulty
from tests.processes.hosts import NO_FILES, pids_of, watched
from tests.processes.test_containment import DAEMONS

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


@pytest.fixture(params=["pidfd", "without_pidfd"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With pidfds, and as on kernels without them."""
    use_older_kernel(monkeypatch, "" if request.param == "pidfd" else "pidfd")


@pytest.fixture
def mounted(monkeypatch: pytest.MonkeyPatch) -> Callable[[cgroup.Tree | None], None]:
    """Have the machine another tree of control groups, or none."""
    return lambda tree: monkeypatch.setattr(cgroup, "_unified", lambda: tree)


both_ways = pytest.mark.usefixtures("_both_ways")


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
def found_by(contained: Contained, skip: Any = ()) -> Iterator[list[Member]]:
    found = contained.find(skip)[0]
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

    def run(contained: Contained, *, end: bool = True, hurried: Callable[[], object] | None = None) -> Swept:
        done: SimpleQueue[Swept] = SimpleQueue()
        swept = Sweep(loop, contained, end=end, timeout_s=PATIENCE_S, skip=(), done=done.put)
        loop.post(swept.begin)
        if hurried is not None:
            hurried()
            loop.post(swept.hurry, 0.1)
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
def test_a_marked_process_is_found_with_its_rank_and_nobody_else():
    """Neither an unmarked process, nor another gang's, nor one in the group of a rank that still lives."""
    ours, other = Contained("sweep", "a"), Contained("sweep", "b")
    with running(WAITS, ours.env(3)) as pid, running(WAITS, other.env(0)), running(WAITS):
        assert pids_and_ranks(ours) == {(pid, 3)}
        assert pids_and_ranks(ours, skip={pid}) == set()


@pytest.mark.parametrize("told", [True, False])
def test_of_processes_older_than_this_one_nothing_but_the_age_is_read(monkeypatch, breaking, told):
    """Unless the kernel does not tell the age: then every process may be meant."""
    if not told:
        monkeypatch.setattr(containments, "started", lambda _pid: None)
    read = []

    def look(real, pid, *args, **settings):
        read.append(pid)
        return real(pid, *args, **settings)

    breaking.instead("look at a process", look)
    contained = Contained("sweep", "a")
    with running(WAITS, contained.env(3)) as pid:
        assert pids_and_ranks(contained) == {(pid, 3)}
    assert pid in read
    assert (1 in read) is (not told and os.getpid() != 1)


def test_the_marker_of_an_outer_gang_stays(monkeypatch):
    """What a gang within a rank leaves behind is the outer gang's, too."""
    outer = Contained("sweep", "outer")
    monkeypatch.setenv(marker.VARIABLE, outer.env(2)[marker.VARIABLE])
    inner = Contained("sweep", "inner")
    with running(WAITS, inner.env(12)) as pid:
        assert pids_and_ranks(outer) == {(pid, 2)}
        assert pids_and_ranks(inner) == {(pid, 12)}


def test_a_forked_rank_and_what_it_forks_are_known_by_their_file():
    """/proc shows the environment that the fork server had."""
    contained = Contained("sweep", "a")
    env = {"MARKER": contained.env(5)[marker.VARIABLE], "PYTHONPATH": str(Path(__file__).parents[2])}
    with running(FORKED, env, (sys.executable,)) as pid:
        family = {pid, *(child.pid for child in psutil.Process(pid).children())}
        assert len(family) == 2
        assert pids_and_ranks(contained) == {(each, 5) for each in family}
        with found_by(contained) as found:
            for escaped in found:
                escaped.send(signal.SIGKILL)


@both_ways
def test_who_dies_at_once_was_not_left_behind(monkeypatch):
    """A lifeline may have killed it just before the look."""
    monkeypatch.setattr(containments, "DYING_S", PATIENCE_S)  # a busy machine takes more than the usual time to kill
    contained = Contained("group", "a")
    real = Member.alive

    def last_seen_alive(escaped: Member) -> bool:
        alive = real(escaped)
        os.kill(escaped.pid, signal.SIGKILL)
        return alive

    with running(WAITS, contained.env(0)):
        monkeypatch.setattr(Member, "alive", last_seen_alive)
        assert pids_and_ranks(contained) == set()


def numbers_of(pid: int, token: str) -> Iterator[int | None]:
    """Yield what is found at many moments; nothing at a moment when an exec takes too long, as on a busy machine."""
    for _ in range(5000):
        with contextlib.suppress(BlockingIOError):
            yield escapees.number_of(pid, token, forked=False)


def test_who_is_in_the_middle_of_an_exec_is_found():
    """While the kernel exchanges its program, a process has no environment to know it by."""
    contained = Contained("sweep", "a", forked=False)
    again = 'echo ready; exec sh -c "$AGAIN"'
    with running(again, {**contained.env(3), "AGAIN": 'exec sh -c "$AGAIN"'}) as pid:
        assert set(numbers_of(pid, contained.token)) == {3}


def test_an_exec_that_does_not_end_is_looked_at_again(monkeypatch):
    """Nobody is taken for gone who could not be looked at."""
    contained = Contained("sweep", "a", forked=False)
    read, look, hanging = escapees._environment_now, escapees.layout, True
    with running(WAITS, contained.env(1)) as pid:
        monkeypatch.setattr(escapees, "_environment_now", lambda one: b"" if hanging and one == str(pid) else read(one))
        monkeypatch.setattr(
            escapees, "layout", lambda one: Layout(0, 0, 0) if hanging and one == str(pid) else look(one)
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
    contained = Contained("sweep", "a", forked=False)
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
    contained = Contained("sweep", "a", forked=False)
    monkeypatch.setenv("LONG", "x" * 20_000)
    with running(HIDES, argv=(sys.executable, "-S")) as pid:
        while escapees._environment_now(str(pid)):
            assert psutil.pid_exists(pid)
        assert contained.find() == ([], False)


def test_who_was_forked_by_one_that_ended_before_it_was_looked_at_is_found(breaking):
    """The forker was on the list of processes and died unseen; its child came after the list."""
    contained = Contained("sweep", "a", forked=False)
    forker = "trap 'sleep 1000 & exit' TERM; echo ready; while :; do :; done"
    with running(forker, contained.env(1)) as pid, watched([pid]) as watch:

        def look(real: Any, one: int, token: str, *, forked: bool) -> int | None:
            if one == pid:
                os.kill(pid, signal.SIGTERM)
                assert not watch.survivors(PATIENCE_S)
            return real(one, token, forked=forked)

        breaking.instead("look at a process", look)
        with found_by(contained) as found:
            assert [escaped.local_rank for escaped in found] == [1]
            found[0].send(signal.SIGKILL)


# Who is not


@pytest.mark.own_pids
@both_ways
def test_s7_a_number_reused_after_the_look_is_a_stranger():
    """What was found has ended; who has its number now is not signalled."""
    if not os.access(LAST_PID, os.W_OK):
        pytest.skip(f"{LAST_PID} cannot be written")
    contained = Contained("sweep", "a")
    with ExitStack() as stack:
        with running("sleep 0.1; echo ready; exec sleep 1000", contained.env(0)) as pid:
            (escaped,) = contained.find()[0]
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
def test_s7_a_number_reused_during_the_look_is_a_stranger(breaking):
    """The marker was seen, then the number became another process's: the second look tells."""
    contained = Contained("sweep", "a")
    seen = []

    def look(real: Any, pid: int, token: str, *, forked: bool) -> int | None:
        if pid == stranger and not seen:
            seen.append(pid)
            return 0
        return real(pid, token, forked=forked)

    with running(WAITS) as stranger:
        breaking.instead("look at a process", look)
        assert pids_and_ranks(contained) == set()
    assert seen


# How it is ended


@both_ways
@pytest.mark.parametrize("kind", ["sweep", "cgroup"])
@pytest.mark.parametrize("script", [WAITS, DEAF, SUCCEEDED], ids=["obedient", "deaf", "succeeded"])
def test_what_is_found_is_ended(sweep, monkeypatch, kind, script):
    """Politely, by SIGKILL after the time given, and also what it starts meanwhile.

    The time begins when it was found: a control group is killed at the end of the time, also if nobody has looked yet.
    """
    if kind == "cgroup":
        need_cgroup()
    contained = Contained(kind, "a", forked=False)
    if (enter := contained.enter(1)) is not None:
        script = f"echo 0 > {enter}; {script}"
    asked: SimpleQueue[int] = SimpleQueue()
    real = Member.send
    monkeypatch.setattr(Member, "send", lambda self, sig: (asked.put(sig), real(self, sig))[1])
    with running(script, contained.env(1)) as pid:
        swept = sweep(contained, hurried=partial(asked.get, timeout=PATIENCE_S) if "trap ''" in script else None)
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
    contained = Contained("group", "a")
    with running(WAITS, contained.env(0)) as pid:
        assert sweep(contained, end=contained.ends) == Swept(leaked={0: (pid,)}, ended=False)
        assert alive(pid)


def test_a_look_that_fails_is_told_and_ends_nothing(breaking, sweep, caplog):
    """Whoever waits for the sweep is answered all the same."""
    contained = Contained("sweep", "a")
    breaking.never("look for escaped processes")
    assert sweep(contained) == Swept(leaked={}, ended=False)
    assert "looking for escaped processes failed" in caplog.text


def test_without_another_thread_the_loop_looks_itself(no_threads, sweep):
    """A limit of threads is reached, or the interpreter is exiting."""
    contained = Contained("sweep", "a")
    with running(WAITS, contained.env(0)) as pid, no_threads():
        assert sweep(contained) == Swept(leaked={0: (pid,)}, ended=True)


def test_a_sweep_that_is_cancelled_says_nothing_and_lets_go(monkeypatch):
    """The leak check would find its descriptors."""
    contained = Contained("sweep", "a")
    loop, said = Loop("test-cancel", lost=print), []
    with running(WAITS, contained.env(0)) as pid:
        seen: SimpleQueue[None] = SimpleQueue()
        real = Member.send
        monkeypatch.setattr(Member, "send", lambda self, sig: (seen.put(None), sig == 9 and real(self, sig))[1])
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
    contained = Contained("cgroup", "it's a/name", forked=False)
    out = tmp_path / "out"
    line = lifeline.Lifeline()
    read_end = line.read_end()
    how = LaunchSpec(
        env=os.environ, cwd=str(tmp_path), streams=Streams(stdout=str(out)), line=line, enter=contained.enter(7)
    )
    process = program.run_program(["grep", "^0::", "/proc/self/cgroup"], how, read_end)
    assert select.select([process], [], [], PATIENCE_S)[0]
    assert process.reap() is not None
    process.close()
    os.close(read_end)
    line.cut()
    assert re.search(rf"/supervise-{os.getpid()}-it_s_a_name-[0-9a-f]+/rank-7$", out.read_text().strip())
    assert contained.token not in out.read_text(), "every user can read the path"
    assert contained.close()
    assert contained.close()  # again


def test_a_program_that_is_not_there_is_an_error_of_the_start():
    """Also where a shell enters the control group first."""
    need_cgroup()
    contained = Contained("cgroup", "a")
    line = lifeline.Lifeline()
    with pytest.raises(FileNotFoundError):
        program.run_program(["no-such-program"], LaunchSpec(env=os.environ, line=line, enter=contained.enter(0)), -1)
    line.cut()
    assert contained.close()


def test_one_stroke_kills_a_control_group_and_those_within(sweep):
    """Whoever made groups of its own in it does not escape by that."""
    need_cgroup()
    contained = Contained("cgroup", "a")
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
        assert Contained("cgroup", "a").close()
        assert not stale.parent.exists()
        assert live.exists()
    finally:
        live.rmdir()


def test_without_a_tree_the_error_says_why(mounted):
    """A clear error before any process starts."""
    mounted(None)
    with pytest.raises(SpecError, match="no cgroup v2 tree is mounted"):
        Contained("cgroup", "a")
    mounted(cgroup.Tree("/sys/fs/cgroup", "/elsewhere", ""))
    with pytest.raises(SpecError, match="own cgroup is not below"):
        Contained("cgroup", "a")
    mounted(cgroup.Tree("/nowhere", "/", ""))
    with pytest.raises(SpecError, match=r"/nowhere.* cannot be written"):
        Contained("cgroup", "a")


def test_a_containment_that_cannot_be_is_refused_before_the_start(mounted):
    """And nothing is left of the plan."""
    mounted(None)
    how: dict[str, Any] = {"name": "refused", "entrypoint": "true", "args": {0: ()}, "logs_specs": NO_FILES}
    with pytest.raises(SpecError, match="no cgroup v2 tree is mounted"):
        Supervisor.start(**how, containment="cgroup")
    with pytest.raises(SpecError, match="containment is 'none'; it is one of group, cgroup, sweep"):
        Supervisor.start(**how, containment="none")


by_kind = pytest.mark.parametrize("kind", ["sweep", "cgroup"])


def contained_by(kind: str) -> Contained:
    if kind == "cgroup":
        need_cgroup()
    return Contained(kind, "lives", forked=False)


@contextmanager
def life_of(contained: Contained, rank: int, script: str = WAITS) -> Iterator[int]:
    """Yield the pid of a process of a rank's present life that has left the rank's group."""
    enter = contained.enter(rank)
    begins = f"echo 0 > '{enter}'; " if enter is not None else ""
    with running(begins + script, contained.env(rank)) as pid:
        yield pid


@pytest.fixture
def begin() -> Iterator[Callable[..., tuple[Sweep, "SimpleQueue[Swept]"]]]:
    """Begin a sweep; return it and the queue for its result."""
    loop = Loop("test-sweep", lost=print)
    loop.start()

    def begin(contained: Contained, ranks: set[int] | None, **how: Any) -> tuple[Sweep, "SimpleQueue[Swept]"]:
        done: SimpleQueue[Swept] = SimpleQueue()
        how = {"end": contained.ends, "timeout_s": PATIENCE_S} | how
        sweep = Sweep(loop, contained, skip=(), ranks=None if ranks is None else frozenset(ranks), done=done.put, **how)
        loop.post(sweep.begin)
        return sweep, done

    yield begin
    loop.post(loop.end)
    loop.join(PATIENCE_S)


@by_kind
def test_a_scan_of_ranks_finds_only_their_present_lives(kind):
    contained = contained_by(kind)
    try:
        with ExitStack() as stack:
            other = stack.enter_context(life_of(contained, 1))
            past = stack.enter_context(life_of(contained, 0))
            assert pids_and_ranks(contained) == {(past, 0), (other, 1)}
            contained.begin_life(0, 1)
            assert found_by_ranks(contained, {0}) == set()
            present = stack.enter_context(life_of(contained, 0))
            assert found_by_ranks(contained, {0}) == {(present, 0)}
            assert found_by_ranks(contained, {0, 1}) == {(present, 0), (other, 1)}
            assert found_by_ranks(contained, set()) == set()
            assert pids_and_ranks(contained) == {(past, 0), (present, 0), (other, 1)}  # what is left is ended
    finally:
        contained.close()


def found_by_ranks(contained: Contained, ranks: set[int]) -> set[tuple[int, int | None]]:
    found = contained.find(ranks=frozenset(ranks))[0]
    try:
        return {(escaped.pid, escaped.local_rank) for escaped in found}
    finally:
        for escaped in found:
            escaped.close()


def test_s7_a_pid_that_another_rank_got_during_the_scan_is_not_found(monkeypatch):
    """The pid was read from the control group of rank 0 and then became that of a process of rank 1."""
    contained = contained_by("cgroup")
    try:
        with life_of(contained, 1) as pid:
            monkeypatch.setattr(GangFolder, "members", lambda _: iter([(pid, 0, 0)]))
            assert found_by_ranks(contained, {0}) == set()
            assert {one for one, _ in found_by_ranks(contained, {0, 1})} == {pid}
    finally:
        contained.close()


def test_an_escaped_process_that_is_only_reported_is_reported_with_its_life_alone():
    contained = Contained("group", "lives", forked=False)
    with life_of(contained, 0) as past:
        assert found_by_ranks(contained, {0}) == {(past, 0)}
        contained.begin_life(0, 1)
        assert found_by_ranks(contained, {0}) == set()
        with life_of(contained, 0) as present:
            assert pids_and_ranks(contained) == {(present, 0)}


@pytest.mark.parametrize("nprocs", [1, 2, 7, 1000])
def test_the_marker_of_a_rank_and_life_is_no_other_s(nprocs):
    contained = Contained("sweep", "lives", forked=False)
    seen = set()
    for life in (0, 1, 2, 1000, 123_456):
        for rank in (0, nprocs - 1):
            if life:
                contained.begin_life(rank, life)
            seen.add((rank, life, *contained.env(rank).values()))
    assert len({value for *_, value in seen}) == len({(rank, life) for rank, life, _ in seen})


def test_a_life_with_a_large_number_is_known_again():
    contained = Contained("sweep", "lives", forked=False)
    contained.begin_life(999, 999_999)
    with life_of(contained, 999) as pid:
        assert found_by_ranks(contained, {999}) == {(pid, 999)}
        assert escapees.number_of(pid, contained.token, forked=False) is not None


@by_kind
@pytest.mark.parametrize("timeout_s", [PATIENCE_S, 0.0], ids=["polite", "at_once"])
@pytest.mark.parametrize("script", [WAITS, DEAF], ids=["obedient", "deaf"])
def test_a_sweep_of_ranks_ends_their_present_lives_and_nobody_else(begin, kind, script, timeout_s):
    contained = contained_by(kind)
    try:
        with ExitStack() as stack:
            other = stack.enter_context(life_of(contained, 1))
            contained.begin_life(0, 4)
            pids = [stack.enter_context(life_of(contained, 0, script)) for _ in range(2)]
            sweep, done = begin(contained, {0}, timeout_s=timeout_s)
            if script == DEAF and timeout_s:
                sweep._loop.post(sweep.hurry, 0.1)
            swept = done.get(timeout=PATIENCE_S)
            assert swept.ended
            assert set(swept.leaked) <= {0}
            with watched(pids) as watch:
                assert watch.survivors() == set()
            assert pids_and_ranks(contained) == {(other, 1)}
    finally:
        contained.close()


@by_kind
def test_sweeps_of_different_ranks_run_at_the_same_time(begin, kind):
    contained = contained_by(kind)
    try:
        with ExitStack() as stack:
            pids = {rank: stack.enter_context(life_of(contained, rank)) for rank in range(4)}
            sweeps = [begin(contained, ranks) for ranks in ({0}, {1, 2})]
            leaked = [done.get(timeout=PATIENCE_S) for _, done in sweeps]
            assert leaked == [
                Swept(leaked={0: (pids[0],)}, ended=True),
                Swept(leaked={1: (pids[1],), 2: (pids[2],)}, ended=True),
            ]
            assert pids_and_ranks(contained) == {(pids[3], 3)}
            assert begin(contained, None)[1].get(timeout=PATIENCE_S).leaked == {3: (pids[3],)}
    finally:
        contained.close()


def test_a_sweep_of_ranks_on_the_loop(begin, no_threads):
    """No thread can be started."""
    contained = contained_by("sweep")
    with life_of(contained, 0) as pid, life_of(contained, 1) as other:
        with no_threads():
            swept = begin(contained, {0})[1].get(timeout=PATIENCE_S)
        assert swept == Swept(leaked={0: (pid,)}, ended=True)
        assert pids_and_ranks(contained) == {(other, 1)}


def test_the_control_group_of_a_past_life_is_removed():
    contained = contained_by("cgroup")
    try:
        folders = []
        for life in (0, 1, 5):
            if life:
                contained.begin_life(0, life)
            enter = contained.enter(0)
            assert enter is not None
            folders.append(Path(enter).parent)
            assert [folder.is_dir() for folder in folders] == [*[False] * (len(folders) - 1), True]
    finally:
        assert contained.close()


def test_a_control_group_that_cannot_be_made_leaves_the_present_life(monkeypatch):
    contained = contained_by("cgroup")
    try:
        before = contained.enter(0), contained.env(0)

        def full(path: str, **_: object) -> None:
            raise OSError(28, "No space left on device", path)

        monkeypatch.setattr(os, "makedirs", full)
        with pytest.raises(SpecError, match="No space left"):
            contained.begin_life(0, 1)
        monkeypatch.undo()
        assert (contained.enter(0), contained.env(0)) == before
        contained.begin_life(0, 2)
        assert contained.enter(0) != before[0]
    finally:
        assert contained.close()


def test_control_groups_are_killed_each_even_if_one_is_gone():
    contained = contained_by("cgroup")
    try:
        contained.begin_life(0, 1)
        enter = contained.enter(0)
        assert enter is not None
        Path(enter).parent.rmdir()
        # One process: a child of the script would still be in the control group when the script itself is reaped
        deaf = "trap '' TERM; echo ready; exec sleep 1000"
        with life_of(contained, 1, deaf) as pid, watched([pid]) as watch:
            assert not contained.kill(frozenset({0, 1}))
            assert watch.survivors() == set()
    finally:
        assert contained.close()


@pytest.fixture
def leaders() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two groups of a shell and its child."""
    started = [
        subprocess.Popen(["sh", "-c", "sleep 1000 & echo; wait"], stdout=subprocess.PIPE, process_group=0)
        for _ in range(2)
    ]
    for leader in started:
        assert leader.stdout is not None
        leader.stdout.readline()
    yield started
    for leader in started:
        os.killpg(leader.pid, 9)
        leader.wait(PATIENCE_S)
        assert leader.stdout is not None
        leader.stdout.close()


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Grows with each scan."""
    made: list[None] = []
    real = groups.all_pids

    def counted() -> Iterator[int]:
        made.append(None)
        return real()

    monkeypatch.setattr(groups, "all_pids", counted)
    return made


def size(leader: subprocess.Popen[bytes], since_s: float | None) -> int:
    found = groups.members(leader.pid, since_s=since_s)
    for member in found:
        member.close()
    return len(found)


def test_a_scan_serves_all_groups_that_were_asked_for_before_it(leaders, scans):
    since_s = time.monotonic()
    assert [size(leader, since_s) for leader in leaders] == [2, 2]
    assert len(scans) == 1


def test_an_earlier_scan_is_not_used(leaders, scans):
    """A member may have been forked since; and a caller that names no time wants the present."""
    first, second = leaders
    size(first, time.monotonic())
    assert size(second, time.monotonic()) == 2
    assert size(second, None) == 2
    assert len(scans) == 3


HOLDS = """
import os, signal, sys
folder, token = sys.argv[1:]
os.memfd_create("x-supervise-worker-" + token + ":0")
os.memfd_create("supervise-worker-" + token + ":0-and-more")
os.memfd_create("supervise-worker-" + token + ":")
os.memfd_create("supervise-worker-" + token + ":" + "7" * 200)
for name in ("supervise-worker-%s:0", "supervise-worker-%s:", "supervise-worker-%s:0-abcd1234 (deleted) x"):
    os.open(os.path.join(folder, name % token), os.O_RDWR | os.O_CREAT)
print("ready", flush=True)
signal.pause()
"""
"""A stranger that has files open whose names hold a marker, be it a whole one."""


def variables(token: str) -> list[dict[str, str]]:
    """Return environments that hold something like a marker."""
    values = [f"{token}:", f"{token}:{'9' * 5000}", f"x{token}:0", f"{token}:0x", f"{token}:-1", f"{token} :0"]
    return [{marker.VARIABLE: value} for value in values] + [{f"MY_{marker.VARIABLE}": f"{token}:0"}]


@contextmanager
def strangers(folder: Path, token: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Yield processes that are not the gang's and look like it. They are still there at the end."""
    found = []
    try:
        path = {"PATH": os.environ["PATH"]}
        found.extend(subprocess.Popen(["sleep", "1000"], env=env | path) for env in variables(token))
        holding = subprocess.Popen([sys.executable, "-S", "-c", HOLDS, folder, token], stdout=subprocess.PIPE)
        found.append(holding)
        assert holding.stdout is not None
        assert holding.stdout.readline() == b"ready\n"
        holding.stdout.close()
        yield found
        assert [process.poll() for process in found] == [None] * len(found)
    finally:
        for process in found:
            process.kill()
            process.wait()


@each_kind
@pytest.mark.parametrize("daemon", ["forked", "executed"])
def test_p4_malformed_and_foreign_markers_end_neither_the_sweep_nor_strangers(tmp_path, kind, daemon):
    """What the gang has left behind is ended, in spite of them."""
    source = f"say(os.environ['{marker.VARIABLE}'])\n" + DAEMONS[daemon]
    with faulty(tmp_path, kind, [source], grace=5.0, containment="sweep") as gang:
        token = gang.hear()[0].rpartition(" ")[2].partition(":")[0]
        daemons = pids_of(gang.hear())
        gang.wait()
        with strangers(tmp_path, token), watched(daemons) as watch:
            assert watch.survivors(0) == set(daemons)
            gang.close()
            assert watch.survivors(0) == set()
        event = gang.await_event("supervise.process.leaked")
        assert (event["descendants"], event["ended"]) == (daemons, True)


def test_p4_the_marker_of_every_start_is_known_again(monkeypatch):
    """Also in a gang within a gang; of no other gang."""
    monkeypatch.setenv(marker.VARIABLE, "outer:4")
    token = "0123456789abcdef"
    monkeypatch.setenv(marker.VARIABLE, f"{marker.of_gang(token)}:12")
    whole = b"A=1\0" + f"{marker.VARIABLE}={os.environ[marker.VARIABLE]}".encode() + b"\0Z=2\0"
    assert marker.number_in_environment(whole, token) == 12
    assert marker.number_in_environment(whole, "outer") == 4
    assert marker.number_in_environment(whole, token[1:]) is None
    held: list[int] = []
    monkeypatch.setattr(marker, "anonymous_file", lambda name: held.append(anonymous_file(name)))
    marker.carry()
    try:
        assert escapees.number_of(os.getpid(), token, forked=True) == 12
        assert escapees.number_of(os.getpid(), "outer", forked=True) is None
    finally:
        os.close(held[0])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_state_of_a_process_says_if_it_may_not_be_signaled():
    """As of `sudo` in a rank of an ordinary user."""
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.setresuid(65534, 65534, 65534)
            os.write(write, state_of(os.getppid()).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with open(read, encoding="ascii") as file:  # noqa: PTH123 - a descriptor
        assert re.fullmatch(r"\w, of a user whose processes may not be signaled", file.read())
    assert len(state_of(os.getpid())) == 1
