"""What signals to the command do to the ranks."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import pytest

from supervise.cli.options.options import parse
from supervise.cli.run.console import Console
from supervise.cli.run.progress import Progress
from tests.cli.command import ROOT, SUPERVISE, Command, Started, environment, until_another_signal
from tests.patience import PATIENCE_S

POLITE = """
import os, signal, sys
def leave(number, frame):
    print("got", signal.Signals(number).name, flush=True)
    sys.exit(0)
for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(sig, leave)
print("ready", flush=True)
while True:
    signal.sigtimedwait([], 0.05)  # a signal right before a pause() would be handled behind it
"""
STUBBORN = """
import signal
for sig in (signal.SIGINT, signal.SIGTERM):
    signal.signal(sig, signal.SIG_IGN)
print("ready", flush=True)
while True:
    signal.pause()
"""
SLOW = """
import signal, sys
def save(number, frame):
    signal.sigtimedwait([], 0.3)
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    signal.sigtimedwait([], 0.05)  # a signal right before a pause() would be handled behind it
"""
USERS = """
import signal
def told(number, frame):
    print(signal.Signals(number).name, flush=True)
signal.signal(signal.SIGUSR1, told)
signal.signal(signal.SIGUSR2, told)
print("ready", flush=True)
while True:
    signal.sigtimedwait([], 0.05)  # a signal right before a pause() would be handled behind it
"""
READY = ["[default0]:ready\n", "[default1]:ready\n"]


def python(program: str) -> tuple[str, ...]:
    return sys.executable, "-c", program


@pytest.mark.parametrize(
    ("sig", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)],
)
def test_the_first_signal_is_passed_on_and_waited_for(supervise: Command, sig: signal.Signals, code: int):
    """The ranks get that very signal; 128 + signal says that the user stopped the run."""
    with supervise.started("-n", "2", *python(POLITE)) as run:
        assert run.hear(2) == READY
        run.signal(sig)
        returncode, out, err = run.end()
    assert returncode == code
    assert sorted(out.splitlines()) == [f"[default{rank}]:got {sig.name}" for rank in range(2)]
    assert f"ranks 0-1: exit code 0 after {sig.name} from supervise" in err
    assert "Traceback" not in err


BLOCKED = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("sig", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)],
)
def test_t7_a_signal_that_the_starter_has_blocked_stops_the_run(supervise: Command, sig: signal.Signals, code: int):
    """All signals are blocked, as by a starter that waits for them with sigwait; user signals are passed on as well."""
    with supervise.started("-n", "2", *python(USERS), before=python(BLOCKED)) as run:
        assert run.hear(2) == READY
        run.signal(signal.SIGUSR1)
        assert run.hear(2) == [f"[default{rank}]:SIGUSR1\n" for rank in range(2)]
        run.signal(sig)
        assert run.end()[0] == code


@pytest.mark.parametrize("words", [("wait",), ("logs", "-f"), ("top", "--json")])
def test_t7_a_signal_that_the_starter_has_blocked_ends_each_command(supervise: Command, words: tuple[str, ...]):
    with supervise.started("-n", "1", *python(USERS)) as run:
        assert run.hear() == READY[:1]
        command = subprocess.Popen(
            [sys.executable, "-c", BLOCKED, *SUPERVISE, *words],
            env=environment(supervise.tmp_path),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with command:
            assert command.stdout is not None
            assert command.stderr is not None
            (command.stderr if words == ("wait",) else command.stdout).readline()  # it has begun
            command.send_signal(signal.SIGINT)
            assert command.wait(PATIENCE_S) == 130


def test_the_second_signal_kills_now(supervise: Command):
    """A rank that ignores the first signal does not live through its grace."""
    with supervise.started("-n", "2", "--shutdown-timeout", "1000", *python(STUBBORN)) as run:
        assert run.hear(2) == READY
        run.signal(signal.SIGINT)
        run.hear_error("a second signal kills now")
        until_another_signal()
        run.signal(signal.SIGINT)
        returncode, _, err = run.end()
    assert returncode == 130
    assert "SIGINT again: killing 2 ranks now" in err
    assert re.search(r"  ranks? 0.*: killed by SIGKILL \(sent by supervise, [\d.]+ m?s after SIGINT\)", err)


@pytest.mark.parametrize(
    ("grace", "after_s", "told"),
    [
        ("30", 0.9, ""),
        ("30", 1.1, "SIGTERM: stopping 1 rank, SIGKILL in 29 s; a second signal kills now\n"),
        ("1", 1.1, "SIGTERM: stopping 1 rank, SIGKILL sent\n"),
    ],
)
def test_a_stop_is_announced_after_a_second_where_nobody_watches(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], grace: str, after_s: float, told: str
):
    """A stop that takes no time is told once: at its end."""
    now_s = [1000.0]
    monkeypatch.setattr("supervise.cli.run.progress.time.monotonic", lambda: now_s[0])
    progress = Progress(parse(["--shutdown-timeout", grace, "true"]), Console("never"))
    progress.user_stops(signal.SIGTERM)
    now_s[0] += after_s
    for _ in range(2):
        progress.announce()
    assert capfd.readouterr().err.removeprefix("supervise: ") == told


def twice(run: Started, first: signal.Signals, second: signal.Signals, within_s: float) -> bool:
    """Send two signals; return whether this process was not kept from it: on a busy machine the second comes later."""
    begun_s = time.monotonic()
    run.signal(first)
    run.signal(second)
    return time.monotonic() - begun_s < within_s


def test_a_signal_that_comes_twice_at_once_is_one(supervise: Command):
    """`timeout` signals its child, and then its own process group: the ranks have their grace all the same."""
    at_once = False
    while not at_once:
        with supervise.started("-n", "2", "--shutdown-timeout", "1000", *python(SLOW)) as run:
            assert run.hear(2) == READY
            at_once = twice(run, signal.SIGTERM, signal.SIGTERM, 0.01)
            returncode, out, err = run.end()
        assert returncode == 143
    assert sorted(out.splitlines()) == [f"[default{rank}]:saved" for rank in range(2)]
    assert "again" not in err


def test_a_second_signal_of_another_kind_is_named_as_what_it_is(supervise: Command):
    """After more than a second it kills as well; the line names both signals, and neither came twice."""
    with supervise.started("--shutdown-timeout", "1000", *python(STUBBORN)) as run:
        run.hear()
        run.signal(signal.SIGTERM)
        run.hear_error("a second signal kills now")
        select.select([], [], [], 1.1)
        run.signal(signal.SIGINT)
        returncode, _, err = run.end()
    assert returncode == 143
    assert "SIGINT after SIGTERM: killing 1 rank now" in err
    assert "again" not in err


SAVES = """
import signal, sys
def save(number, frame):
    for sig in handled:
        signal.signal(sig, signal.SIG_IGN)
    print("saving", flush=True)
    signal.sigtimedwait([], 2.0)
    print("saved", flush=True)
    sys.exit(0)
handled = (signal.SIGTERM, signal.SIGHUP)
for sig in handled:
    signal.signal(sig, save)
print("ready", flush=True)
while True:
    signal.sigtimedwait([], 0.05)
"""


@pytest.mark.parametrize(
    ("first", "second", "after_s"),
    [
        *((signal.SIGTERM, signal.SIGHUP, after_s) for after_s in (0.0, 0.3, 0.9, 1.2)),
        *((signal.SIGHUP, signal.SIGHUP, after_s) for after_s in (0.0, 0.3, 1.2)),
    ],
)
def test_t6_sighup_is_never_the_second_signal(
    supervise: Command, first: signal.Signals, second: signal.Signals, after_s: float
):
    """The ranks save."""
    with supervise.started("--no-prefix", "--shutdown-timeout", "1000", *python(SAVES)) as run:
        assert run.hear() == ["ready\n"]
        run.signal(first)
        select.select([], [], [], after_s)
        run.signal(second)
        code, out, err = run.end()
    assert code in (128 + first, 128 + second)  # of two that are pending, the kernel chooses the first
    assert out == "saving\nsaved\n"
    assert "killing" not in err


@pytest.mark.parametrize(
    ("first", "second"), [(signal.SIGTERM, signal.SIGINT), (signal.SIGHUP, signal.SIGTERM)], ids=lambda sig: sig.name
)
def test_t6_a_signal_of_another_kind_is_not_the_second_one_within_a_second(
    supervise: Command, first: signal.Signals, second: signal.Signals
):
    """The ranks save."""
    at_once = False
    while not at_once:
        with supervise.started("--no-prefix", "--shutdown-timeout", "1000", *python(SAVES)) as run:
            assert run.hear() == ["ready\n"]
            at_once = twice(run, first, second, 0.3)
            code, out, err = run.end()
        assert code in (128 + first, 128 + second)  # of two that are pending, the kernel chooses the first
    assert out == "saving\nsaved\n"
    assert "killing" not in err


LEADER = """
import fcntl, os, signal, subprocess, sys, termios, time
terminal = os.open(sys.argv[1], os.O_RDWR)  # the first one of this session, so that of supervise
def hang_up(number, frame):
    os.kill(-shell_job.pid, signal.SIGHUP)
    signal.sigtimedwait([], 0.3)
    os._exit(0)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
with open("out", "w") as out:
    shell_job = subprocess.Popen(sys.argv[2:], stdin=terminal, stdout=out, stderr=terminal, process_group=0)
os.tcsetpgrp(terminal, shell_job.pid)
signal.signal(signal.SIGHUP, hang_up)
while True:
    signal.sigtimedwait([], 0.05)
"""


def test_t6_a_terminal_closes_and_its_shell_exits_later(supervise: Command):
    """The shell sends SIGHUP, and 300 ms later the kernel sends another one: the rank saves."""
    master, slave = pty.openpty()
    words = ("--no-prefix", "--shutdown-timeout", "1000", *python(SAVES))
    leader = subprocess.Popen(
        [*python(LEADER), os.ttyname(slave), *SUPERVISE, "run", *words],
        env=environment(supervise.tmp_path),
        cwd=supervise.tmp_path,
        start_new_session=True,
    )
    os.close(slave)
    out, log = supervise.tmp_path / "out", ""
    end_s = time.monotonic() + PATIENCE_S
    while "ready" not in log:
        assert time.monotonic() < end_s
        log = out.read_text() if out.exists() else ""
        select.select([], [], [], 0.05)
    os.close(master)
    assert leader.wait(PATIENCE_S) == 0
    while not (results := list(supervise.tmp_path.glob("runs/*_*/result.json"))):
        assert time.monotonic() < end_s
        select.select([], [], [], 0.05)
    assert out.read_text() == "ready\nsaving\nsaved\n"
    assert json.loads(results[0].read_text())["exit_code"] == 128 + signal.SIGHUP


def test_after_the_grace_ranks_are_killed(supervise: Command):
    """--shutdown-timeout is the time from the polite signal to SIGKILL."""
    with supervise.started("--shutdown-timeout", "0.2", *python(STUBBORN)) as run:
        run.hear()
        run.signal(signal.SIGTERM)
        returncode, _, err = run.end()
    assert returncode == 143
    after = re.search(r"rank 0: killed by SIGKILL \(sent by supervise, ([\d.]+) (m?s) after SIGTERM\)", err)
    assert after is not None
    assert float(after[1]) >= (200 if after[2] == "ms" else 1)


def test_a_slow_stop_after_a_failure_is_announced_once(supervise: Command):
    """In a pipe one line says what is being waited for, before the end is told."""
    program = STUBBORN.replace("import signal", "import os, signal", 1).replace(
        'print("ready"',
        'if os.environ["RANK"] == "1":\n    open("armed").read()\n    raise SystemExit(3)\n'
        'open("armed", "w").close()\nprint(os.getpid()',
    )
    os.mkfifo(supervise.tmp_path / "armed")  # rank 1 fails when rank 0 no longer heeds SIGTERM
    with supervise.started("-n", "2", "--no-prefix", "--shutdown-timeout", "1000", *python(program)) as run:
        told = run.hear_error("rank 1 failed (exit code 3): stopping 1 rank, SIGKILL in ")
        assert re.search(r" in 9\d\d s\n", told)
        os.kill(int(run.hear()[0]), signal.SIGKILL)
        returncode, _, err = run.end()
    assert returncode == 3
    assert "stopping" not in err


@pytest.mark.parametrize("sig", [signal.SIGUSR1, signal.SIGUSR2])
def test_user_signals_are_passed_on(supervise: Command, sig: signal.Signals):
    """Every rank gets them, and the run goes on."""
    with supervise.started("-n", "2", *python(USERS)) as run:
        assert run.hear(2) == READY
        run.signal(sig)
        assert run.hear(2) == [f"[default{rank}]:{sig.name}\n" for rank in range(2)]
        run.signal(signal.SIGTERM)
        assert run.end()[0] == 143


@pytest.mark.parametrize("sig", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_rank_that_dies_of_what_we_passed_on_is_said_to(supervise: Command, sig: signal.Signals):
    """A program without a handler; the signal came through us, which explains the death."""
    with supervise.started("--", "sh", "-c", "echo ready; exec sleep 1000") as run:
        run.hear()
        run.signal(sig)
        returncode, _, err = run.end()
    assert returncode == 128 + sig
    assert f"rank 0 failed: {sig.name} (passed on by supervise) (host " in err


def test_a_signal_that_we_were_started_with_ignored_stays_ignored(supervise: Command):
    """nohup: the terminal's end ends neither us nor the ranks."""
    hup = "import os, signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, flush=True); signal.pause()"
    with supervise.started("--no-prefix", *python(hup), before=("sh", "-c", 'trap "" HUP; exec "$@"', "sh")) as run:
        assert run.hear() == ["True\n"]
        run.signal(signal.SIGHUP)
        run.signal(signal.SIGTERM)
        returncode, _, err = run.end()
    assert returncode == 143
    assert "SIGHUP" not in err


def test_the_run_survives_us_not(supervise: Command):
    """Killed ourselves, we leave no rank behind (the fixture looks)."""
    with supervise.started("-n", "2", *python(STUBBORN)) as run:
        assert run.hear(2) == READY
        run.signal(signal.SIGKILL)
        assert run.end()[0] == -signal.SIGKILL


def test_a_slow_reader_of_the_output_is_not_called_something_that_was_left_behind(supervise: Command):
    """All ranks have ended, and nothing of them is there but their output."""
    with supervise.started("-t", "3", "--", "sh", "-c", "seq 100000; exit 3") as run:
        assert run.hear_error("supervise:").endswith("showing the rest of the output\n")
        code, out, err = run.end()
    assert code == 3
    assert out.endswith("[default0]:100000\n")
    assert "left behind" not in err


def test_what_finished_ranks_left_behind_is_ended(supervise: Command):
    """Success waits for the end of it, and can be hurried."""
    leave = f"""
import subprocess, sys
left = subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], stdout=subprocess.PIPE)
print(left.stdout.readline(), flush=True)
left.returncode = 0
"""
    with supervise.started("--shutdown-timeout", "1000", *python(leave)) as run:
        assert run.hear() == ["[default0]:b'ready\\n'\n"]
        run.hear_error("supervise: stopping processes that the ranks left behind, SIGKILL in ")
        run.signal(signal.SIGINT)
        run.hear_error("supervise: SIGINT: stopping processes that the ranks left behind")
        run.signal(signal.SIGINT)
        assert run.end()[0] == 0


@pytest.mark.parametrize("words", [("run", "-n", "2", "sleep", "1000"), ("ls",), ("run", "--help")])
def test_ctrl_c_at_the_start_shows_no_traceback(supervise: Command, words: tuple[str, ...]):
    """The command is interrupted at each of its imports of supervise, and before a rank runs."""
    wait = (
        "import os, signal, sys\n"
        "class Interrupt:\n    count = 0\n    def find_spec(self, name, path=None, target=None):\n"
        "        if name.startswith('supervise.'):\n            Interrupt.count += 1\n"
        "            if Interrupt.count == int(os.environ['NUMBER']):\n"
        "                os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
    )
    (supervise.tmp_path / "sitecustomize.py").write_text(wait)
    for number in range(2, 30, 3):
        path = f"{supervise.tmp_path}{os.pathsep}{ROOT}"
        done = supervise.supervise(*words, NUMBER=str(number), PYTHONPATH=path)
        assert "Traceback" not in done.stderr
        assert done.returncode in (130, 0) if words[0] == "ls" or "--help" in words else done.returncode == 130


POOL = """
import multiprocessing, signal, sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import shared_memory
def square(number):
    return number * number
if __name__ == "__main__":
    told = []
    for sig in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(sig, lambda number, frame: told.append(number))
    memory = shared_memory.SharedMemory(create=True, size=10)  # starts the resource tracker
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(sys.argv[1])) as pool:
        list(pool.map(square, range(4)))
        print("ready", flush=True)
        while not told:
            signal.sigtimedwait([], 0.05)
        print("saved", sum(pool.map(square, range(4))), flush=True)
    memory.close()
    memory.unlink()
"""


@pytest.mark.parametrize("sig", [signal.SIGUSR1, signal.SIGUSR2])
@pytest.mark.parametrize("way", ["passed on", "by command"])
@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_t4_a_user_signal_leaves_the_helpers_of_a_rank_alive(
    supervise: Command, method: str, way: str, sig: signal.Signals
):
    """Pool workers, fork server and resource tracker do not handle it: only the rank itself gets it."""
    program = supervise.tmp_path / "pool.py"
    program.write_text(POOL)
    with supervise.started("--no-prefix", "--run-id", "job", "pool.py", method) as run:
        assert run.hear() == ["ready\n"]
        if way == "passed on":
            run.signal(sig)
        else:
            assert supervise.supervise("signal", "job", sig.name).returncode == 0
        code, out, err = run.end()
    assert (code, out) == (0, "saved 14\n"), err


PARENT = """
import signal, subprocess, sys
child = subprocess.Popen(["sleep", "1000"])
told = []
signal.signal(signal.SIGUSR1, lambda number, frame: told.append(number))
print("ready", flush=True)
while not told:
    signal.sigtimedwait([], 0.05)
try:
    print("child", child.wait(float(sys.argv[1])), flush=True)
except subprocess.TimeoutExpired:
    print("child lives", flush=True)
    child.kill()
    child.wait()
"""


@pytest.mark.parametrize(
    ("more", "patience_s", "child"), [([], "0.5", "lives"), (["--group"], str(PATIENCE_S), str(-signal.SIGUSR1))]
)
def test_t4_a_signal_reaches_the_group_of_a_rank_on_request(
    supervise: Command, more: list[str], patience_s: str, child: str
):
    """A child without a handler ends only with --group; the event says which it was."""
    with supervise.started("--no-prefix", "--run-id", "job", *python(PARENT), patience_s) as run:
        assert run.hear() == ["ready\n"]
        assert supervise.supervise("signal", "job", "USR1", *more).returncode == 0
        assert run.end()[:2] == (0, f"child {child}\n")
    events = map(json.loads, (supervise.directory() / "events.jsonl").read_text().splitlines())
    signaled = [event["target"] for event in events if event["event"] == "supervise.process.signaled"]
    assert signaled == ["group" if more else "process"]


DRAINS = """
import os, signal, subprocess, sys
worker = subprocess.Popen(["sh", "-c", "read word < task"])
def drain(number, frame):
    print("draining", flush=True)
    print("worker:", worker.wait(), flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, drain)
print("ready", flush=True)
while True:
    signal.sigtimedwait([], 0.05)
"""


@pytest.mark.parametrize("way", ["signal", "command", "file", "role"])
def test_t5_with_kill_mode_mixed_a_master_drains_its_workers(supervise: Command, way: str):
    """Stopped by a signal and by a command; with the option, and with the key of a file and of a role."""
    os.mkfifo(supervise.tmp_path / "task")
    (supervise.tmp_path / "drains.py").write_text(DRAINS)
    top, role = ("" if way == "role" else 'kill-mode = "mixed"'), ('kill-mode = "mixed"' if way == "role" else "")
    text = f"{top}\n[roles.master]\ncommand = [{sys.executable!r}, 'drains.py']\n{role}\n"
    (supervise.tmp_path / "gang.toml").write_text(text)
    words = ("--file", "gang.toml") if way in ("file", "role") else ("--kill-mode", "mixed", "drains.py")
    with supervise.started("--no-prefix", "--run-id", "job", "--shutdown-timeout", "1000", *words) as run:
        assert run.hear() == ["ready\n"]
        if way == "command":
            with supervise.started_command("stop", "job"):
                assert run.hear() == ["draining\n"]
        else:
            run.signal(signal.SIGTERM)
            assert run.hear() == ["draining\n"]
        (supervise.tmp_path / "task").write_text("go\n")
        assert run.hear() == ["worker: 0\n"]
        assert run.end()[0] == 143


SIGNALED_LATE = """
import os, signal, sys
from supervise.cli.run.signal_inbox import SignalInbox

with SignalInbox((signal.SIGTERM,), restore=sys.argv[1] == "restores"):
    pass
os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize(("ends", "code"), [("exits", 0), ("restores", -signal.SIGTERM)])
def test_a_signal_after_the_end_of_a_run_changes_no_exit_code_unless_the_process_continues(ends: str, code: int):
    """At the exit, the interpreter would restore the default action, which ends the process."""
    command = [sys.executable, "-c", SIGNALED_LATE, ends]
    assert subprocess.run(command, cwd=ROOT, timeout=PATIENCE_S, check=False).returncode == code
