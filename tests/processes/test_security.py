"""What is ours stays private, other people's files stay as they are, and no secret shows up in what we say."""

import ast
import contextlib
import errno
import functools
import gc
import json
import logging
import os
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import supervise
from supervise import DefaultLogsSpecs, LogsDest, LogsSpecs, Start, Std, Supervisor, Wait
from supervise._files import make_ready, open_to_append
from supervise._process.launch.program import Streams
from supervise.cli.run.directory import EventFile
from tests.cli.command import Command
from tests.patience import PATIENCE_S
from tests.processes import work
from tests.processes.gangs import each_kind, faulty

PACKAGE = Path(supervise.__file__).parent
SECRET = "hunter2-of-the-host"
OTHER = "hunter2-of-the-rank"


def modes(folder: Path) -> dict[str, str]:
    """Return the permissions of all that is in a folder."""
    return {str(path.relative_to(folder)): oct(stat.S_IMODE(path.stat().st_mode)) for path in folder.rglob("*")}


@pytest.fixture(params=[0, 0o022], ids=["umask 0", "umask 022"])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@each_kind
@pytest.mark.usefixtures("umask")
def test_all_that_a_gang_makes_is_private_and_what_was_there_keeps_its_mode(tmp_path, kind):
    """Folders 0700 and files 0600, also the error file that the rank writes and what an earlier run left."""
    logs = tmp_path / "given"
    logs.mkdir()
    logs.chmod(0o755)
    source = "print('shown'); sys.stdout.flush(); raise ValueError('recorded')\n"
    specs = DefaultLogsSpecs(str(logs / "deep" / "er"), redirects=Std.ALL, tee=Std.ALL)
    for _ in range(2):  # the second moves the first's files aside
        more: dict[str, Any] = {"logs_specs": specs, "duplicate_stdout_filters": ["shown"]}
        with faulty(tmp_path, kind, [source], **more) as gang:
            gang.wait()
    found = modes(logs)
    folders = {name for name in found if (logs / name).is_dir()}
    names = {name.rpartition("/")[2] for name in found.keys() - folders}
    assert names >= {"stdout.log", "stderr.log", "filtered_stdout.log", "stdout.log.1"}
    assert kind == "binary" or "error.json" in names
    assert {found[name] for name in folders} == {"0o700"}
    assert {found[name] for name in found.keys() - folders} == {"0o600"}
    assert stat.S_IMODE(logs.stat().st_mode) == 0o755


@pytest.mark.usefixtures("umask")
def test_the_run_directory_of_the_command_is_private(tmp_path):
    done = Command(tmp_path).run("--log-dir", str(tmp_path / "logs"), "-n", "2", "sh", "-c", "echo here; exit 3")
    assert done.returncode == 3
    found = modes(tmp_path / "logs")
    files = {name for name in found if (tmp_path / "logs" / name).is_file()}
    assert {name.rpartition("/")[2] for name in files} >= {"events.jsonl", "result.json", "stdout.log", "stderr.log"}
    assert {found[name] for name in files} == {"0o600"}
    assert {found[name] for name in found.keys() - files} == {"0o700"}
    assert stat.S_IMODE((tmp_path / "logs").stat().st_mode) == 0o700


# Links


class Layout(LogsSpecs):
    """Files in a folder that others can write to."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    @property
    def root_log_dir(self) -> str:
        return str(self._folder)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        here = self._folder
        for rank, env in envs.items():
            env["TORCHELASTIC_ERROR_FILE"] = f"{here}/error{rank}.json"
        return LogsDest(
            stdouts={rank: f"{here}/out{rank}" for rank in envs},
            stderrs={rank: f"{here}/err{rank}" for rank in envs},
            tee_stdouts={rank: f"{here}/out{rank}" for rank in envs},
            error_files={rank: f"{here}/error{rank}.json" for rank in envs},
            filtered_stdout=f"{here}/filtered",
        )


def start(kind: str, specs: LogsSpecs, **more: Any) -> None:
    """Start two ranks that leave a word."""
    entrypoint: Any = "/bin/echo" if kind == "binary" else work.double
    if kind != "binary":
        more["start_method"] = kind
    gang = Supervisor.start(name="s", entrypoint=entrypoint, args={0: (1,), 1: (1,)}, logs_specs=specs, **more)
    try:
        gang.ask(Start(), timeout=PATIENCE_S)
        gang.ask(Wait(), timeout=PATIENCE_S)
    finally:
        gang.stop(timeout=PATIENCE_S)


@each_kind
@pytest.mark.usefixtures("no_launch")
@pytest.mark.parametrize("victim", ["full", "empty", "missing"])
@pytest.mark.parametrize("name", ["out1", "err1", "error1.json", "filtered"])
def test_a_link_planted_for_a_file_of_ours_is_an_error_and_its_target_stays_as_it_is(tmp_path, kind, name, victim):
    """The error names the link; no process was started, and what it leads to was neither made, emptied nor written."""
    target, logs = tmp_path / "victim", tmp_path / "logs"
    if victim != "missing":
        target.write_text("precious" if victim == "full" else "")
    before = target.stat().st_mtime_ns if target.exists() else None
    logs.mkdir(0o777)
    (logs / name).symlink_to(target)
    with pytest.raises(OSError, match="symbolic link") as caught:
        start(kind, Layout(logs), duplicate_stdout_filters=["x"])
    assert (caught.value.errno, caught.value.filename) == (errno.ELOOP, str(logs / name))
    assert (target.stat().st_mtime_ns if target.exists() else None) == before
    assert victim != "full" or target.read_text() == "precious"
    assert (logs / name).is_symlink()


@pytest.mark.usefixtures("no_launch")
@pytest.mark.parametrize("place", ["rank", "attempt"])
def test_a_link_planted_for_a_folder_of_ours_is_an_error(tmp_path, place):
    """Between two starts with the same specs: nothing is made behind it."""
    specs, elsewhere = DefaultLogsSpecs(str(tmp_path / "logs"), Std.ALL), tmp_path / "elsewhere"
    elsewhere.mkdir()
    rank = Path(specs.reify({0: {}, 1: {}}).stdouts[1]).parent
    planted = rank if place == "rank" else rank.parent
    planted.rename(tmp_path / "away")
    planted.symlink_to(elsewhere)
    with pytest.raises(NotADirectoryError, match=f"{planted} is a symbolic link in place of a folder of supervise"):
        start("binary", specs)
    assert not list(elsewhere.iterdir())


@each_kind
def test_a_log_dir_that_is_a_link_to_a_folder_is_used(tmp_path, kind):
    (tmp_path / "real").mkdir()
    (tmp_path / "logs").symlink_to(tmp_path / "real")
    start(kind, DefaultLogsSpecs(str(tmp_path / "logs"), Std.ALL))
    assert len(list((tmp_path / "real").rglob("stdout.log"))) == 2


@pytest.mark.usefixtures("no_launch")
@pytest.mark.parametrize("target", ["nowhere", "itself", "file"])
def test_l8_a_log_dir_that_is_a_link_to_no_folder_is_a_clear_error(tmp_path, target):
    logs = tmp_path / "logs"
    (tmp_path / "file").touch()
    logs.symlink_to(logs if target == "itself" else tmp_path / target)
    with pytest.raises(NotADirectoryError, match=f"log_dir: {logs} is a") as caught:
        start("binary", DefaultLogsSpecs(str(logs), Std.ALL))
    assert target == "file" or str(caught.value).endswith("is a symbolic link that cannot be resolved")
    assert not (tmp_path / "nowhere").exists()


def test_a_link_that_is_planted_after_the_files_were_made_is_not_written_through(tmp_path):
    """The launch opens them once more, and looks again."""
    (tmp_path / "victim").write_text("precious")
    log = tmp_path / "out"
    make_ready(LogsDest(stdouts={0: str(log)}))
    log.unlink()
    log.symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic link"):
        Streams(str(log)).open()
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_link_to_a_device_and_the_systems_own_are_followed(tmp_path):
    (tmp_path / "null").symlink_to(os.devnull)
    for path in (str(tmp_path / "null"), os.devnull, "/dev/stderr"):
        os.close(open_to_append(path))
    with pytest.raises(FileNotFoundError):
        open_to_append("/proc/self/fd/987654")
    victim = tmp_path / "events.jsonl"
    victim.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        EventFile().open(str(tmp_path))
    assert not (tmp_path / "elsewhere").exists()


# Folders that cannot be made


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Yield a folder on a disk that takes no more entries; skip where we may not mount one."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=2", "none", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("we may not mount a small disk here")
    try:
        (folder / "there").mkdir()
        yield folder / "there"
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_l8_a_disk_that_is_full_when_a_folder_is_made_is_a_clear_error(tmp_path):
    """It names the folder, and nothing was started."""
    with small_disk(tmp_path) as there, pytest.raises(OSError, match="No space left") as caught:
        start("binary", DefaultLogsSpecs(str(there), Std.ALL))
    assert caught.value.errno == errno.ENOSPC
    assert str(caught.value.filename).startswith(str(there))


@pytest.mark.usefixtures("no_launch")
def test_l8_a_folder_that_is_closed_to_us_between_two_starts_is_a_clear_error(monkeypatch):
    """As another user than root: the error names what cannot be made."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        try:
            specs = DefaultLogsSpecs(f"{folder}/logs", Std.ALL)
            attempt = Path(specs.reify({0: {}}).stdouts[0]).parents[1]
            attempt.chmod(0o500)
            with pytest.raises(PermissionError) as caught:
                start("binary", specs)
            assert caught.value.filename == f"{attempt}/1"
        finally:
            if root:
                os.seteuid(0)


# Secrets


@each_kind
def test_no_value_of_an_environment_is_in_what_we_say(tmp_path, kind, monkeypatch, caplog):
    """Events, logs, results, error files and their texts, of a run that fails; neither the host's nor the rank's."""
    monkeypatch.setenv("SECRET", SECRET)
    source = "assert len(os.environ['SECRET'] + os.environ['OTHER']) > 20\nraise ValueError('recorded')\n"
    events: list[dict[str, Any]] = []
    with (
        caplog.at_level(logging.DEBUG),
        faulty(tmp_path, kind, [source], envs={0: {"OTHER": OTHER}}, event_sink=events.append) as gang,
    ):
        result = gang.wait()
        actor = gang.supervisor._actor_weakref()
        told = [repr(events), caplog.text, repr(result), repr(actor._runner.attempt), repr(gang.supervisor), str(actor)]
        told += [repr(launcher) for launcher in actor._runner.attempt.launchers]
        del actor
    assert result.failures[0].exitcode == 1
    assert any("supervise.gang.finished" in text for text in told)
    told += [path.read_text() for path in (tmp_path / "logs").rglob("*") if path.is_file()]
    assert not [text for text in told if SECRET in text or OTHER in text]


def start_one(entrypoint: Any, env: dict[str, str]) -> None:
    gang = Supervisor.start(name="s", entrypoint=entrypoint, args={0: ()}, envs={0: env})
    try:
        gang.ask(Start(), timeout=PATIENCE_S)
    finally:
        gang.stop(timeout=PATIENCE_S)


@pytest.mark.parametrize("kind", ["binary", "spawn"])
def test_no_value_of_an_environment_is_in_an_error_of_the_start(kind, monkeypatch):
    """What cannot be started, pickled or set says which variable or argument, and no value of the environment."""
    monkeypatch.setenv("SECRET", SECRET)
    entrypoint: Any = "/not/there" if kind == "binary" else threading.Lock().acquire
    for env in ({"OTHER": OTHER}, {"OTHER": f"{OTHER}\0"}):
        with pytest.raises((OSError, supervise.SpecError)) as caught:
            start_one(entrypoint, env)
        assert SECRET not in str(caught.value) + repr(caught.value)
        assert OTHER not in str(caught.value) + repr(caught.value)


def test_no_value_of_an_environment_is_in_what_the_command_says(tmp_path):
    """On the console, in events.jsonl and in result.json of a rank that fails with an exception."""
    rank = "import os; assert os.environ['SECRET']; raise ValueError('said')"
    done = Command(tmp_path).run("--log-dir", str(tmp_path / "logs"), sys.executable, "-c", rank, SECRET=SECRET)
    assert done.returncode == 1
    files = [path.read_text() for path in (tmp_path / "logs").rglob("*") if path.is_file()]
    assert len(files) >= 4
    assert "ValueError: said" in done.stderr
    assert not [text for text in (done.stdout, done.stderr, *files) if SECRET in text]
    [events] = (tmp_path / "logs").glob("*/events.jsonl")
    assert "env" not in {key for line in events.read_text().splitlines() for key in json.loads(line)}


# What the package never does

UNPICKLES = {
    "_process/launch/bootstrap.py": "in a worker: what its host has pickled for it, from a file without a name",
    "_process/launch/bootstrap_call.py": "the same",
    "_process/launch/bootstrap_spawn.py": "the same, in a worker that was spawned",
    "_process/launch/return_value.py": "what a worker that we started has written into a file without a name",
    "pytest_plugin/_rank.py": "in a spawned rank: the options of the pytest that has started it",
    "ray/calls.py": "in a rank: what its driver has pickled; on the driver: what its ranks have returned",
    "multiprocessing/spawn.py": "PyTorch's error files, where the caller has made the processes and names the files",
}


@functools.cache
def sources() -> list[tuple[Path, ast.Module]]:
    """Parse all files of the package, once for all tests: it takes seconds of a busy machine."""
    return [(path, ast.parse(path.read_text())) for path in sorted(PACKAGE.rglob("*.py"))]


def calls(*names: str) -> Iterator[tuple[str, ast.Call]]:
    """Find the calls in the package of functions or methods with one of these names."""
    for path, tree in sources():
        for node in ast.walk(tree):
            called = getattr(node, "func", None)
            if isinstance(node, ast.Call) and (getattr(called, "attr", None) or getattr(called, "id", None)) in names:
                yield str(path.relative_to(PACKAGE)), node


@pytest.mark.timeout(4 * PATIENCE_S)  # it parses all files, and machines are busy
def test_nothing_is_unpickled_but_what_a_worker_or_its_host_has_written():
    """Only where it is listed, with the reason."""
    found = {path for path, call in calls("load", "loads", "Unpickler") if "pickle" in ast.unparse(call).lower()}
    assert found == UNPICKLES.keys()


@pytest.mark.timeout(4 * PATIENCE_S)  # it parses all files, and machines are busy
def test_no_shell_reads_what_a_user_has_written():
    """No ``shell=True``, no `system`; the scripts that a launch gives to ``sh -c`` are constants.

    `_record` compiles constructors of named tuples, from their number of fields.
    """
    assert not list(calls("system", "popen", "getoutput", "getstatusoutput", "create_subprocess_shell"))
    assert [path for path, _ in calls("eval")] == ["_record.py"]
    runs = calls("Popen", "run", "call", "check_call", "check_output")
    assert not [path for path, call in runs if any(keyword.arg == "shell" for keyword in call.keywords)]
    for path, tree in sources():
        constants = {
            target.id
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.List) and [getattr(e, "value", None) for e in node.elts[:1]] == ["/bin/sh"]:
                script = node.elts[2]
                assert isinstance(script, ast.Constant) or ast.unparse(script) in constants, path


ATTACKER = r"""
import os, re, resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
held = {}
def take(name, kind=socket.SOCK_DGRAM):
    end = held[name] = socket.socket(socket.AF_UNIX, kind)
    try:
        end.bind("\0" + name)
    except OSError:
        end.close()
print(flush=True)
for _ in sys.stdin:
    with open("/proc/net/unix") as file:
        seen = [line.split(" @")[1].strip() for line in file if " @supervise/" in line]
    seen = set(seen).difference(held)
    for name in seen:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.sendto(b"READY=1\nSTATUS=of another user", "\0" + name)
        numbers = list(re.finditer(r"(?<=/)\d+(?=/|$)", name))
        for found in numbers:
            for number in range(20):
                take(name[: found.start()] + str(number) + name[found.end() :])
        for rank in range(4):
            for life in range(20):
                take(re.sub(r"(/\d+)*$", f"/{rank}/{life}", name, count=1))
    print(len(seen), flush=True)
"""
"""Another user, who binds every name that the names of this moment suggest, once for each line of stdin."""

BESIDE_ATTACKER = (
    "import os, subprocess, sys\nsys.path.insert(0, {root!r})\nfrom supervise import *\n"
    "attacker = subprocess.Popen([sys.executable, '-c', {attacker!r}], stdin=-1, stdout=-1, text=True)\n"
    "attacker.stdout.readline()\n"
    "def attack():\n    attacker.stdin.write('\\n')\n    attacker.stdin.flush()\n"
    "    assert attacker.stdout.readline() == '2\\n'\n"
    "source = 'import signal, supervise; supervise.notify(ready=True, status=\"of the rank\"); signal.pause()'\n"
    "gang = Supervisor.start(name='g', entrypoint=sys.executable, args={{0: ('-c', source), 1: ('-c', source)}},\n"
    "    ready='notify', strategy='one_for_one', restart_policy=RestartPolicy(9), rank_variables=True)\n"
)


CHOICES = """
import os, sys
sys.path.insert(0, {root!r})
from supervise import Start, Supervisor, Wait

def port():
    with open("/proc/net/unix") as file:
        assert not any(os.environ["MASTER_PORT"] in line.partition("@")[2] for line in file)
    return os.environ["MASTER_PORT"]

with open("/proc/sys/net/ipv4/ip_local_port_range", "w") as file:
    file.write("50000 50099")
settings = {{"entrypoint": port, "args": {{0: ()}}, "start_method": "fork", "rank_variables": True}}
gangs = [Supervisor.start(name="g", **settings) for _ in range(30)]
ports = []
for gang in gangs:
    gang.ask(Start())
    ports += gang.ask(Wait()).return_values.values()
    gang.stop()
print(len({{*ports}}))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a network namespace")
@pytest.mark.parametrize("planted", ["nothing", "a folder of another user", "an open folder", "a link", "a file"])
def test_t1_gangs_that_have_not_started_yet_choose_different_ports_that_no_name_tells(tmp_path, planted):
    """Their claims are files in a private folder, which disappears; without it, they choose ports that look free."""
    folder = tmp_path / f".supervise-{os.geteuid()}"
    if planted == "a link":
        folder.symlink_to("/etc")
    elif planted == "a file":
        folder.touch()
    elif planted != "nothing":
        folder.mkdir(mode=0o700)
        os.chown(folder, *(65534, 65534) if planted == "a folder of another user" else (-1, -1))
        folder.chmod(0o777 if planted == "an open folder" else 0o700)
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", CHOICES.format(root=str(PACKAGE.parent))],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    if planted == "nothing":
        assert done.stdout == "30\n"
        assert list(tmp_path.iterdir()) == []
    else:
        assert folder.is_symlink() or folder.is_file() or list(folder.iterdir()) == []


def test_a_gang_that_is_refused_leaves_no_claim_of_a_port(tmp_path, monkeypatch):
    """The file is removed with the last reference to the gang."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(supervise.SpecError, match="argument"):
        Supervisor.start(name="g", entrypoint="true", args={0: ("x" * 3_000_000,)}, rank_variables=True)
    gc.collect()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user, in a network namespace of its own")
def test_t1_another_user_who_binds_all_names_that_can_be_guessed_prevents_no_start_and_no_restart():
    """Names that this user can read in /proc/net/unix tell nothing of the next ones."""
    source = BESIDE_ATTACKER.format(root=str(PACKAGE.parent), attacker=ATTACKER) + (
        "gang.ask(Start())\n"
        "for _ in range(3):\n    attack()\n    gang.ask(RestartRanks(frozenset((0, 1))))\n"
        "attack()\n"
        "for row in gang.ask(Status()).ranks.values():\n    assert row.status == 'of the rank', row\n"
        "gang.ask(Close())\nattacker.stdin.close()\nprint(attacker.wait())\n"
    )
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", source],
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=2 * PATIENCE_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
