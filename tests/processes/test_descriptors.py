"""Of what the host has open, a program gets its three streams and the lifeline, whoever executes it, and however."""

import importlib
import multiprocessing
import os
import pickle
import signal
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.kernels import use_another_c_library
from tests.patience import PATIENCE_S
from tests.processes.gangs import each_function, faulty, launched

TELLS = """
found = []
for name in os.listdir("/proc/self/fd"):
    try:
        found.append((int(name), os.readlink(f"/proc/self/fd/{name}")))
    except FileNotFoundError:  # the listing's own
        pass
say(repr(found))
"""


@pytest.mark.parametrize(
    "how",
    [
        "as it is",
        "a signal ignored",
        "a working directory",
        "another C library",
        "another C library, a working directory",
    ],
)
def test_a_program_has_its_streams_the_lifeline_and_nothing_else(tmp_path, monkeypatch, how):
    """Not even what the host has open to be inherited, at numbers below and above the lifeline's."""
    if "C library" in how:
        use_another_c_library(monkeypatch)
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN if how == "a signal ignored" else signal.SIG_DFL)
    secret = tmp_path / "secret"
    secret.touch()
    low = os.open(secret, os.O_RDONLY)
    high = os.dup2(low, 500)  # inheritable, as dup2 makes it
    os.set_inheritable(low, True)
    try:
        cwd = {"cwd": str(tmp_path)} if "a working directory" in how else {}
        with faulty(tmp_path, "binary", [TELLS], **cwd) as gang:
            found = eval(gang.hear()[0])
            gang.wait()
    finally:
        signal.signal(signal.SIGUSR1, before)
        for fd in (low, high):
            os.close(fd)
    others = [target for number, target in found if number > 2 and "/proc/" not in target]
    assert len(others) == 1, found
    assert others[0].startswith("pipe:")
    assert Path(dict(found)[1]).name == "stdout.log"


# Programs that a function executes

LISTS = """
import os
for name in os.listdir("/proc/self/fd"):
    if int(name) > 2 and os.path.exists(f"/proc/self/fd/{name}"):
        stat = os.stat(f"/proc/self/fd/{name}")
        print(name, stat.st_dev, stat.st_ino, os.readlink(f"/proc/self/fd/{name}"), flush=True)
"""


def inheritable() -> list[int]:
    """Return the descriptors of this process that each program inherits, without the standard streams."""
    found = []
    for each in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with suppress(OSError):  # that of the listing is closed
            if int(each) > 2 and os.get_inheritable(int(each)):
                found.append(int(each))
    return found


def listed(folder: Path) -> list[str]:
    """Return what the program has found, but for what this process hands on to every program, whoever opened it."""
    everybodys = {(stat.st_dev, stat.st_ino) for stat in map(os.fstat, inheritable())}
    [log] = (folder / "logs").rglob("stdout.log")
    lines = [line.split(" ", 3) for line in log.read_text().splitlines()]
    return [target for _, device, inode, target in lines if (int(device), int(inode)) not in everybodys]


EXECUTIONS = {
    "os.system": "os.system(f'{sys.executable} {file}')",
    "subprocess": "import subprocess; subprocess.run([sys.executable, file], check=True, close_fds=False)",
    "posix_spawn": "os.waitpid(os.posix_spawn(sys.executable, [sys.executable, file], os.environ), 0)",
    "exec": "os.execv(sys.executable, [sys.executable, file])",
}


def execute(source: str, file: str, *_objects: object) -> None:
    exec(source, {"os": os, "sys": sys, "file": file})


@each_function
@pytest.mark.parametrize("how", EXECUTIONS)
def test_p1_a_program_that_a_function_executes_finds_the_lifeline_and_nothing_else_of_ours(tmp_path, kind, how):
    """Neither the result channel nor the arguments, the resource tracker, the fork server, nor queues."""
    (tmp_path / "list.py").write_text(LISTS)
    context: Any = multiprocessing.get_context(kind)
    queue = context.SimpleQueue()
    args = (EXECUTIONS[how], str(tmp_path / "list.py"), *(() if kind == "fork" else (queue,)))
    with launched(tmp_path, execute, {0: args}, start_method=kind) as gang:
        gang.start().wait()
    queue.close()
    [found] = listed(tmp_path)
    assert found.startswith("pipe:")


EARLY = """
import os, subprocess, sys
if "LOCAL_RANK" in os.environ:
    subprocess.run([sys.executable, os.environ["LIST"]], check=True, close_fds=False)

def go():
    pass
"""


@pytest.mark.parametrize("kind", ["spawn", "forkserver"])
def test_p1_a_program_that_is_executed_by_an_import_does_not_find_the_arguments(tmp_path, monkeypatch, kind):
    """The function's module is imported while the arguments, of which the worker unpickles the rest, are open."""
    (tmp_path / "list.py").write_text(LISTS)
    (tmp_path / "early.py").write_text(EARLY)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("early")
    envs = {0: {"LIST": str(tmp_path / "list.py")}}
    with launched(tmp_path, module.go, {0: ()}, start_method=kind, envs=envs) as gang:
        assert gang.start().wait().outcome == "succeeded"
    assert len([target for target in listed(tmp_path) if not target.startswith("pipe:")]) == 0
    assert len(listed(tmp_path)) <= 2  # the lifeline, and the fork server's empty pipe


ATTACK = """
for each in /proc/self/fd/*; do
    [ "${each##*/}" -gt 2 ] && echo "$(id -u) tries $(readlink "$each")" && dd if="$0" of="$each" conv=notrunc,nocreat
done 2>&1
"""
ATTACK_BY_PYTHON = """
import os, sys
for name in os.listdir("/proc/self/fd"):
    if int(name) > 2 and os.path.exists(f"/proc/self/fd/{name}"):
        print(os.getuid(), "tries", os.readlink(f"/proc/self/fd/{name}"), flush=True)
        try:
            os.write(int(name), open(sys.argv[1], "rb").read())
        except OSError as error:
            print(error)
"""


class Attack:
    """Whoever unpickles it makes a file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self._path, "w")


def be_attacked(payload: str, uid: int | None, ending: str) -> str:
    attack = [sys.executable, "-c", ATTACK_BY_PYTHON] if uid is None else ["sh", "-c", ATTACK]
    subprocess.run([*attack, payload], close_fds=False, check=False, user=uid, timeout=40)
    if ending == "leaves":
        os._exit(0)
    return "true"


@each_function
@pytest.mark.parametrize("ending", ["returns", "leaves"])
@pytest.mark.parametrize("uid", [None, 65534], ids=["the same user", "another user"])
def test_p1_nothing_that_a_program_of_a_function_writes_is_unpickled(tmp_path, kind, uid, ending):
    """It writes a whole outcome into each descriptor that it finds, before the function returns or leaves at once."""
    if uid is not None and os.geteuid() != 0:
        pytest.skip("only root starts programs as another user")
    pickled = pickle.dumps(Attack(str(tmp_path / "unpickled")))
    header = struct.Struct("<8scQQ")
    payload = Path("/dev/shm", f"supervise-test-{os.getpid()}")  # where another user can read it
    payload.write_bytes(header.pack(b"supervis", b"v", 0, header.size + len(pickled)) + pickled)
    payload.chmod(0o644)
    try:
        with launched(tmp_path, be_attacked, {0: (str(payload), uid, ending)}, start_method=kind) as gang:
            result = gang.start().wait()
    finally:
        payload.unlink()
    assert not (tmp_path / "unpickled").exists()
    if ending == "returns":
        assert result.return_values == {0: "true"}
    else:
        assert result.failures[0].exitcode == 0
    [log] = (tmp_path / "logs").rglob("stdout.log")
    assert f"{os.geteuid() if uid is None else uid} tries pipe:" in log.read_text()  # it did run


FIRST_GANG = """
import os, resource, sys, threading
from supervise import DefaultLogsSpecs, start_processes

def room():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("FDSize"))

resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
rooms = []
threading.setprofile(lambda *_: (rooms.append(room()), sys.setprofile(None)))
ranks = range(40)
logs = DefaultLogsSpecs(os.devnull)
gang = start_processes("g", "sleep", {rank: ("100",) for rank in ranks}, {rank: {} for rank in ranks}, logs_specs=logs)
rooms.append(room())
gang.close()
print(rooms[0] == rooms[-1] >= 256, rooms)
"""


@pytest.mark.parametrize("limit", [300, 1024])
def test_the_table_of_open_files_has_room_before_a_gang_has_a_thread(limit):
    """With several threads, each enlargement takes 10 to 20 ms, because the kernel waits for an RCU grace period."""
    told = subprocess.run(
        [sys.executable, "-c", FIRST_GANG, str(limit)], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert told.stdout.startswith("True"), told
