"""What signals to the command do to the ranks."""

import os
import re
import signal
import sys

import pytest

from tests.cli.command import Command, until_another_signal

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
    assert "stopping" not in err  # where nobody watches, a stop that takes no time is told once
    assert f"ranks 0-1: exit code 0 after {sig.name} from supervise" in err
    assert "Traceback" not in err


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
    assert "ranks 0-1: killed by SIGKILL (sent by supervise)" in err


def test_a_signal_that_comes_twice_at_once_is_one(supervise: Command):
    """`timeout` signals its child, and then its own process group: the ranks have their grace all the same."""
    with supervise.started("-n", "2", "--shutdown-timeout", "1000", *python(SLOW)) as run:
        assert run.hear(2) == READY
        run.signal(signal.SIGTERM)
        run.signal(signal.SIGTERM)
        returncode, out, err = run.end()
    assert returncode == 143
    assert sorted(out.splitlines()) == [f"[default{rank}]:saved" for rank in range(2)]
    assert "again" not in err


def test_a_second_signal_of_another_kind_is_named_as_what_it_is(supervise: Command):
    """It kills as well; the line names both signals, and neither came twice."""
    with supervise.started("--shutdown-timeout", "1000", *python(STUBBORN)) as run:
        run.hear()
        run.signal(signal.SIGTERM)
        run.hear_error("a second signal kills now")
        run.signal(signal.SIGHUP)
        returncode, _, err = run.end()
    assert returncode == 143
    assert "SIGHUP after SIGTERM: killing 1 rank now" in err
    assert "again" not in err


def test_after_the_grace_ranks_are_killed(supervise: Command):
    """--shutdown-timeout is the time from the polite signal to SIGKILL."""
    with supervise.started("--shutdown-timeout", "0.2", *python(STUBBORN)) as run:
        run.hear()
        run.signal(signal.SIGTERM)
        returncode, _, err = run.end()
    assert returncode == 143
    assert "rank 0: killed by SIGKILL (sent by supervise, 200 ms after SIGTERM)" in err


def test_a_slow_stop_after_a_failure_is_announced_once(supervise: Command):
    """In a pipe one line says what is being waited for, before the end is told."""
    program = STUBBORN.replace("import signal", "import os, signal", 1).replace(
        'print("ready"',
        'if os.environ["RANK"] == "1":\n    open("armed").read()\n    raise SystemExit(3)\n'
        'open("armed", "w").close()\nprint("ready"',
    )
    os.mkfifo(supervise.tmp_path / "armed")  # rank 1 fails when rank 0 no longer heeds SIGTERM
    with supervise.started("-n", "2", "--shutdown-timeout", "2.2", *python(program)) as run:
        returncode, _, err = run.end()
    assert returncode == 3
    assert len(re.findall(r"rank 1 failed \(exit code 3\): stopping 1 rank, SIGKILL in [12] s\n", err)) == 1


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
        run.hear_error("supervise: stopping processes that the ranks left behind, SIGKILL in 999 s")
        run.signal(signal.SIGINT)
        run.hear_error("supervise: SIGINT: stopping processes that the ranks left behind")
        run.signal(signal.SIGINT)
        assert run.end()[0] == 0
