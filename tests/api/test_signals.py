"""Rows G1 to G5 and G8: signals to the host, with real signals and real processes."""

import ast
import gc
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pykka
import pytest
from _pytest.mark.structures import ParameterSet

from supervise import DefaultLogsSpecs, SignalException, Status, Supervisor, start_processes
from tests.patience import PATIENCE_S
from tests.processes.gangs import Fifo

HERE = Path(__file__).parent
NO_FILES = DefaultLogsSpecs(os.devnull)
HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


@pytest.fixture
def ready(tmp_path: Path) -> str:
    """A FIFO into which workers write a line when they are ready."""
    path = tmp_path / "ready"
    os.mkfifo(path)
    return str(path)


def await_ready(fifo: str, count: int) -> None:
    """Wait for `count` lines."""
    with os.fdopen(os.open(fifo, os.O_RDWR), encoding="ascii") as file:  # a writer of our own: no end between two
        for _ in range(count):
            assert file.readline()


def say_ready(fifo: str) -> None:
    with Path(fifo).open("a", encoding="ascii") as file:
        file.write("ready\n")


def patient(fifo: str) -> None:
    """A worker that says which signal ends it."""
    signal.signal(signal.SIGINT, lambda *_: sys.exit(42))
    say_ready(fifo)
    while True:
        signal.sigtimedwait([], 0.05)  # a signal right before a pause() would be handled behind it
        signal.pthread_sigmask(signal.SIG_BLOCK, ())  # has handlers called, also in a forked process of Python 3.13


def deaf(fifo: str) -> None:
    for sig in HANDLED:
        signal.signal(sig, signal.SIG_IGN)
    say_ready(fifo)
    while True:
        signal.pause()


SH_DEAF = 'trap "" TERM INT HUP QUIT; echo ready > "$1"; while :; do read -r _ < "$1.never" || :; done'


@pytest.mark.parametrize("sig", HANDLED)
@pytest.mark.parametrize("kind", ["spawn", "forkserver", "binary"])
def test_g1_a_signal_during_wait_is_raised_and_close_forwards_it(kind: str, sig: signal.Signals, ready: str) -> None:
    """SignalException with sigval in the main thread; close(e.sigval) sends that very signal."""
    if kind == "binary":
        args = ("-c", 'echo ready > "$1"; exec sleep 60', "sh", ready)
        context = start_processes("g1", "sh", {0: args, 1: args}, logs_specs=NO_FILES)
    else:
        context = start_processes("g1", patient, {0: (ready,), 1: (ready,)}, logs_specs=NO_FILES, start_method=kind)
    await_ready(ready, 2)

    def wait() -> None:
        threading.Timer(0.05, os.kill, (os.getpid(), sig)).start()  # may expire before `wait` on a busy machine
        context.wait()

    with pytest.raises(SignalException) as caught:
        wait()
    assert caught.value.sigval == sig
    context.close(caught.value.sigval)
    result = context.wait()
    assert result is not None
    assert (result.outcome, sorted(result.failures)) == ("stopped", [0, 1])
    expected = 42 if kind != "binary" and sig == signal.SIGINT else -sig
    assert [f.exitcode for f in result.failures.values()] == [expected] * 2
    assert not any(psutil.pid_exists(pid) for pid in context.pids().values())


@pytest.mark.parametrize("kind", ["spawn", "binary"])
def test_g1_after_the_signal_comes_the_grace_and_then_sigkill(kind: str, ready: str) -> None:
    """A gang that ignores the forwarded signal is killed at the timeout of the close."""
    if kind == "binary":
        os.mkfifo(ready + ".never")
        context = start_processes("g1", "sh", {0: ("-c", SH_DEAF, "sh", ready)}, logs_specs=NO_FILES)
    else:
        context = start_processes("g1", deaf, {0: (ready,)}, logs_specs=NO_FILES)
    await_ready(ready, 1)
    os.kill(os.getpid(), signal.SIGCONT)  # harmless, and not ours
    begun = time.monotonic()
    context.close(signal.SIGINT, timeout=0.5)
    assert 0.4 < time.monotonic() - begun < 20
    result = context.wait()
    assert result is not None
    assert result.failures[0].exitcode == -signal.SIGKILL


@pytest.mark.parametrize("kind", ["spawn", "binary"])
def test_g2_a_second_signal_during_close_kills_now(kind: str, ready: str) -> None:
    """Five signals in short order: the first is raised, those during close mean kill now, reaping finishes."""
    if kind == "binary":
        os.mkfifo(ready + ".never")
        args = ("-c", SH_DEAF, "sh", ready)
        context = start_processes("g2", "sh", {0: args, 1: args}, logs_specs=NO_FILES)
    else:
        context = start_processes("g2", deaf, {0: (ready,), 1: (ready,)}, logs_specs=NO_FILES)
    await_ready(ready, 2)
    with pytest.raises(SignalException):
        signal.raise_signal(signal.SIGTERM)

    [supervisor] = pykka.ActorRegistry.get_by_class(Supervisor)

    def more() -> None:
        while supervisor.ask(Status()).phase != "stopping":  # earlier, the signals would be raised
            assert time.monotonic() < begun + PATIENCE_S
        select.select([], [], [], 0.1)  # one within 50 ms of the first would not count
        for _ in range(4):
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=more)
    begun = time.monotonic()
    thread.start()
    context.close(signal.SIGTERM, timeout=600)
    thread.join()
    assert time.monotonic() - begun < PATIENCE_S
    result = context.wait()
    assert result is not None
    assert {f.exitcode for f in result.failures.values()} == {-signal.SIGKILL}


SAVES = """
trap 'trap : TERM INT HUP; echo saving > "$1"; sleep 1.2 & wait; wait; wait; echo saved > "$1"; exit' TERM INT HUP
echo ready > "$1"
while :; do sleep 0.05; done
"""
HOSTS = {
    "run": "run('sh', 1, args)",
    "wait": """
context = start_processes("saves", "sh", {0: args})
try:
    context.wait()
except SignalException as error:
    context.close(error.sigval)
""",
    "own code": """
with start_processes("saves", "sh", {0: args}) as context:
    while True:
        signal.sigtimedwait([], 0.05)
""",
    "close": """
context = start_processes("saves", "sh", {0: args})
sys.stdin.readline()
context.close()
""",
}


@pytest.mark.parametrize(
    ("first", "second", "after_s"),
    [
        (signal.SIGTERM, signal.SIGHUP, 0.0),
        (signal.SIGTERM, signal.SIGHUP, 0.5),
        (signal.SIGHUP, signal.SIGHUP, 0.5),
        (signal.SIGTERM, signal.SIGINT, 0.0),
    ],
)
@pytest.mark.parametrize("host", HOSTS)
def test_t6_a_signal_that_is_not_the_second_one_leaves_the_grace(
    tmp_path: Path, host: str, first: signal.Signals, second: signal.Signals, after_s: float
) -> None:
    """systemd sends SIGTERM and SIGHUP, a terminal SIGHUP twice: the rank saves, whatever the program is doing."""
    ear = Fifo(tmp_path / "ear")
    program = (
        "import signal, sys\nfrom supervise import SignalException, _second_signal, run, start_processes\n"
        "_second_signal._OTHER_S = 60.0\n"  # a machine may stand still for a second between the two
        f"args = ('-c', {SAVES!r}, 'sh', {ear.path!r})\n{HOSTS[host]}"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "SUPERVISE_GRACE": "1000", "PYTHONPATH": str(HERE.parents[1])},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with process:
        try:
            assert ear.hear() == "ready"
            if host == "close":
                assert process.stdin is not None
                process.stdin.close()
                assert ear.hear() == "saving"
            process.send_signal(first)
            select.select([], [], [], after_s)
            process.send_signal(second)
            if host != "close":
                assert ear.hear() == "saving"
            assert ear.hear() == "saved"
            process.wait(PATIENCE_S)
        finally:
            process.kill()
            ear.close()


def run_moments(what: str, count: int) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, str(HERE / "moments.py"), what, str(count)],
        capture_output=True,
        text=True,
        timeout=500,
        cwd=HERE.parents[1],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    counted: dict[str, int] = ast.literal_eval(done.stdout)
    return counted


def often(*counts: tuple[str, int]) -> list[ParameterSet]:
    """Return cases with a twentieth of these counts, and with all of them as stress."""
    few = [pytest.param(what, count // 20) for what, count in counts]
    return few + [pytest.param(what, count, marks=pytest.mark.stress) for what, count in counts]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("what", "count"), often(("start", 400)))
def test_g2_a_signal_at_random_moments_of_start_leaves_nobody(what: str, count: int) -> None:
    """Each is raised exactly once, out of the start or after it, and no process is left."""
    assert run_moments(what, count) == {"seen": count, "count": count}


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("what", "count"), often(("wait", 15_000), ("close", 400), ("foreign", 5_000), ("foreign-start", 400))
)
def test_g8_a_raising_handler_at_random_moments_wedges_nothing(what: str, count: int) -> None:
    """Every signal is seen once, and the gang can be waited for and closed afterwards."""
    assert run_moments(what, count) == {"seen": count, "count": count}


@pytest.mark.stress
@pytest.mark.timeout(600)
def test_g8_1000_interrupted_starts_of_spawn_leave_nothing() -> None:
    """One in 400 once left an actor without ranks."""
    assert run_moments("spawn", 1000) == {"seen": 1000, "count": 1000}


def test_g3_an_ignored_sighup_stays_ignored() -> None:
    """As under nohup: by the host during the gang, and in the worker."""
    program = (
        "import os, signal, sys\n"
        "from supervise import DefaultLogsSpecs, start_processes\n"
        "args = {0: ('SigIgn', '/proc/self/status')}\n"
        "c = start_processes('g3', 'grep', args, logs_specs=DefaultLogsSpecs(os.devnull))\n"
        "os.kill(os.getpid(), signal.SIGHUP)\n"
        "assert c.wait().outcome == 'succeeded'\n"
        "assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN\n"
    )
    done = subprocess.run(
        ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert int(done.stdout.split()[-1], 16) & (1 << (signal.SIGHUP - 1))


def test_g4_start_outside_the_main_thread_leaves_handlers_alone() -> None:
    """It works, nothing is raised, and one warning a process says what it means."""
    program = """
import logging, os, signal, threading
from supervise import DefaultLogsSpecs, run, start_processes
logging.basicConfig()
def other():
    for _ in range(2):
        context = start_processes("g4", "sleep", {0: "0.2"}, logs_specs=DefaultLogsSpecs(os.devnull))
        during.append([signal.getsignal(sig) for sig in signal.valid_signals()])
        assert context.wait().outcome == "succeeded"
        run("true", 1)
before, during = [signal.getsignal(sig) for sig in signal.valid_signals()], []
thread = threading.Thread(target=other)
thread.start()
thread.join()
assert during == [before] * 2
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
    )
    assert done.stderr.count("signal handlers were not installed") == 1
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_g5_handlers_are_put_back_with_the_last_gang(order: tuple[int, int]) -> None:
    """Two gangs, closed in either order: handled until both are closed, then exactly as before."""
    before = {sig: signal.getsignal(sig) for sig in signal.valid_signals()}
    gangs = [start_processes(f"g5{i}", "sleep", {0: "60"}, logs_specs=NO_FILES) for i in range(2)]
    ours = signal.getsignal(signal.SIGTERM)
    assert ours != before[signal.SIGTERM]
    gangs[order[0]].close()
    assert signal.getsignal(signal.SIGTERM) == ours
    gangs[order[1]].close()
    assert {sig: signal.getsignal(sig) for sig in signal.valid_signals()} == before


def test_g5_a_close_in_another_thread_hands_signals_to_the_old_handler() -> None:
    """Until the main thread next calls us, the handler that is still installed passes on."""
    got: list[int] = []
    old = signal.signal(signal.SIGTERM, lambda signum, _frame: got.append(signum))
    try:
        mine = signal.getsignal(signal.SIGTERM)
        context = start_processes("g5", "sleep", {0: "60"}, logs_specs=NO_FILES)
        thread = threading.Thread(target=context.close)
        thread.start()
        thread.join(PATIENCE_S)
        signal.raise_signal(signal.SIGTERM)
        assert got == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, old)


def test_g5_a_handler_that_the_user_sets_meanwhile_stays() -> None:
    """We put back only what is still ours."""
    old = signal.getsignal(signal.SIGTERM)
    context = start_processes("g5", "sleep", {0: "60"}, logs_specs=NO_FILES)
    theirs = signal.default_int_handler
    signal.signal(signal.SIGTERM, theirs)
    try:
        context.close()
        assert signal.getsignal(signal.SIGTERM) is theirs
    finally:
        signal.signal(signal.SIGTERM, old)


def test_bad_names_of_signals_are_a_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """TORCHELASTIC_SIGNALS_TO_HANDLE chooses; what is no signal is said and left out."""
    monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM, SIGNOPE")
    before = signal.getsignal(signal.SIGINT)
    context = start_processes("names", "sleep", {0: "60"}, logs_specs=NO_FILES)
    assert signal.getsignal(signal.SIGINT) is before
    context.close()
    assert any("SIGNOPE" in record.message for record in caplog.records)


def test_a_context_that_nobody_holds_closes_its_gang() -> None:
    """What a signal between the return and the assignment would otherwise leave behind. The handlers are put back."""
    before = signal.getsignal(signal.SIGTERM)
    context = start_processes("lost", "sleep", {0: "60"}, logs_specs=NO_FILES)
    process = psutil.Process(context.pids()[0])
    del context
    _gone, alive = psutil.wait_procs([process], timeout=PATIENCE_S)
    assert not alive
    gc.collect()
    assert signal.getsignal(signal.SIGTERM) == before
