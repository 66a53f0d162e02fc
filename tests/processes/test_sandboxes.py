"""System calls that Python has and the kernel or a sandbox refuses, as seccomp profiles of containers do."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.processes import sandbox

ROOT = str(Path(__file__).parents[2])
pytestmark = pytest.mark.skipif(not sandbox.AVAILABLE, reason="the filter has the numbers of x86-64")

NEEDED = [
    *("epoll_create1", "epoll_ctl", "epoll_wait", "eventfd2", "fcntl(F_SETOWN)", "fcntl(F_SETSIG)", "pipe2", "poll"),
    *("readlink", "rt_sigprocmask", "socket(AF_UNIX)", "wait4", "waitid"),
]
OF_FUNCTIONS = ["fcntl(F_ADD_SEALS)", "memfd_create"]
OF_SOCKETS = ["bind", "getsockname", "getsockopt", "setsockopt"]
AT_A_FAILURE = ["dup2", "getcwd", "setsid", "uname"]
OPTIONAL = sorted(sandbox.NUMBERS.keys() - {*NEEDED, *OF_FUNCTIONS, *OF_SOCKETS, *AT_A_FAILURE, "clone3", "lseek"})
ERRNOS = ("ENOSYS", "EPERM", "EACCES")
STRESS = {"ENOSYS": [pytest.mark.stress], "EACCES": [pytest.mark.stress]}
"""Marks of the single calls with these errnos, because the whole table takes minutes."""
RUN = [sys.executable, "-m", "supervise", "run", "--log-dir", "{folder}/run"]

GANGS = """
import os, pathlib, signal, sys, time
sys.path.insert(0, {root!r})
from supervise import *

def value():
    return os.environ["RANK"]

def main():
    for method in ("spawn", "fork", "forkserver"):
        assert run(value, n=2, start_method=method) == ["0", "1"]
    specs = DefaultLogsSpecs({folder!r}, redirects=Std.ALL, tee=Std.ALL)
    source = "sleep 60 & echo shown; exec sleep 60"
    gang = Supervisor.start(
        name="g", entrypoint="sh", args={{0: ("-c", source), 1: ("-c", source)}}, logs_specs=specs, log_max_bytes=65536,
    )
    pids = gang.ask(Start())
    while sum(path.read_text() == "shown\\n" for path in pathlib.Path({folder!r}).rglob("stdout.log")) < 2:
        time.sleep(0.01)
    assert gang.ask(Signal(sig=signal.SIGCONT)) == {{0, 1}}
    gang.ask(Stacks())
    os.kill(pids[0], signal.SIGKILL)
    result = gang.ask(Wait())
    assert {{rank: end.exitcode for rank, end in result.ends.items()}} == {{0: -signal.SIGKILL, 1: -signal.SIGTERM}}
    gang.stop()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{{name}}/stat") as file:
                state, _, group = file.read().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        assert state == "Z" or int(group) not in pids.values(), name

if __name__ == "__main__":
    main()
"""


def under(tmp_path, number, names, command):
    """Execute a command that may not use these system calls."""
    return subprocess.run(
        [sys.executable, sandbox.__file__, number, ",".join(names), *command],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ROOT},
    )


def gangs(tmp_path):
    """Return the command of a program with gangs of functions and of programs."""
    (tmp_path / "program.py").write_text(GANGS.format(root=ROOT, folder=str(tmp_path / "logs")))
    return [sys.executable, str(tmp_path / "program.py")]


def runs(tmp_path, *argv):
    return [*(word.format(folder=tmp_path) for word in RUN), *argv]


def each_refusal(names):
    given = [pytest.param(number, name, marks=STRESS.get(number, [])) for number in ERRNOS for name in names]
    return pytest.mark.parametrize(("number", "name"), given)


def check_works(tmp_path, number, names):
    done = under(tmp_path, number, names, runs(tmp_path, "-n", "cpu", "--tee", "3", "sh", "-c", "echo shown"))
    assert (done.returncode, "[default0]:shown" in done.stdout) == (0, True), done.stderr
    done = under(tmp_path, number, names, gangs(tmp_path))
    assert (done.returncode, done.stdout.count("shown")) == (0, 2), done.stderr


@each_refusal(OPTIONAL)
def test_t3_a_call_with_a_fallback_may_be_refused(tmp_path, number, name):
    """Gangs start, show their output, and are ended with their groups."""
    check_works(tmp_path, number, [name])


@pytest.mark.parametrize("number", ERRNOS)
def test_t3_all_calls_with_a_fallback_may_be_refused_together(tmp_path, number):
    check_works(tmp_path, number, OPTIONAL)


def check_named(done, names):
    named = re.findall(r"the kernel refuses the system call (\S+) \(", done.stderr)
    assert set(named) & set(names), done.stderr
    assert "seccomp" in done.stderr
    assert "cannot start" not in done.stderr
    assert "could not be started" not in done.stderr
    assert done.returncode in (1, 2)


@each_refusal(NEEDED)
def test_t3_a_start_without_a_call_that_it_needs_names_the_call(tmp_path, number, name):
    """The program is not blamed."""
    check_named(under(tmp_path, number, [name], runs(tmp_path, "true")), [name])
    if name != "pipe2":  # multiprocessing fails first
        check_named(under(tmp_path, number, [name], gangs(tmp_path)), [name])


@each_refusal([*AT_A_FAILURE, *OF_SOCKETS, "lseek"])
def test_t3_a_start_that_failed_for_lack_of_a_call_names_the_call(tmp_path, number, name):
    """Notify sockets need some of the calls; a function needs `lseek`, and a program does not.

    A gang needs `uname` only if the module `uuid` of this Python does; the files of a run have the name of the host.
    """
    run, program = runs(tmp_path, "true"), gangs(tmp_path)
    for command in [program] if name == "lseek" else [run] if name in {*OF_SOCKETS, "uname"} else [run, program]:
        done = under(tmp_path, number, [name], command)
        assert f"the kernel refuses the system call {name} (" in done.stderr
        assert "seccomp" in done.stderr
        assert done.returncode == 1
        assert command is program or "Traceback" not in done.stderr


def test_t3_a_service_that_systemd_restricts_to_other_address_families_is_told(tmp_path):
    """``RestrictAddressFamilies=AF_INET`` answers EAFNOSUPPORT."""
    for command in (runs(tmp_path, "true"), gangs(tmp_path)):
        check_named(under(tmp_path, "EAFNOSUPPORT", ["socket(AF_UNIX)"], command), ["socket(AF_UNIX)"])


LIBRARY = {
    "a tree": """
        import pykka
        from supervise import ActorSupervisor, ChildSpec, Start
        tree = ActorSupervisor.start(name="app", children=[ChildSpec(id="a", start=pykka.ThreadingActor.start)])
        tree.ask(Start())
        tree.stop()
    """,
    "functions of torch": """
        from supervise.multiprocessing import start_processes
        start_processes(print, nprocs=2)
    """,
}


@pytest.mark.parametrize("source", LIBRARY.values(), ids=LIBRARY)
@each_refusal(["epoll_create1", "eventfd2"])
def test_t3_each_part_of_the_library_names_the_call(tmp_path, number, name, source):
    check_named(under(tmp_path, number, [name], [sys.executable, "-c", textwrap.dedent(source)]), [name])


@each_refusal(OF_FUNCTIONS)
def test_t3_functions_need_memory_files_and_programs_do_not(tmp_path, number, name):
    done = under(tmp_path, number, [name], runs(tmp_path, "true"))
    assert done.returncode == 0, done.stderr
    check_named(under(tmp_path, number, [name], gangs(tmp_path)), [name])


@pytest.mark.parametrize("name", ["fcntl(F_ADD_SEALS)", "fcntl(F_SETOWN)", "fcntl(F_SETSIG)"])
def test_t3_a_kernel_that_does_not_know_a_command_of_fcntl_is_told(tmp_path, name):
    """It answers EINVAL."""
    check_named(under(tmp_path, "EINVAL", [name], gangs(tmp_path)), [name])


@pytest.mark.parametrize("number", ["EPERM", "EACCES"])
def test_t3_a_refused_clone3_is_named_and_without_the_call_the_c_library_uses_clone(tmp_path, number):
    for command in (runs(tmp_path, "true"), gangs(tmp_path)):
        check_named(under(tmp_path, number, ["clone3"], command), ["clone3"])
    check_works(tmp_path, "ENOSYS", ["clone3"])


@pytest.mark.parametrize("number", ERRNOS)
def test_t3_without_any_call_the_start_names_one(tmp_path, number):
    everything = sorted(sandbox.NUMBERS.keys() - {"prctl"})
    check_named(under(tmp_path, number, everything, runs(tmp_path, "true")), everything)
