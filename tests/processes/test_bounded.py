"""Nothing waits for ever, nothing grows without limit: a console that nobody reads holds up nobody."""

import ast
import contextlib
import fcntl
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import supervise
from supervise.cli.run.console import Console, library_log
from tests.cli.command import environment
from tests.patience import PATIENCE_S
from tests.processes.console import hosted
from tests.processes.gangs import Fifo
from tests.processes.test_logs import each_kind, log_of

MIB = 1 << 20
PACKAGE = Path(supervise.__file__).parent
WAITING = {"get", "join", "wait", "result", "acquire", "communicate", "ask", "stop", "waitpid", "wait4"}
WITHOUT_END = {
    ("_api/tail_log.py", "finished.wait()"): "PyTorch's function, which follows a log until the caller says so",
    ("_torch/redirects.py", "queue_finished_reading_event.wait()"): "PyTorch's function, in the caller's own process",
    ("_gang/probing.py", "os.waitpid(child.pid, 0)"): "on the thread of one try, whose timer kills the command",
    ("_gang/probing.py", "os.waitpid(unreaped.pid, 0)"): "of a process that is killed",
    ("_runtime/wakeup.py", "self._lock.acquire()"): "a lock that was made in the line above",
    ("_gang/runner.py", "self.result()"): "builds the result, and waits for nothing",
    ("_gang/supervisor.py", "self._runner.result()"): "the same",
    ("_hosts/host.py", "gang.ask(say.Wait())"): "on a thread of its own: ranks run as long as they want",
    ("_hosts/host.py", "gang.ask(say.Status())"): "on the same thread: the gang has ended, and its loop replies",
    (
        "_gang/tail.py",
        "self.actor_stopped.wait()",
    ): "a daemon thread: the thread that abandons the Tail stops it next",
    ("_hosts/host.py", "gang.ask(say.Close())"): "on the same thread: the Supervisor's own limits end it",
    ("_hosts/supervisor.py", "self._orders.get()"): "a daemon thread of its own, which gets a last order at the end",
    ("_hosts/host.py", "self.stop(SIGKILL, 0.0)"): "a method that tells the Supervisor, and waits for nothing",
    ("ray/engine.py", "future.result()"): "in the callback of a future that is done",
    ("ray/engine.py", "thread.join()"): "on a thread of its own: calls of Ray, which must end before the connection",
    (
        "agent/elastic_agent.py",
        "self._gang.wait()",
    ): "a gang that stops: its own limits end it, and signals interrupt it",
    ("_process/stacks/gather.py", "thread.join()"): "on a thread: threads that end at their own deadline",
    (
        "_api/run.py",
        "context.wait()",
    ): "ranks run as long as they want, or until the gang's timeout; signals interrupt it",
    ("aio/gang.py", "self._arrived.wait()"): "of asyncio: a task waits, which can be canceled",
    ("multiprocessing/_gang.py", "process.join()"): "the interpreter's exit waits for processes that are no daemons",
    ("multiprocessing/_gang.py", "ends.wait()"): "the same",
}
"""Waits that have no end of their own, and why they may."""


def endless_waits() -> Iterator[tuple[str, str]]:
    """Find the calls in the package that wait and are not given a time."""
    for path in sorted(set(PACKAGE.rglob("*.py")) - set(PACKAGE.glob("_core/*"))):  # the core is pure
        tree = ast.parse(path.read_text())
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if name in WAITING and is_endless(name, call):
                yield str(path.relative_to(PACKAGE)), ast.unparse(call)


def is_endless(name: str, call: ast.Call) -> bool:
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    if name in ("waitpid", "wait4"):
        return "WNOHANG" not in ast.unparse(call)
    if name in ("ask", "stop"):
        asked = isinstance(call.func, ast.Attribute) and (name == "ask" or given or call.args)
        return bool(asked) and given.get("block") != "False" and given.get("timeout", "None") == "None"
    return not call.args and given.get("timeout", "None") == "None" and given.get("blocking") != "False"


@pytest.mark.timeout(4 * PATIENCE_S)  # it parses all files, and machines are busy
def test_no_wait_in_the_package_is_without_an_end():
    """Every `get`, `join`, `wait` and blocking `ask` has a timeout, but for those that are listed with a reason."""
    found = set(endless_waits())
    assert found - WITHOUT_END.keys() == set()
    assert WITHOUT_END.keys() - found == set(), "no longer there: take them off the list"


@pytest.mark.parametrize(
    ("source", "endless"),
    [
        ("reply.get()", True),
        ("reply.get(timeout=None)", True),
        ("reply.get(timeout=left)", False),
        ("ref.ask(message)", True),
        ("ref.ask(message, block=False)", False),
        ("ref.ask(message, timeout=5)", False),
        ("thread.join()", True),
        ("event.wait(2)", False),
        ("lock.acquire(blocking=False)", False),
        ("os.waitpid(pid, 0)", True),
        ("os.wait4(pid, os.WNOHANG)", False),
    ],
)
def test_the_look_for_endless_waits_sees_them(source, endless):
    call = ast.parse(source, mode="eval").body
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Attribute)
    assert is_endless(call.func.attr, call) is endless


FLOOD = f"""
say("ready")
wait_for_word()
line = b"x" * 98
for number in range(24 * {MIB} // 100):
    os.write(1, line + str(number % 10).encode() + b"\\n") if number % 100 == 0 else None
    if number % 100 == 0:
        os.write(1, (line + b".\\n") * 99)
say("written")
wait_for_word()
"""
TOLD = """
from functools import partial
import structlog  # which imports rich where that is installed: more than the bound of memory

def tell(event):
    if event["event"] in ("supervise.process.exited", "supervise.gang.stopping"):
        with open(spec["folder"] + "/ear", "w") as ear:
            ear.write(f"{event['event']} {event.get('local_rank')}\\n")

gang = start(by=partial(supervise.Supervisor.start, event_sink=tell, grace=20.0))
gang.ask(supervise.Start(), timeout=30)
result = gang.ask(supervise.Wait(), timeout=60)
report["outcome"], report["root_cause"] = result.outcome, result.root_cause
gang.stop(timeout=30)
"""


@pytest.mark.timeout(4 * PATIENCE_S)  # a terminal passes on four kilobytes at a time
@each_kind
@pytest.mark.parametrize("console", ["pipe", "pty"])
def test_l5_a_stuck_console_delays_no_death_and_when_it_is_read_again_nothing_is_lost(tmp_path, kind, console):
    """24 MiB in the file and none of it in memory; the stop and the exits come at once; then all is shown."""
    peer = "say(f'pid {os.getpid()}'); signal.pause()"
    settings = {"tee": 1, "log_line_prefixes": {0: "", 1: "", 2: ""}, "console": console, "body": TOLD}
    with hosted(tmp_path, kind, [FLOOD, peer, peer], **settings) as host:
        said = [host.hear() for _ in range(3)]
        pids = sorted(int(line.split()[1]) for line in said if line != "ready")
        before_kib = host.rss_peak_kib()
        host.tell(0)
        assert host.hear() == "written"
        begun = time.monotonic()
        os.kill(pids[0], signal.SIGKILL)
        told = [host.hear() for _ in range(4)]
        took_s = time.monotonic() - begun
        assert sorted(told) == ["supervise.gang.stopping None", *(f"supervise.process.exited {r}" for r in range(3))]
        assert took_s < PATIENCE_S / 2
        assert host.rss_peak_kib() - before_kib < 8 * 1024
        shown = bytearray(host.out.data)
        with contextlib.suppress(OSError):  # a terminal's way to say that it is over
            while chunk := read_some(host.out.source):
                shown += chunk
        host.finish()
    assert host.report["outcome"] == "failed"
    log = log_of(tmp_path).read_bytes()
    assert len(log) > 20 * MIB
    assert shown == log
    assert host.complaints == []


@pytest.fixture
def stuck() -> Iterator[tuple[int, int]]:
    """A pipe that is full and is not read: its two ends."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write, b"x" * 4096)
    os.set_blocking(write, True)
    yield read, write
    os.close(read)
    os.close(write)


PATIENT = """
import sys
from supervise.cli.run import console
console._PATIENCE_S = 15.0
from supervise.cli import main
sys.exit(main())
"""
"""A command that waits so long for a reader of its stderr that a test notices if the stop of a gang waits, too."""


TELLS = """
import signal
from supervise.cli.run.console import Console
flush, install = Console._flush, signal.signal
def tell(text):
    with open(EAR, "w") as ear:
        ear.write(text + "\\n")
def flush_and_tell(console, patience_s):
    if patience_s:
        tell("waits")
    flush(console, patience_s)
def install_and_tell(sig, handler):
    told = callable(handler) and sig == signal.SIGINT
    return install(sig, (lambda *given: (handler(*given), tell("interrupted"))) if told else handler)
Console._flush, signal.signal = flush_and_tell, install_and_tell
"""
"""Source that lets a command say that it begins to wait for a reader, and that a signal has come."""


def test_a_command_whose_stdout_and_stderr_are_stuck_stops_the_others_at_once(tmp_path, stuck):
    """What it shows and what it says itself go nowhere; the run goes on as if they did, and its files tell."""
    ear, told = Fifo(tmp_path / "ear"), Fifo(tmp_path / "told")
    rank = (
        "import os, signal, sys\n"
        "print('x' * 100_000, flush=True)\n"
        "print('y' * 100_000, file=sys.stderr, flush=True)\n"
        f"open({ear.path!r}, 'w').write(os.environ['RANK'] + f' {{os.getpid()}}\\n')\n"
        "signal.pause()\n"
    )
    logs = tmp_path / "logs"
    words = ["run", "-n", "3", "--log-dir", str(logs), sys.executable, "-c", rank]
    process = subprocess.Popen(
        [sys.executable, "-c", TELLS.replace("EAR", repr(told.path)) + PATIENT, *words],
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        stdout=stuck[1],
        stderr=stuck[1],
    )
    try:
        pids = dict(tuple(map(int, ear.hear().split())) for _ in range(3))
        others = [os.pidfd_open(pids[r]) for r in (0, 2)]
        begun = time.monotonic()
        os.kill(pids[1], signal.SIGKILL)
        gone = [bool(select.select([fd], [], [], 20)[0]) for fd in others]
        took_s = time.monotonic() - begun
        for fd in others:
            os.close(fd)
        assert gone == [True, True]
        assert took_s < PATIENCE_S / 2
        [file] = logs.glob("*/events.jsonl")
        events = [json.loads(line) for line in file.read_text().splitlines()]
        [stop] = [e for e in events if e["event"] == "supervise.gang.stopping"]
        [first] = [e for e in events if e["event"] == "supervise.process.exited" and e["local_rank"] == 1]
        assert (stop["reason"], first["exit_signal"]) == ("peer_failed", "SIGKILL")
        assert abs(stop["monotonic_ns"] - first["monotonic_ns"]) < 12e9
        process.send_signal(signal.SIGINT)  # who ends it need not read it first
        while told.hear() != "interrupted":
            pass
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)  # a signal that comes sooner may be the same one once more
        process.send_signal(signal.SIGINT)
        assert process.wait(40) != 0
    finally:
        process.kill()
        process.wait()
        ear.close()
        told.close()


def test_a_second_signal_counts_although_the_command_waits_for_a_reader_of_its_stderr_meanwhile(tmp_path, stuck):
    """Both are taken when the wait is over, and the second is known by the time at which it came."""
    ear = Fifo(tmp_path / "ear")
    rank = f"trap '' INT; echo deaf > {ear.path}; while :; do sleep 1000; done"
    words = ["run", "-v", "--shutdown-timeout", "1000", "--log-dir", str(tmp_path / "logs"), "sh", "-c", rank]
    process = subprocess.Popen(
        [sys.executable, "-c", TELLS.replace("EAR", repr(ear.path)) + PATIENT.replace("15.0", "5.0"), *words],
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        stderr=stuck[1],
    )
    try:
        assert sorted(ear.hear() for _ in range(2)) == ["deaf", "waits"]
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            assert ear.hear() == "interrupted"
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)  # a signal that comes sooner may be the same one once more
        assert process.wait(40) != 0
    finally:
        process.kill()
        process.wait()
        ear.close()
    [file] = tmp_path.glob("logs/*/events.jsonl")
    events = [json.loads(line) for line in file.read_text().splitlines()]
    assert [e["signal"] for e in events if e["event"] == "supervise.process.signaled"][-1] == "SIGKILL"


def test_what_the_library_logs_in_the_gangs_thread_is_never_waited_for_there(stuck, patient_console):
    """With a stderr that nobody reads; it is shown by the main thread, later, and in order."""
    read, write = stuck
    console = Console("never")
    console._fd = write
    woken = []
    console.on_left = lambda: woken.append(threading.current_thread().name)
    logged = threading.Event()

    def log_much() -> None:
        for number in range(3000):
            logging.getLogger("supervise").warning("failure %d", number)
        logged.set()

    with library_log(console):
        thread = threading.Thread(target=log_much, name="the gang's")
        thread.start()
        thread.join(PATIENCE_S / 2)
        assert logged.is_set(), "it waits: the patience of one write alone is longer"
        assert set(woken) == {"the gang's"}
        reader = threading.Thread(target=lambda: shown.append(read_until(read, b"failure 2999\n")), daemon=True)
        shown: list[bytes] = []
        reader.start()
        console.show_left()
        console.finish()
        reader.join(30)
    lines = shown[0].lstrip(b"x").decode().splitlines()
    assert lines == [f"supervise: WARNING: failure {number}" for number in range(2000, 3000)]


def read_some(fd: int) -> bytes:
    assert select.select([fd], [], [], 20)[0], "nothing comes any more"
    return os.read(fd, MIB)


def read_until(fd: int, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        data += read_some(fd)
    return data


def test_a_stderr_that_nobody_reads_costs_little_memory_and_what_was_lost_is_said(stuck, impatient_console):
    """What is kept for it is bounded."""
    read, write = stuck
    console = Console("never")
    console._fd = write
    for number in range(10_000):
        console.note(f"{number} {'z' * 100}")
    assert len(console._pending) < 300_000
    done = SimpleNamespace(data=b"")
    reader = threading.Thread(target=lambda: setattr(done, "data", read_until(read, b"the last\n")), daemon=True)
    reader.start()
    console.finish()
    console.note("the last")
    console.finish()
    reader.join(30)
    lines = done.data.lstrip(b"x").decode().splitlines()
    kept = len(lines) - 2
    assert lines[-2] == f"supervise: {10_000 - kept} lines were lost here: stderr was blocked"
    assert [line.split()[1] for line in lines[:kept]] == [str(number) for number in range(kept)]
