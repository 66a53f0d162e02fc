"""Ranks below a debugger: debugpy, which VS Code uses, attaches to each of them."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cli.command import ROOT, environment
from tests.debuggers.dap import Client, await_adapter
from tests.patience import PATIENCE_S
from tests.ports import free_port

pytest.importorskip("debugpy", reason="debugpy has no build for this Python")

RANK = "import os, sys\nprint('rank', os.environ['RANK'], 'pydevd' in sys.modules)\n"
CALLS = """
import sys
from supervise import run, start_processes
from supervise.multiprocessing import spawn

def rank(index=None):
    return "pydevd" in sys.modules

def checked(index):
    assert rank()

if __name__ == "__main__":
    print(*{call}, sep="\\n")
"""
KINDS = {
    "command": ("-m", "supervise", "run", "-n", "2", "--no-prefix", "-q", "rank.py"),
    "cwd": ("-m", "supervise", "run", "-n", "2", "--no-prefix", "-q", "--cwd", ".", "rank.py"),
    "run": "run(rank, n=2)",
    "spawn": "[spawn(checked, nprocs=2) is None]",
}


@pytest.mark.parametrize("kind", KINDS)
def test_t13_debugpy_attaches_to_every_rank(tmp_path: Path, kind: str):
    """Its client is told of both ranks, and each of them has the debugger."""
    words: Any = KINDS[kind]
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "calls.py").write_text(CALLS.replace("{call}", words) if isinstance(words, str) else "")
    port = free_port()
    debugger = ("-m", "debugpy", "--listen", f"127.0.0.1:{port}", "--wait-for-client")
    program = ("calls.py",) if isinstance(words, str) else words
    attached: list[dict[str, Any]] = []
    with (
        (tmp_path / "out").open("w") as stdout,
        (tmp_path / "err").open("w") as stderr,
        subprocess.Popen(
            [sys.executable, "-Xfrozen_modules=off", *debugger, *program],
            cwd=tmp_path,
            env=environment(tmp_path, PYTHONPATH=str(ROOT), DEBUGPY_ADAPTER_ENDPOINTS=str(tmp_path / "endpoints")),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,  # with what debugpy says of a helper process of multiprocessing that ends later
        ) as process,
    ):
        try:
            await_adapter(tmp_path / "endpoints")
            client = Client("127.0.0.1", port, attached).attach(name="tests", subProcess=True)
            code = process.wait(PATIENCE_S)
            client.join()
        finally:
            process.kill()
            process.wait()
            _end_tracker(tmp_path)
    out = (tmp_path / "out").read_text()
    assert code == 0, out + (tmp_path / "err").read_text()
    assert len(attached) >= 2  # multiprocessing may start a resource tracker, too
    assert out.count("True") == (1 if kind == "spawn" else 2), out


def _end_tracker(folder: Path) -> None:
    """Kill the resource tracker of multiprocessing, which has this working directory and ends by itself in most runs.

    If the session of debugpy ends before the tracker has attached, the tracker waits for it without end, in
    ``PyDB.wait_for_ready_to_run``.
    """
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # it ends now
            if process.cwd() == str(folder) and "multiprocessing.resource_tracker" in " ".join(process.cmdline()):
                process.kill()


def test_an_audit_hook_sees_the_start_of_a_program():
    """The event is that of `os.posix_spawn`."""
    code = """
import sys
from supervise import Supervisor, Start, Wait
seen = []
sys.addaudithook(lambda event, args: seen.append(args[1]) if event == "os.posix_spawn" else None)
with Supervisor.start(name="g", entrypoint="true", args={0: ("one",), 1: ("two",)}) as gang:
    gang.ask(Start())
    gang.ask(Wait())
print(*sorted(list(argv)[-1] for argv in seen))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.stdout, done.stderr) == ("one two\n", "")


def test_the_reason_of_an_audit_hook_that_forbids_a_start_is_kept():
    """Its error has no errno, unlike those of the kernel."""
    code = """
import sys
from supervise import Supervisor, Start
def forbid(event, args):
    if event == "os.posix_spawn":
        raise PermissionError("policy forbids programs")
sys.addaudithook(forbid)
with Supervisor.start(name="g", entrypoint="true", args={0: ()}) as gang:
    try:
        gang.ask(Start())
    except Exception as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.stdout == "rank 0 did not start: PermissionError: policy forbids programs\n"


@pytest.mark.parametrize("way", ["posix_spawn", "Popen", "fork_exec"])
@pytest.mark.parametrize("cwd", [None, "/"])
def test_a_start_goes_through_a_replacement(way: str, cwd: "str | None", tmp_path: Path):
    """Whichever function a tracer has replaced, it sees the rank; the lifeline and the signals are as ever."""
    if way == "posix_spawn" and cwd is not None:
        pytest.skip("os.posix_spawn cannot change the folder, so the start goes through subprocess")
    code = f"""
import os, signal, subprocess, sys, _posixsubprocess
from supervise import Supervisor, Start, Wait
seen = []
def replaced(original):
    def call(*args, **kwargs):
        seen.append(1)
        return original(*args, **kwargs)
    return call
class Popen(subprocess.Popen):
    def __init__(self, *args, **kwargs):
        seen.append(1)
        super().__init__(*args, **kwargs)
if {way!r} == "Popen":
    subprocess.Popen = Popen
elif {way!r} == "posix_spawn":
    os.posix_spawn = replaced(os.posix_spawn)
elif hasattr(subprocess, "_fork_exec"):
    subprocess._fork_exec = replaced(subprocess._fork_exec)
else:
    _posixsubprocess.fork_exec = replaced(_posixsubprocess.fork_exec)
script = "grep SigBlk /proc/self/status | cut -f2; ls /proc/self/fd | wc -l; pwd; exit 3"
with Supervisor.start(name="g", entrypoint="sh", args={{0: ("-c", script)}}, cwd={cwd!r}) as gang:
    gang.ask(Start())
    result = gang.ask(Wait())
print(len(seen), result.failures[0].exitcode)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=tmp_path
    )
    mask, descriptors, folder, last = done.stdout.splitlines()
    assert (int(mask, 16), folder, last) == (0, cwd or str(tmp_path), "1 3"), done.stderr
    assert int(descriptors) <= 5  # three streams, the lifeline, and the folder that ls reads


@pytest.mark.parametrize("cwd", [None, "/"])
def test_the_sockets_of_a_rank_keep_their_numbers_below_a_debugger(cwd: "str | None"):
    """Few descriptors are open in the host, so the numbers from 3 on are free or those of its own pipes."""
    code = f"""
import os, subprocess, _posixsubprocess
from supervise import Supervisor, Start, Wait
os.posix_spawn = lambda *args, original=os.posix_spawn, **kwargs: original(*args, **kwargs)
class Popen(subprocess.Popen):
    pass
subprocess.Popen = Popen
script = "for n in 3 4; do readlink /proc/self/fd/$n | cut -d: -f1; done; echo $LISTEN_FDS"
listen = ["tcp:127.0.0.1:0", "tcp:127.0.0.1:0"]
with Supervisor.start(name="g", entrypoint="sh", args={{0: ("-c", script)}}, cwd={cwd!r}, listen=listen) as gang:
    gang.ask(Start())
    print(gang.ask(Wait()).outcome)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.stdout, done.stderr) == ("socket\nsocket\n2\nsucceeded\n", "")
