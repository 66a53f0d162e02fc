"""The host dies, exits, or forks: nothing of its gangs survives it, and a fork disturbs nobody."""

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from tests.kernels import HAS_PIDFD
from tests.patience import PATIENCE_S
from tests.processes.gangs import Fifo, Stopwatch, each_kind
from tests.processes.hosts import Host, pids_of, watched
from tests.processes.stubborn import DEAF, OBEDIENT, PARENT, STUBBORN


@contextmanager
def ears(tmp_path) -> Iterator[Fifo]:
    fifo = Fifo(tmp_path / "ear")
    try:
        yield fifo
    finally:
        fifo.close()


@each_kind
@pytest.mark.parametrize("name", STUBBORN)
def test_k1_workers_die_with_a_killed_host(tmp_path, kind, name):
    """However they resist and whatever they have started, without anybody of ours to see to it."""
    program = f"start_gang(kind, [{STUBBORN[name]!r}] * 3)\nprint('runs', flush=True)\nsignal.pause()"
    with ears(tmp_path) as ear, Host(program, kind, ear.path) as host:
        pids = pids_of([ear.hear() for _ in range(3)])
        assert host.hear() == "runs"
        with watched(pids) as watch:
            assert len(watch.survivors(0)) == len(pids) >= 3
            host.kill()
            assert watch.survivors() == set()


@each_kind
@pytest.mark.parametrize("opened", [0, 600])
def test_k1_the_children_of_a_rank_that_is_killed_with_its_host_die_as_well(tmp_path, kind, opened):
    """The host is stopped, so that it cannot have noticed the end of the rank when it is killed itself."""
    program = f"""
    gang = make_gang(kind, [{PARENT!r}] * 2)
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range({opened})]
    gang.ask(Start())
    print("runs", flush=True)
    signal.pause()
    """
    with ears(tmp_path) as ear, Host(program, kind, ear.path) as host:
        said = [ear.hear() for _ in range(2)]
        assert host.hear() == "runs"
        ranks = [pids_of([line])[0] for line in said]
        with watched(ranks) as leaders, watched([pid for pid in pids_of(said) if pid not in ranks]) as children:
            host.suspend()
            for rank in ranks:
                os.kill(rank, signal.SIGKILL)
            assert leaders.survivors() == set()
            assert len(children.survivors(0)) == 2
            host.kill()
            assert children.survivors() == set()


CLOSES_ALL = "os.closerange(3, 1000)\n" + DEAF


@each_kind
def test_k1_a_rank_that_closes_what_it_does_not_know_dies_with_a_killed_host(tmp_path, kind):
    """As `sudo` and daemons do."""
    program = f"start_gang(kind, [{CLOSES_ALL!r}])\nprint('runs', flush=True)\nsignal.pause()"
    with ears(tmp_path) as ear, Host(program, kind, ear.path) as host, watched(pids_of([ear.hear()])) as watch:
        assert host.hear() == "runs"  # before that, it is being started
        host.kill()
        assert watch.survivors() == set()


FEW = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
before = len(os.listdir("/proc/self/fd"))
gang = start_gang(kind, [{worker!r}] * 20)
print(len(os.listdir("/proc/self/fd")) - before, flush=True)
signal.pause()
"""


@pytest.mark.parametrize(("limit", "kept"), [(90, False), (160, True)])
def test_k1_where_open_files_are_few_they_are_left_to_the_program(tmp_path, limit, kept):
    """Twenty ranks hold their pidfds, and their ends of the lifeline where that leaves as many to the program."""
    least = 20 * ((1 if HAS_PIDFD else 2) + kept)  # a thread that waits holds two
    with ears(tmp_path) as ear, Host(FEW.format(limit=limit, worker=DEAF), "binary", ear.path) as host:
        pids = pids_of([ear.hear() for _ in range(20)])
        assert least <= int(host.hear()) < least + 15
        with watched(pids) as watch:
            host.kill()
            assert watch.survivors() == set()


SHELL = """
args = {0: ("-c", script.format(ear=ear))}
gang = Supervisor.start(name="host", entrypoint=shell, args=args)
gang.ask(Start())
print("runs", flush=True)
signal.pause()
"""


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_k1_a_shell_script_that_opens_descriptors_of_its_own_dies_with_a_killed_host(tmp_path, shell):
    """The numbers that scripts use are theirs: the lifeline has another."""
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    script = "exec 3>&1 4</dev/null 9>&1; echo ready $$ > {ear}; sleep 1000; :"
    with ears(tmp_path) as ear, Host(f"shell, script = {shell!r}, {script!r}{SHELL}", "binary", ear.path) as host:
        pids = pids_of([ear.hear()])
        assert host.hear() == "runs"
        with watched(pids) as watch:
            host.kill()
            assert watch.survivors() == set()


@pytest.mark.parametrize("timeout", ["timeout --foreground 1000", "exec timeout 1000"])
def test_k1_what_a_script_runs_under_timeout_dies_with_a_killed_host(tmp_path, timeout):
    """In the two ways in which it does not leave the group of its rank."""
    script = f"{timeout} sh -c 'echo ready $$ $PPID > {{ear}}; sleep 1000; :'"
    with ears(tmp_path) as ear, Host(f"shell, script = 'sh', {script!r}{SHELL}", "binary", ear.path) as host:
        pids = pids_of([ear.hear()])
        assert host.hear() == "runs"
        with watched(pids) as watch:
            host.kill()
            assert watch.survivors() == set()


KILLED_WHILE_STARTING = """
def kill():
    moment.wait(float(os.environ["MOMENT_S"]))
    os.kill(os.getpid(), signal.SIGKILL)

moment = threading.Event()
args = {rank: ("1000",) for rank in range(40)}
gang = Supervisor.start(name="host", entrypoint="sleep", args=args, gate="GATE" in os.environ)
threading.Thread(target=kill).start()
gang.ask(Start())
signal.pause()
"""


@pytest.mark.stress
@pytest.mark.timeout(180)
@pytest.mark.parametrize("gate", [False, True], ids=["", "gate"])
def test_k1_a_host_killed_during_the_start_leaves_at_most_one_binary(tmp_path, monkeypatch, gate):
    """At thirty random moments: only what was between its exec and the arming may live; behind a gate, nothing."""
    if gate:
        monkeypatch.setenv("GATE", "")
    at_most = 0 if gate else 1
    me, moments = psutil.Process(), random.Random(4711)
    before = {child.pid for child in me.children()}
    counts = []
    for _ in range(30):
        monkeypatch.setenv("MOMENT_S", str(moments.uniform(0.0, 0.08)))
        with Host(KILLED_WHILE_STARTING) as host:
            assert host.exit_code() == -signal.SIGKILL
        orphans = [child for child in me.children() if child.pid not in before]  # the kernel has made them ours
        counts.append(len(orphans))
        with watched([orphan.pid for orphan in orphans]) as watch:
            assert len(watch.survivors(at_most=at_most)) <= at_most
        psutil.wait_procs(orphans, timeout=40)
    assert max(counts) > 1, "no moment was in the middle of a start"


ENDS = {
    "at its end": ("", 0),
    "by an exception": ("raise LookupError('not caught')", 1),
    "by sys.exit": ("sys.exit(7)", 7),
    "with sys.exit in a thread": ("t = threading.Thread(target=sys.exit); t.start(); t.join()", 0),
}


@each_kind
@pytest.mark.parametrize("how", ENDS)
def test_k5_an_exit_without_close_takes_the_workers_along(tmp_path, kind, how):
    """The interpreter ends at once, with its own exit code."""
    ending, code = ENDS[how]
    program = f"start_gang(kind, [{OBEDIENT!r}] * 3)\nprint('started', flush=True)\nsys.stdin.readline()\n{ending}"
    with ears(tmp_path) as ear, Host(program, kind, ear.path, stderr=-3) as host:
        assert host.hear() == "started"
        pids = pids_of([ear.hear() for _ in range(3)])
        with watched(pids) as watch:
            host.process.stdin.close()
            assert host.exit_code() == code
            assert watch.survivors() == set()


@each_kind
def test_k5_an_exit_gives_deaf_workers_the_gang_s_grace(tmp_path, kind):
    """They ignore SIGTERM; the exit takes the one second that the gang was given."""
    program = f"""start_gang(kind, [{DEAF!r}] * 3, grace=1.0)\nsys.stdin.readline()"""
    with ears(tmp_path) as ear, Host(program, kind, ear.path) as host:
        pids = pids_of([ear.hear() for _ in range(3)])
        with watched(pids) as watch:
            with Stopwatch() as time:
                host.process.stdin.close()
                assert host.exit_code() == 0
            assert watch.survivors() == set()
    assert 0.9 < time.seconds < 20


WITHOUT_DESCRIPTORS = f"""
import os, resource, threading
start_gang("binary", [{OBEDIENT!r}])
os.dup2(1, 2)
leaving = threading.main_thread()
threading.Thread(target=lambda: (leaving.join(), os.write(1, b"the thread has ended\\n"))).start()
sys.stdin.readline()
resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
try:
    while True:
        os.open(os.devnull, os.O_RDONLY)
except OSError:
    pass
"""


def test_k5_an_exit_without_free_descriptors_waits_for_threads_and_ends_the_ranks(tmp_path):
    """The exit cannot import multiprocessing then; Python waits for the threads of the program all the same."""
    with ears(tmp_path) as ear, Host(WITHOUT_DESCRIPTORS, "binary", ear.path) as host:
        pids = pids_of([ear.hear()])
        with watched(pids) as watch:
            host.process.stdin.close()
            assert host.exit_code() == 0
            assert host.process.stdout.read() == b"the thread has ended\n"
            assert watch.survivors() == set()


FORKS = """
import multiprocessing, pykka, warnings
from contextlib import suppress

gang = start_gang(kind, [{worker!r}] * 3)
waiting = gang.ask(Wait(), block=False)
sys.stdin.readline()

def in_child():
    said = []
    asks = [lambda message=message: gang.ask(message, timeout=40) for message in (Poll(), Close())]
    for use in (*asks, lambda: gang.tell(Close())):
        try:
            use()
        except pykka.ActorDeadError:
            said.append("dead")
    said.append(gang.stop(timeout=40))
    said.append(pykka.ActorRegistry.stop_all(timeout=40))
    own = Supervisor.start(name="own", entrypoint="true", args={{0: ()}})
    own.ask(Start(), timeout=40)
    said.append(own.ask(Wait(), timeout=40).outcome)
    own.stop(timeout=40)
    print(*said, flush=True)

def hold_lock():
    with pykka.ActorRegistry._actor_refs_lock:
        held.set()
        forked.wait()

held, forked = threading.Event(), threading.Event()
holder = threading.Thread(target=hold_lock)
holder.start()
held.wait()
if {fork!r} == "os.fork":
    pid = os.fork()
    if pid == 0:
        in_child()
        sys.exit(0)
    status = os.waitpid(pid, 0)[1]
else:
    child = multiprocessing.get_context("fork").Process(target=in_child)
    child.start()
    child.join()
    status = child.exitcode
print(status, flush=True)
forked.set()
holder.join()
print(waiting.done(), len(gang.ask(Status(), timeout=40).running), flush=True)
os.kill(gang.ask(Pids())[1], signal.SIGKILL)
print(waiting.get(timeout=40).outcome, flush=True)
gang.stop(timeout=40)
"""


@each_kind
@pytest.mark.parametrize("fork", ["os.fork", "multiprocessing"])
def test_k7_a_forked_child_cannot_disturb_the_gang(tmp_path, kind, fork):
    """In the child the gang is dead, and it can have one of its own; in the parent it runs on, and is watched."""
    with ears(tmp_path) as ear, Host(FORKS.format(worker=OBEDIENT, fork=fork), kind, ear.path) as host:
        assert len([ear.hear() for _ in range(3)]) == 3
        host.process.stdin.write(b"\n")
        host.process.stdin.flush()
        assert host.hear() == "dead dead dead False [] succeeded"
        assert host.hear() == "0"
        assert host.hear() == "False 3"
        assert host.hear() == "failed"
        assert host.exit_code() == 0


WAITS_IN_CHILD = """
import asyncio, pykka
from supervise import DefaultLogsSpecs, multiprocessing as mp, start_processes
from tests.multiprocessing import work

context = start_processes("k7", "sleep", {0: "1000"}, logs_specs=DefaultLogsSpecs(os.devnull))
spawned = mp.spawn(work.run, ({0: "block()"},), join=False)
gang = start_gang("binary", ["signal.pause()"])
answer = gang.ask(Wait(), block=False)
process = context.subprocess_handlers[0].proc

async def awaiting():
    await answer

def refused(call):
    try:
        return call()
    except (pykka.ActorDeadError, AssertionError) as error:
        return "refused"

if os.fork() == 0:
    calls = [context.wait, lambda: context.wait(0), lambda: context.wait(60), answer.get, process.wait, spawned.join,
             spawned.processes[0].join, lambda: asyncio.run(awaiting()), lambda: answer.map(str).get()]
    print(*map(refused, calls), context.close(), context.close(), len(context.pids()), flush=True)
    os._exit(0)
os.wait()
print(context.wait(0), answer.done(), spawned.join(0), flush=True)
spawned.processes[0].kill()
context.close()
print(context.wait().outcome, flush=True)
gang.stop()
"""


def test_k7_in_a_forked_child_every_wait_is_refused(tmp_path):
    """Its answer comes in the parent, where all goes on. A close is harmless there, and returns."""
    with Host(WAITS_IN_CHILD) as host:
        assert host.hear().split() == ["refused"] * 9 + ["None", "None", "1"]
        assert host.hear() == "None False False"
        assert host.hear() == "stopped"
        assert host.exit_code() == 0


FORKS_IN_A_SINK = """
import os, sys
from supervise import Start, Supervisor, Wait
host, children = os.getpid(), []

def sink(event):
    if os.getpid() == host:
        child = os.fork()
        if child:
            children.append(child)
        else:
            1 / {raises}

with Supervisor.start(name="a", entrypoint="true", args={{0: (), 1: ()}}, event_sink=sink) as gang:
    gang.ask(Start())
    outcome = gang.ask(Wait()).outcome
assert len(children) > 4
print(outcome, {{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children}})
"""


@pytest.mark.parametrize("raises", [0, 1])
def test_k7_a_child_that_returns_from_an_event_sink_ends(raises):
    """Otherwise it would run the loop of its parent's gang, and take its events."""
    source = FORKS_IN_A_SINK.format(raises=raises)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", source], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.stdout == "succeeded {1}\n", done
    assert "a child that a listener of events has forked ends, because it has returned from it\n" in done.stderr


@each_kind
def test_k7_the_lifeline_fires_while_a_forked_child_lives(tmp_path, kind):
    """The child keeps none of the write ends that it inherited."""
    program = f"""
    start_gang(kind, [{DEAF!r}] * 3)
    pid = os.fork()
    if pid == 0:
        signal.pause()
    print(pid, flush=True)
    signal.pause()
    """
    with ears(tmp_path) as ear, Host(program, kind, ear.path) as host:
        workers, child = pids_of([ear.hear() for _ in range(3)]), int(host.hear())
        with watched(workers) as watch, watched([child]) as bystander:
            host.kill()
            assert watch.survivors() == set()
            assert bystander.survivors(0) == {child}


def test_k7_a_worker_started_by_fork_can_have_a_gang_of_its_own(tmp_path):
    """The fork is made by our loop, and yet in the worker its thread may wait for answers."""
    worker = """
from supervise import Start, Supervisor, Wait
gang = Supervisor.start(name='inner', entrypoint='true', args={0: ()})
gang.ask(Start(), timeout=40)
value = gang.ask(Wait(), timeout=40).outcome
gang.stop(timeout=40)
"""
    program = f"gang = start_gang(kind, [{worker!r}]); print(gang.ask(Wait()).return_values, flush=True)"
    with ears(tmp_path) as ear, Host(program, "fork", ear.path) as host:
        assert host.hear() == "{0: 'succeeded'}"
        assert host.exit_code() == 0
