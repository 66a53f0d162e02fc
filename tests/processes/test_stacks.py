"""What hangs is named: the stacks of real ranks, from py-spy, from faulthandler in the rank, and from the kernel."""

import os
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import psutil
import pykka
import pytest

from supervise import (
    Close,
    Poll,
    Signal,
    SpecError,
    Stacks,
    Start,
    SuperviseError,
    SupervisorCrashed,
    group_stacks,
)
from supervise.testing import FakeGang
from tests.breaking import crash
from tests.kernels import NEEDS_FAULTHANDLER
from tests.patience import PATIENCE_S
from tests.processes.gangs import Fifo, Stopwatch, each_function, faulty, launched

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    NEEDS_FAULTHANDLER,
]

NO_PY_SPY = "py-spy is not installed (pip install 'supervise-gang[stacks]')"
LOCK = """
def deadlock():
    import threading
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
deadlock()
"""
LOOP = """
def loop():
    while True:
        pass
loop()
"""
C_SLEEP = """
import ctypes
usleep = ctypes.CDLL(None).usleep
def sleep_in_c():
    while True:
        usleep(900_000)
sleep_in_c()
"""
HANGS = {"deadlock": LOCK, "loop": LOOP, "sleep_in_c": C_SLEEP}
PROGRAM = "from supervise import enable_stacks\nenable_stacks()\n"
SETTLED_S = 20.0
"""Far above the two seconds that are promised, for a machine that does something else."""


@pytest.fixture(autouse=True)
def _patient(request, collecting_takes):
    """What is read does not depend on how busy the machine is. The deadlines have tests of their own."""
    if "usual_deadlines" not in request.fixturenames:
        collecting_takes("all", PATIENCE_S)


@pytest.fixture
def usual_deadlines():
    """Leave the deadlines as they are."""


@pytest.fixture
def no_py_spy(py_spy):
    py_spy(None)


def stacks(gang, ranks=None):
    return gang.ask(Stacks(ranks=ranks))


def functions(found):
    return [frame.function.rpartition(".")[2] for thread in found.threads for frame in thread.frames]


def until(gang, accepts):
    """Ask until the ranks are where they go: nobody tells when a rank has begun to hang."""
    begin = os.times().elapsed
    while True:
        found = stacks(gang)
        if accepts(found):
            return found
        assert os.times().elapsed - begin < PATIENCE_S, found


def are_in(names):
    """Whether each rank that is named has a frame of this function."""
    return lambda found: all(r in found and name in functions(found[r]) for r, name in names.items())


# The sources


@each_function
def test_every_kind_of_hang_is_named_by_the_rank_itself(tmp_path, kind, no_py_spy):
    with faulty(tmp_path, kind, list(HANGS.values())) as gang:
        found = until(gang, are_in(dict(enumerate(HANGS))))
        assert {each.source for each in found.values()} == {"faulthandler"}
        assert [line.partition(" (")[0] for line in group_stacks(found)] == [
            f"rank {rank}: {name}" for rank, name in enumerate(HANGS)
        ]
        for rank, each in found.items():
            main = each.threads[0]
            assert (each.pid, main.tid, main.name) == (gang.pids[rank], gang.pids[rank], "MainThread")
            assert main.state in "RSD"
            assert main.frames[0].file == "<string>"
        assert set(stacks(gang)) == {0, 1, 2}  # nobody was ended


@each_function
def test_every_kind_of_hang_is_named_from_outside(tmp_path, kind):
    """By py-spy where it may read and knows this Python, otherwise by the next source, with the reason."""
    with faulty(tmp_path, kind, list(HANGS.values())) as gang:
        found = until(gang, are_in(dict(enumerate(HANGS))))
        for each in found.values():
            assert each.source == "py-spy" or each.notes[0].startswith(("py-spy", "there was no time"))


@pytest.mark.parametrize("installed", [True, False])
def test_a_suspended_rank_has_the_kernels_word_and_is_not_signaled(tmp_path, installed, py_spy):
    if not installed:
        py_spy(None)
    with faulty(tmp_path, "spawn", [LOCK, LOCK]) as gang:
        until(gang, are_in({0: "deadlock", 1: "deadlock"}))
        gang.ask(Signal(sig=signal.SIGSTOP, ranks=frozenset({1})))
        await_suspended(gang.pids[1])
        found = stacks(gang)
        assert found[1].threads[0].state == "T"
        assert found[0].source in ("py-spy", "faulthandler")
        if not installed:
            assert found[1].source == "kernel"
            assert found[1].notes == (NO_PY_SPY, "faulthandler: the process is suspended")
        assert group_stacks(found)[-1].endswith(", suspended")
        assert not pending(gang.pids[1])


def await_suspended(pid):
    """Return once the kernel has suspended the process, of which it tells only the parent, by SIGCHLD."""
    begin = os.times().elapsed
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        assert os.times().elapsed - begin < PATIENCE_S
        os.sched_yield()


def pending(pid):
    """The real-time signals that wait for a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return [line for line in lines if line.startswith(("SigPnd", "ShdPnd")) and int(line.split()[1], 16) >> 33]


def test_threads_have_their_names_where_the_source_gives_them(tmp_path):
    source = f"import threading\nthreading.Thread(target=exec, args=({LOCK!r},), name='loader', daemon=True).start()\n"
    with faulty(tmp_path, "spawn", [source + LOOP]) as gang:
        found = until(gang, lambda found: {"loop", "deadlock"} <= set(functions(found[0])))[0]
        assert found.threads[0].tid == found.pid
        if found.source == "py-spy":
            assert [thread.name for thread in found.threads] == ["MainThread", "loader"]
            assert all(thread.tid for thread in found.threads)


def test_without_permission_the_reasons_are_told_and_the_state_stays(tmp_path):
    """A host that must not trace: the rank is not dumpable, and the capability is dropped."""
    script = tmp_path / "refused.py"
    script.write_text(
        textwrap.dedent("""
        import ctypes, os, signal, sys
        from supervise import Close, Stacks, Start, Supervisor
        from supervise._process.stacks import gather

        gather._KERNEL_S = 50
        PR_SET_DUMPABLE, PR_CAPBSET_DROP, CAP_SYS_PTRACE = 4, 24, 19

        def hang(said):
            ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
            os.write(said, b"x")
            while True:
                signal.pause()

        if __name__ == "__main__":
            if len(sys.argv) == 1:  # an exec takes the smaller set over
                ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_SYS_PTRACE, 0, 0, 0)
                os.execv(sys.executable, [sys.executable, __file__, "again"])
            heard, said = os.pipe()
            gang = Supervisor.start(name="refused", entrypoint=hang, args={0: (said,)}, start_method="fork")
            gang.ask(Start())
            os.read(heard, 1)
            found = gang.ask(Stacks())[0]
            print(found.source, found.threads[0].state, found.notes)
            print(gang.ask(Close()).outcome)
            gang.stop()
        """)
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    line, outcome = done.stdout.splitlines()
    assert outcome == "stopped"
    assert line[:8] in ("kernel S", "kernel R")
    assert "faulthandler: the descriptors of the process cannot be read: Permission denied" in line


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'Error: Permission Denied: try again' >&2; exit 1", "py-spy: Permission Denied: try again"),
        ("echo '[]'", "py-spy: no output"),
        ("echo '[{\"frames\": 1}]'", "py-spy: no output"),
        ("exec sleep 1000", "py-spy took too long"),
    ],
)
def test_a_py_spy_that_fails_leaves_its_reason_and_the_rank_answers(tmp_path, py_spy, collecting_takes, script, reason):
    py_spy(script)
    if "sleep" in script:
        collecting_takes("one run of py-spy", 0.1)
    with faulty(tmp_path, "spawn", [LOCK]) as gang:
        found = until(gang, are_in({0: "deadlock"}))[0]
        assert (found.source, found.notes) == ("faulthandler", (reason,))


# Programs


def test_a_program_without_python_survives_and_has_the_kernels_word(tmp_path):
    with launched(tmp_path, "sleep", {0: ("1000",)}) as gang:
        gang.start()
        for _ in range(3):
            found = stacks(gang)[0]
            assert (found.source, found.threads[0].name, len(found.threads)) == ("kernel", "sleep", 1)
            assert found.notes == ("not a Python program: sleep",)
        (line,) = group_stacks({0: found})
        assert line.startswith("rank 0: no Python frames; the kernel: ")
        assert gang.ask(Poll()) is None


def test_a_python_program_that_registered_nothing_survives(tmp_path, no_py_spy):
    with launched(tmp_path, sys.executable, {0: ("-c", LOCK)}) as gang:
        gang.start()
        assert [stacks(gang)[0].source for _ in range(3)] == ["kernel"] * 3
        assert gang.ask(Poll()) is None


def test_a_program_that_enables_stacks_is_read(tmp_path, no_py_spy):
    with launched(tmp_path, sys.executable, {0: ("-c", PROGRAM + PROGRAM + LOCK)}) as gang:
        gang.start()
        assert until(gang, are_in({0: "deadlock"}))[0].source == "faulthandler"


def test_a_program_may_enable_stacks_in_a_thread_and_beside_handlers_of_its_own(tmp_path, no_py_spy):
    source = """
import signal, threading
for number in range(50, 65):
    signal.signal(number, print)
from supervise import enable_stacks
thread = threading.Thread(target=enable_stacks)
thread.start()
thread.join()
"""
    with launched(tmp_path, sys.executable, {0: ("-c", source + LOCK)}) as gang:
        gang.start()
        assert until(gang, are_in({0: "deadlock"}))[0].source == "faulthandler"


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_ranks_of_a_host_that_has_enabled_stacks_itself_have_their_own(tmp_path, method):
    """A forked rank inherits the host's handler and memory file."""
    script = tmp_path / "host.py"
    script.write_text(
        textwrap.dedent(f"""
        import os, threading
        from supervise import Close, Stacks, Start, Supervisor, enable_stacks
        from supervise._process.stacks import gather

        def hang(path):
            os.mkdir(path)
            threading.Event().wait()

        if __name__ == "__main__":
            gather.find_program = lambda: None
            enable_stacks()
            gang = Supervisor.start(name="job", entrypoint=hang, args={{0: ("0",), 1: ("1",)}},
                                    start_method={method!r})
            gang.ask(Start())
            while not (os.path.isdir("0") and os.path.isdir("1")):  # a signal during an import may crash Python
                threading.Event().wait(0.01)
            found = {{}}
            while len(found) < 2 or any("hang" not in str(each) for each in found.values()):
                found = gang.ask(Stacks())
            print({{each.source for each in found.values()}}, gang.ask(Close()).outcome)
            gang.stop()
        """)
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=tmp_path
    )
    assert (done.stdout, done.stderr) == ("{'faulthandler'} stopped\n", "")


def test_a_program_in_the_group_of_a_rank_is_not_signaled(tmp_path, no_py_spy):
    source = "import subprocess\nchild = subprocess.Popen(['sleep', '1000'])\nsay(child.pid)\nchild.wait()"
    with faulty(tmp_path, "spawn", [source]) as gang:
        child = int(gang.hear()[0])
        until(gang, are_in({0: "wait"}))
        assert psutil.Process(child).status() != psutil.STATUS_ZOMBIE
        assert not pending(child)


@pytest.mark.parametrize("kind", ["spawn", "fork"])
def test_a_rank_that_closed_its_descriptors_is_not_signaled_and_no_file_is_written(tmp_path, kind, no_py_spy):
    """The number of the memory file may be that of a file of the user by then."""
    path = tmp_path / "precious"
    source = f"""
from supervise._process.stacks.gather import _number
mine = [int(n) for n in os.listdir("/proc/self/fd") if _number(f"/proc/self/fd/{{n}}", os.getpid())]
for fd in mine:
    precious = os.open({str(path)!r}, os.O_CREAT | os.O_RDWR)
    os.write(precious, b"precious")
    os.dup2(precious, fd)
say(len(mine))
{LOCK}"""
    with faulty(tmp_path, kind, [source]) as gang:
        assert gang.hear() == ["1"]
        found = stacks(gang)[0]
        assert (found.source, found.notes[-1].split(": ")[0]) == ("kernel", "faulthandler")
        assert path.read_text() == "precious"


def test_a_rank_that_has_executed_another_program_survives(tmp_path, no_py_spy):
    """The exec itself takes the handler away; see the how-to page."""
    program = """os.execvp("sh", ["sh", "-c", 'echo runs > "$EAR"; exec sleep 1000'])"""
    with faulty(tmp_path, "spawn", [program]) as gang:
        assert gang.hear() == ["runs"]
        found = until(gang, lambda found: found[0].threads[0].name == "sleep")[0]
        assert found.source == "kernel"
        assert gang.ask(Poll()) is None


def test_a_rank_that_blocks_the_signal_is_not_waited_for(tmp_path, no_py_spy):
    source = "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\nsay('blocked')\n" + LOCK
    with faulty(tmp_path, "spawn", [source]) as gang:
        gang.hear()
        found = stacks(gang)[0]
        assert found.source == "kernel"
        assert found.notes[-1].startswith("faulthandler: every thread blocks signal")
        assert gang.close(death_sig=signal.SIGKILL).outcome == "stopped"


LIAR = """
from supervise._process.stacks.gather import _number
mine = {int(n): number for n in os.listdir("/proc/self/fd") if (number := _number(f"/proc/self/fd/{n}", os.getpid()))}
((fd, number),) = mine.items()
FRAMES = '  File "a\\x1b[2J", line 7 in \\x1b]0;b\\x07\\n  File "c", line ' + 5000 * '9' + ' in d\\n'
LINES = 'Thread 0x1 (most recent call first):\\n' + FRAMES
def lie(*_):
    os.write(fd, b"\\xff\\0garbage\\n" + LINES.encode() * 1_000)
signal.signal(number, lie)
os.memfd_create(f"supervise-stacks-9-{os.getpid()}")
say("ready")
while True:
    signal.pause()
"""


def test_what_a_rank_lies_is_bounded_and_harmless(tmp_path, no_py_spy):
    """It is signaled with a real-time signal only, and its text is cut and has no control characters."""
    with faulty(tmp_path, "spawn", [LIAR]) as gang:
        gang.hear()
        found = until(gang, lambda found: found[0].source == "faulthandler")[0]
        assert len(found.threads) <= 101
        assert [frame for thread in found.threads for frame in thread.frames if frame.line > 10**9] == []
        (line,) = group_stacks({0: found})
        assert line.isprintable()


# Many, and at the wrong time


def test_64_ranks_answer_in_time_and_the_odd_one_is_first(tmp_path, usual_deadlines):
    sources = [LOCK] * 64
    sources[37] = C_SLEEP
    with faulty(tmp_path, "fork", sources) as gang:
        names = {rank: "sleep_in_c" if rank == 37 else "deadlock" for rank in range(64)}
        found = until(gang, are_in(names))
        assert [line.partition(" (")[0] for line in group_stacks(found)] == [
            "rank 37: sleep_in_c",
            "ranks 0-36, 38-63: deadlock",
        ]
        with Stopwatch() as watch:
            assert len(stacks(gang)) == 64
        assert watch.seconds < SETTLED_S
        assert set(stacks(gang, frozenset({37, 5}))) == {5, 37}


@pytest.mark.parametrize("late", ["kernel", "py-spy", "dumps"])
def test_a_step_that_has_no_time_left_is_told_and_every_rank_is_in_the_reply(tmp_path, py_spy, collecting_takes, late):
    with faulty(tmp_path, "spawn", [LOCK, LOCK]) as gang:
        until(gang, are_in({0: "deadlock", 1: "deadlock"}))
        py_spy(None if late == "dumps" else f'exec {sys.executable} "$@"')
        collecting_takes(late, 0.0)
        found = stacks(gang)
        assert set(found) == {0, 1}
        said = {
            "kernel": ("py-spy: ", "faulthandler", False),
            "py-spy": ("there was no time left for py-spy", "faulthandler", True),
            "dumps": (NO_PY_SPY, "kernel", True),
        }[late]
        for each in found.values():
            assert each.notes[0].startswith(said[0])
            assert (each.source, each.threads[0].state != "") == said[1:]
        if late == "dumps":
            assert found[0].notes[1:] == ("faulthandler: there was no time left",)


def test_asks_at_the_same_time_are_all_answered(tmp_path, no_py_spy):
    with faulty(tmp_path, "spawn", [LOCK, LOCK]) as gang:
        until(gang, are_in({0: "deadlock", 1: "deadlock"}))
        asked = [None, frozenset({1}), frozenset({0}), None, frozenset()]
        replies = [gang.supervisor.ask(Stacks(ranks=ranks), block=False) for ranks in [frozenset({1}), *asked]]
        found = [set(reply.get(timeout=PATIENCE_S)) for reply in replies]
        assert found == [{1}, {0, 1}, {1}, {0}, {0, 1}, set()]


def test_ranks_that_end_meanwhile_are_left_out_and_never_killed(tmp_path, no_py_spy):
    """Python ignores the signal once it exits, so a late one does not end a rank."""
    with faulty(tmp_path, "fork", ["say('x')\nwait_for_word()"] * 6) as gang:
        gang.hear(6)
        for rank in range(6):
            gang.tell(rank)
            while len(found := stacks(gang)) == 6 - rank:
                assert set(found) == set(range(rank, 6))
        result = gang.wait()
        assert result.outcome == "succeeded", result.failures
        assert stacks(gang) == {}


def test_a_gang_that_does_not_run_has_no_stacks_and_an_unknown_rank_is_an_error():
    with FakeGang(2) as gang:
        assert gang.supervisor.ask(Stacks(), timeout=PATIENCE_S) == {}
        with pytest.raises(SpecError, match="its ranks are 0 to 1"):
            gang.supervisor.ask(Stacks(ranks=frozenset({2})), timeout=PATIENCE_S)
        gang.supervisor.ask(Start(), timeout=PATIENCE_S)
        for process in gang.processes.values():
            process.exit(0)


@pytest.fixture
def slow(tmp_path, py_spy):
    """A gang whose stacks are being collected: py-spy has begun, and fails when the test says so."""
    ear, gate = Fifo(tmp_path / "spy"), Fifo(tmp_path / "go")
    py_spy(f"echo begun > {ear.path}; read word < {gate.path}; exit 1")
    with faulty(tmp_path, "spawn", ["signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay('x')\n" + LOCK]) as gang:
        gang.hear()
        gang.reply = gang.supervisor.ask(Stacks(), block=False)
        assert ear.hear() == "begun"
        gang.py_spy = gate
        yield gang
        with suppress(pykka.ActorDeadError):  # the test has stopped it
            gang.close(death_sig=signal.SIGKILL)
    ear.close()
    gate.close()


def test_no_rank_is_signaled_for_its_stacks_once_a_close_has_begun(slow):
    """The close goes on at once, and the collection ends with what it may still read."""
    slow.supervisor.tell(Close())
    slow.await_event("supervise.gang.stopping")
    slow.py_spy.tell()
    found = slow.reply.get(timeout=PATIENCE_S)[0]
    assert (found.source, found.notes[1]) == ("kernel", "faulthandler: the gang is being stopped")


def test_a_close_does_not_wait_for_a_collection(slow):
    with Stopwatch() as watch:
        assert slow.close(death_sig=signal.SIGKILL).outcome == "stopped"
    assert watch.seconds < SETTLED_S
    slow.py_spy.tell()
    assert slow.reply.get(timeout=PATIENCE_S) == {}


def test_a_stop_of_the_supervisor_answers_and_ends_py_spy(slow):
    slow.close(death_sig=signal.SIGKILL)
    slow.supervisor.stop(timeout=PATIENCE_S)
    with pytest.raises(SuperviseError, match="fault: the supervisor stopped"):
        slow.reply.get(timeout=PATIENCE_S)


def test_a_crash_of_the_supervisor_answers(slow):
    crash(slow.supervisor, ZeroDivisionError())
    with pytest.raises(SupervisorCrashed, match="a test"):
        slow.reply.get(timeout=PATIENCE_S)


def test_without_a_thread_the_ask_fails_and_the_gang_goes_on(tmp_path, no_threads):
    with faulty(tmp_path, "spawn", [LOCK]) as gang:
        with no_threads(), pytest.raises(OSError, match="no thread for the collection of stacks"):
            stacks(gang)
        assert set(stacks(gang)) == {0}
