"""A gang with a gate: no program runs before it is certain to end with its host, and otherwise all is as without."""

import errno
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from supervise import DefaultLogsSpecs, Start, Std, Supervisor, Wait, start_processes
from supervise._process import shell
from tests.processes.gangs import KINDS, faulty
from tests.processes.hosts import NO_FILES, PATIENCE_S, Host, watched
from tests.processes.stubborn import OBEDIENT

DIES = """
from supervise._process import launch, lifeline

def die(*started):
    print(started[-1], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

{where} = die
args = {{0: ("-c", "touch {ran}; exec sleep 1000")}}
Supervisor.start(name="host", entrypoint="sh", args=args, gate={gate}).ask(Start())
"""
WINDOWS = {
    "before the lifeline is armed": ("launch._arm", ""),
    "before the guard is told": ("lifeline.Lifeline.hold", "setsig"),
    "before the guard is told, without pidfd": ("lifeline.Lifeline.hold", "setsig,pidfd"),
}


@pytest.mark.parametrize("window", WINDOWS)
def test_k1_a_host_killed_in_the_window_leaves_nothing_behind_a_gate(tmp_path, monkeypatch, window):
    """The program has not run at all."""
    where, without = WINDOWS[window]
    monkeypatch.setenv("SUPERVISE_WITHOUT", without)
    ran = tmp_path / "ran"
    with Host(DIES.format(where=where, ran=ran, gate=True)) as host, watched([int(host.hear())]) as watch:
        assert host.exit_code() == -signal.SIGKILL
        assert watch.survivors() == set()
    assert not ran.exists()


@pytest.mark.parametrize("window", WINDOWS)
def test_k1_that_window_is_there_without_a_gate(tmp_path, monkeypatch, window):
    """Else the test above would show nothing."""
    where, without = WINDOWS[window]
    monkeypatch.setenv("SUPERVISE_WITHOUT", without)
    with (
        Host(DIES.format(where=where, ran=tmp_path / "ran", gate=False)) as host,
        watched([pid := int(host.hear())]) as watch,
    ):
        assert host.exit_code() == -signal.SIGKILL
        assert watch.survivors(0.5) == {pid}


@pytest.mark.parametrize("kind", KINDS)
def test_a_gang_behind_a_gate_stops_as_any_other(tmp_path, kind):
    """Functions need no gate, and take no notice."""
    with faulty(tmp_path, kind, [OBEDIENT] * 2, gate=True) as gang:
        gang.hear(2)
        os.kill(gang.pids[1], signal.SIGKILL)
        result = gang.wait()
    assert {rank: failure.exitcode for rank, failure in result.failures.items()} == {1: -signal.SIGKILL}


# The program finds everything as it would without

SHOWS = """
import json, os, sys
env = open("/proc/self/environ", "rb").read().split(b"\\0")
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
fds = [name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]
print(json.dumps({
    "env": sorted(word.decode("latin1") for word in env if word),
    "argv": sys.argv,
    "cwd": os.getcwd(),
    "stdin": [sys.stdin.read(), os.path.realpath("/proc/self/fd/0")],
    "fds": sorted(os.path.basename(os.readlink(f"/proc/self/fd/{name}")).partition("[")[0] for name in fds),
    "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    "signals": [status[name] for name in ("SigBlk", "SigIgn", "SigCgt")],
}))
"""
ODD = {
    "A.B": "1 2",
    "BASH_FUNC_f%%": "() {  echo x\n}",
    "9": "-",
    "-n": "x",
    "EMPTY": "",
    "IFS": "x",
    "OPTIND": "7",
    "PPID": "1",
    "PS1": "$ ",
    "RANDOM": "4",
    "UID": "-1",
    "LINES": "a\nb ",
    "QUOTED": "'\"$HOME`\\",
}
ARGS = ("", "a b", "-n", "$HOME", "'", '"', "*", "\\", "a\nb", "=", "A=1", "\u00e9")
SHELLS = [shutil.which(name) or name for name in ("sh", "bash")]


def shown(tmp_path: Path, *, gate: bool, cwd: Path | None) -> dict:
    specs = DefaultLogsSpecs(str(tmp_path / f"logs-{gate}"), redirects=Std.ALL)
    gang = Supervisor.start(
        name="shows",
        entrypoint=sys.executable,
        args={0: ("-c", SHOWS, *ARGS)},
        envs={0: ODD},
        logs_specs=specs,
        cwd=cwd,
        gate=gate,
    )
    try:
        gang.ask(Start(), timeout=PATIENCE_S)
        result = gang.ask(Wait(timeout=PATIENCE_S))
    finally:
        gang.stop(timeout=PATIENCE_S)
    assert result.outcome == "succeeded", Path(result.stderrs[0]).read_text()
    found = json.loads(Path(result.stdouts[0]).read_text())
    own = ("SUPERVISE_WORKER=", "TORCHELASTIC_ERROR_FILE=", "_=")  # the last is set by shells to what they execute
    found["env"] = [word for word in found["env"] if not word.startswith(own)]
    return found


@pytest.mark.parametrize("shell_path", SHELLS, ids=os.path.basename)
@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
@pytest.mark.parametrize("ignoring", [False, True], ids=["", "ignoring"])
@pytest.mark.parametrize("unset", ["", "PWD"])
def test_a_program_behind_a_gate_has_all_as_without(  # noqa: PLR0917
    tmp_path, monkeypatch, shell_path, elsewhere, ignoring, unset
):
    """Environment, arguments, folder, an empty stdin, no further descriptor, its session and its signals."""
    if not os.access(shell_path, os.X_OK):
        pytest.skip(f"there is no {shell_path}")
    monkeypatch.setattr(shell, "_SHELL", shell_path)
    monkeypatch.setenv("PWD", str(Path.cwd()))
    monkeypatch.setenv("OLDPWD", "/")
    monkeypatch.setenv("SHLVL", "3")
    monkeypatch.setenv("_", shell_path)
    monkeypatch.delenv(unset, raising=False)
    (tmp_path / "a b").mkdir()
    cwd = tmp_path / "a b" if elsewhere else None
    if elsewhere:
        monkeypatch.setenv("PWD", str(cwd))
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN if ignoring else signal.SIG_DFL)
    try:
        without, behind = (shown(tmp_path, gate=gate, cwd=cwd) for gate in (False, True))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert set(behind["env"]) ^ set(without["env"]) == set()
    assert behind == without
    assert f"A.B={ODD['A.B']}" in behind["env"]


def test_the_exit_code_is_the_program_s():
    """Also where it is a signal's."""
    args = {0: ("-c", "exit 7"), 1: ("-c", "kill -s USR1 $$")}
    with start_processes("job", "sh", {0: args[0]}, {0: {}}, logs_specs=NO_FILES, gate=True) as context:
        assert context.wait(PATIENCE_S).failures[0].exitcode == 7
    with start_processes("job", "sh", {0: args[1]}, {0: {}}, logs_specs=NO_FILES, gate=True) as context:
        assert context.wait(PATIENCE_S).failures[0].exitcode == -signal.SIGUSR1


# What cannot be started


def started(program: str, **more) -> None:
    gang = Supervisor.start(name="job", entrypoint=program, args={0: ()}, logs_specs=NO_FILES, gate=True, **more)
    try:
        gang.ask(Start(), timeout=PATIENCE_S)
    finally:
        gang.stop(timeout=PATIENCE_S)


def test_a_program_that_is_not_there_is_an_error_of_the_start():
    """As without a gate, and not an exit with 127."""
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        started("no-such-program")


def test_a_program_that_env_would_take_for_a_variable_is_refused(tmp_path):
    """It is started by `env`, since the shell may drop a variable of that name."""
    program = tmp_path / "a=b"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    started(str(program))
    with pytest.raises(OSError, match=r"= in its name cannot be given the variable A\.B") as raised:
        started(str(program), envs={0: {"A.B": "1"}})
    assert raised.value.errno == errno.EINVAL


def test_a_forked_child_of_the_host_does_not_hold_a_gate(tmp_path):
    """The host is killed in the window, while a child that it forked there lives on."""
    where, _ = WINDOWS["before the lifeline is armed"]
    forks = f"""
def fork_and_die(*started):
    child = os.fork()
    if child == 0:
        signal.pause()
    print(child, flush=True)
    die(*started)

{where} = fork_and_die
"""
    program = DIES.format(where=where, ran=tmp_path / "ran", gate=True).replace(f"\n{where} = die\n", forks)
    with Host(program) as host, watched([int(host.hear())]) as child, watched([int(host.hear())]) as watch:
        assert host.exit_code() == -signal.SIGKILL
        assert watch.survivors() == set()
        assert len(child.survivors(0)) == 1
    assert not (tmp_path / "ran").exists()
