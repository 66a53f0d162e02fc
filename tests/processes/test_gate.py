"""A gang with a gate: no program runs before it is certain to end with its host, and otherwise all is as without."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from supervise import DefaultLogsSpecs, SpecError, Start, Std, Supervisor, Wait, start_processes
from supervise._process.launch import program
from supervise._process.launch.program import LaunchSpec
from supervise._process.lifeline import Lifeline
from tests.kernels import use_another_c_library
from tests.patience import PATIENCE_S
from tests.processes.gangs import KINDS, faulty
from tests.processes.hosts import NO_FILES, Host, watched
from tests.processes.stubborn import OBEDIENT

DIES = """
from supervise._process import lifeline

def die(*started):
    print(started[-1], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

{where} = die
args = {{0: ("-c", "touch {ran}; exec sleep 1000")}}
Supervisor.start(name="host", entrypoint="sh", args=args, gate={gate}).ask(Start())
"""
WINDOW = "lifeline.arm"
"""What arms the lifeline, where glibc's `posix_spawn` does not."""


def test_k1_a_host_killed_in_the_window_leaves_nothing_behind_a_gate(tmp_path, monkeypatch):
    """The program has not run at all."""
    monkeypatch.setenv("SUPERVISE_WITHOUT", "glibc")
    ran = tmp_path / "ran"
    with Host(DIES.format(where=WINDOW, ran=ran, gate=True)) as host, watched([int(host.hear())]) as watch:
        assert host.exit_code() == -signal.SIGKILL
        assert watch.survivors() == set()
    assert not ran.exists()


def test_k1_that_window_is_there_without_a_gate(tmp_path, monkeypatch):
    """Else the test above would show nothing."""
    monkeypatch.setenv("SUPERVISE_WITHOUT", "glibc")
    with (
        Host(DIES.format(where=WINDOW, ran=tmp_path / "ran", gate=False)) as host,
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
    "--unset": "HOME",
    "A.B": "1 2",
    "BASH_FUNC_f%%": "() {  echo x\n}",
    "9": "-",
    "EMPTY": "",
    "IFS": "x",
    "OPTIND": "7",
    "PPID": "1",
    "PS1": "$ ",
    "SUPERVISE_GATE": "mine",
    "TMOUT": "1",
    "RANDOM": "4",
    "UID": "-1",
    "LINES": "a\nb ",
    "QUOTED": "'\"$HOME`\\",
}
ARGS = ("", "a b", "-n", "$HOME", "'", '"', "*", "\\", "a\nb", "=", "A=1", "\u00e9")


def shown(tmp_path: Path, *, gate: bool, cwd: Path | None) -> dict:
    specs = DefaultLogsSpecs(str(tmp_path / f"logs-{gate}"), redirects=Std.ALL)
    gang = Supervisor.start(
        name="shows",
        entrypoint=sys.executable,
        args={0: ("-c", SHOWS, *ARGS)},
        envs={0: dict(ODD)},
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
    own = ("SUPERVISE_WORKER=", "TORCHELASTIC_ERROR_FILE=")
    found["env"] = [word for word in found["env"] if not word.startswith(own)]
    return found


@pytest.fixture(params=["dash", "bash", "busybox"])
def _shell(request, tmp_path, monkeypatch) -> None:
    """Have ``/bin/sh`` be one of those that it is on some system."""
    found = shutil.which(request.param)
    if found is None:
        pytest.skip(f"there is no {request.param} here")
    (tmp_path / "sh").symlink_to(found)
    monkeypatch.setattr(program, "_SHELL", str(tmp_path / "sh"))


PLACES = [{"PWD": "/tmp", "OLDPWD": "/nowhere", "SHLVL": "3", "_": "me"}, dict.fromkeys(("PWD", "OLDPWD", "SHLVL"))]


@pytest.mark.usefixtures("_shell")
@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
@pytest.mark.parametrize("ignoring", [False, True], ids=["", "ignoring, without glibc"])
@pytest.mark.parametrize("own", PLACES, ids=["set", "unset"])
def test_a_program_behind_a_gate_has_all_as_without(tmp_path, monkeypatch, elsewhere, ignoring, own):
    """Environment, arguments, folder, an empty stdin, no further descriptor, its session and its signals."""
    for name, value in own.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    (tmp_path / "a b" / "c").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a b" / "c")
    cwd = tmp_path / "link" / ".." if elsewhere else None
    if ignoring:
        use_another_c_library(monkeypatch)
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN if ignoring else signal.SIG_DFL)
    try:
        without, behind = (shown(tmp_path, gate=gate, cwd=cwd) for gate in (False, True))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert set(behind["env"]) ^ set(without["env"]) == set()
    assert behind == without
    assert {f"{name}={value}" for name, value in ODD.items()} <= set(behind["env"])


@pytest.mark.usefixtures("_shell")
def test_an_effective_user_that_is_not_the_real_one_stays(system_call, monkeypatch):
    """An exec keeps it. A shell that is not told otherwise goes back to the real one."""
    if os.getuid() != 0:
        pytest.skip("only root may be somebody else")
    other = (0, 1000, 0)
    system_call("geteuid", lambda _: other[1])
    line = Lifeline()
    command, env, _ = program.becoming(["grep", "^Uid", "/proc/self/status"], LaunchSpec(env=os.environ, line=line))
    line.cut()
    monkeypatch.undo()
    done = subprocess.run(
        ["sh", *command[1:]],
        executable=os.path.realpath(command[0]),
        env=env,
        cwd="/",
        preexec_fn=lambda: os.setresuid(*other),
        stdout=-1,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["Uid:", "0", "1000", "1000", "1000"]


def test_the_exit_code_is_the_program_s():
    """Also where it is a signal's."""
    args = {0: ("-c", "exit 7"), 1: ("-c", "kill -s USR1 $$")}
    with start_processes("job", "sh", {0: args[0]}, {0: {}}, logs_specs=NO_FILES, gate=True) as context:
        assert context.wait(PATIENCE_S).failures[0].exitcode == 7
    with start_processes("job", "sh", {0: args[1]}, {0: {}}, logs_specs=NO_FILES, gate=True) as context:
        assert context.wait(PATIENCE_S).failures[0].exitcode == -signal.SIGUSR1


# What cannot be started


def started(program: str, *, gate: bool = True) -> None:
    gang = Supervisor.start(name="job", entrypoint=program, args={0: ()}, logs_specs=NO_FILES, gate=gate)
    try:
        gang.ask(Start(), timeout=PATIENCE_S)
    finally:
        gang.stop(timeout=PATIENCE_S)


def test_a_program_that_is_not_there_is_an_error_of_the_start():
    """As without a gate, and not an exit with 127."""
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        started("no-such-program")


FILES = {
    "no shebang": ("echo hi\n", 0o755),
    "empty": ("", 0o755),
    "an empty shebang": ("#!\n", 0o755),
    "lines that end in CRLF": ("#!/bin/sh\r\n", 0o755),
    "an interpreter that is not there": ("#!/no/such/interpreter\n", 0o755),
    "an interpreter that is a folder": ("#!/tmp\n", 0o755),
    "not executable": ("#!/bin/sh\n", 0o644),
}


@pytest.mark.parametrize("what", FILES)
def test_what_the_kernel_does_not_execute_is_the_same_error_of_the_start(tmp_path, what):
    """And not a script of the shell's, nor an exit with 126."""
    text, mode = FILES[what]
    program = tmp_path / "program"
    program.write_text(text)
    program.chmod(mode)
    errors = []
    for gate in (False, True):
        with pytest.raises(OSError, match="program") as raised:
            started(str(program), gate=gate)
        errors.append((type(raised.value), raised.value.errno, raised.value.filename))
    assert errors[0] == errors[1]


@pytest.mark.parametrize("name", ["lr=0.1", "-n"])
def test_a_program_whose_name_looks_like_something_else_runs(tmp_path, name):
    """Like a variable for `env`, or an option of the shell's `exec`."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "program").write_text("#!/bin/sh\nexit 9\n")
    (tmp_path / name / "program").chmod(0o755)
    program, envs = f"{name}/program", {0: dict(ODD)}
    with start_processes("job", program, {0: ()}, envs, logs_specs=NO_FILES, cwd=tmp_path, gate=True) as gang:
        assert gang.wait(PATIENCE_S).failures[0].exitcode == 9


def test_a_gate_is_yes_or_no():
    """A text is neither."""
    with pytest.raises(SpecError, match="gate is 'no'; give True or False"):
        Supervisor.start(name="job", entrypoint="true", args={0: ()}, logs_specs=NO_FILES, gate="no")


def test_a_forked_child_of_the_host_does_not_hold_a_gate(tmp_path, monkeypatch):
    """The host is killed in the window, while a child that it forked there lives on."""
    monkeypatch.setenv("SUPERVISE_WITHOUT", "glibc")
    forks = f"""
def fork_and_die(*started):
    child = os.fork()
    if child == 0:
        signal.pause()
    print(child, flush=True)
    die(*started)

{WINDOW} = fork_and_die
"""
    program = DIES.format(where=WINDOW, ran=tmp_path / "ran", gate=True).replace(f"\n{WINDOW} = die\n", forks)
    with Host(program) as host, watched([int(host.hear())]) as child, watched([int(host.hear())]) as watch:
        assert host.exit_code() == -signal.SIGKILL
        assert watch.survivors() == set()
        assert len(child.survivors(0)) == 1
    assert not (tmp_path / "ran").exists()
