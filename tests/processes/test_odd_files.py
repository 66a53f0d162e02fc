"""Odd files in the place of logs and error files, and folders of another user: all is bounded, and stays inside."""

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervise import DefaultLogsSpecs, RestartPolicy, RunProcsResult, Std, SuperviseError, start_processes
from supervise._files import last_lines, open_folder
from supervise.recording import ErrorHandler
from supervise.result import MOST_BYTES, ProcessFailure
from tests.cli.command import Command
from tests.patience import PATIENCE_S
from tests.processes.console import hosted
from tests.processes.gangs import each_kind, faulty

GIB = 1 << 30
RECORD = {"message": {"message": "E: m", "extraInfo": {"py_callstack": "tb", "timestamp": "7"}}}

ODD = {
    "sparse, 200 GiB": ("open(path, 'w').write('{}'); os.truncate(path, 200 << 30)", "it has more than 4 MiB"),
    "40 MB of JSON": ("open(path, 'w').write('[' + '1,' * 20_000_000 + '1]')", "it has more than 4 MiB"),
    "deep": ("open(path, 'w').write('[' * 500_000)", "it is nested too deeply"),
    "deeper than a record": ("open(path, 'w').write('[' * 100 + ']' * 100)", "it is nested too deeply"),
    "many values": ("open(path, 'w').write('[' + '1,' * 1_000_000 + '1]')", "it holds more than 10000 values"),
    "a huge number": (
        "open(path, 'w').write('{\"message\": \"m\", \"timestamp\": ' + '9' * 5000 + '}')",
        "Exceeds the limit",
    ),
    "a link": ("os.symlink('/etc/passwd', path)", "it is a symbolic link"),
    "a pipe": ("os.mkfifo(path)", None),
    "a folder": ("os.mkdir(path)", None),
}


@pytest.mark.parametrize("odd", ODD)
@each_kind
def test_p3_whatever_is_in_the_place_of_an_error_file_the_exit_code_stays(tmp_path, kind, odd):
    """And the failure says why nothing could be read, where there is a file at all."""
    make, problem = ODD[odd]
    source = f"path = os.environ['TORCHELASTIC_ERROR_FILE']\n{make}\nos._exit(3)"
    with faulty(tmp_path, kind, [source]) as gang:
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        [failure] = gang.wait().failures.values()
        after_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert failure.exitcode == 3
    assert after_kib - before_kib < 64 * 1024
    if problem is None:
        assert failure.error_file == "<N/A>"
    else:
        assert problem in str(failure.message)
    for path in tmp_path.glob("logs/*/*/0/error.json"):
        path.rmdir() if path.is_dir() else path.unlink()


@pytest.mark.parametrize("odd", ["sparse, 200 GiB", "deep", "a pipe"])
def test_p3_the_command_reports_it_too(tmp_path, odd):
    rank = f"import os; path = os.environ['TORCHELASTIC_ERROR_FILE']; {ODD[odd][0]}; os._exit(3)"
    done = Command(tmp_path).run("--log-dir", str(tmp_path / "logs"), "python3", "-c", rank)
    assert done.returncode == 3
    [result] = tmp_path.glob("logs/*/result.json")
    assert json.loads(result.read_text())["exit_code"] == 3


@pytest.mark.stress
def test_p3_400_mb_of_json(tmp_path):
    """As above; they took 1.2 GB."""
    source = """
with open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w') as file:
    file.write('[')
    for _ in range(400):
        file.write('1,' * 500_000)
    file.write('1]')
os._exit(3)
"""
    body = "[failure] = start().wait().failures.values(); report['said'] = [failure.exitcode, failure.message]"
    with hosted(tmp_path, "binary", [source], body=body + "; mark('over'); wait_for_word()") as host:
        host.out.until(b"<over>")
        assert host.rss_peak_kib() < 150 * 1024
        host.tell()
        host.finish()
    code, message = host.report["said"]
    assert code == 3
    assert "it has more than 4 MiB" in message
    for path in tmp_path.glob("logs/*/*/0/error.json"):
        path.unlink()


FLIPS = """
mkfifo pipe
printf '%s' "$1" > file
echo ready
while :; do ln -f pipe new; mv new error.json; ln -f file new; mv new error.json; done
"""


def test_p3_a_pipe_that_comes_between_a_look_and_the_open_is_not_waited_for(tmp_path):
    """Another process puts a pipe and a file there by turns, as fast as it can."""
    flips = ["sh", "-c", FLIPS, "sh", json.dumps(RECORD)]
    with subprocess.Popen(flips, cwd=tmp_path, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            path = str(tmp_path / "error.json")
            for _ in range(2000):
                ProcessFailure(0, 1, 3, path)
                last_lines(path)
        finally:
            process.kill()


@each_kind
@pytest.mark.parametrize("name", ["stdout.log", "stderr.log", "error.json"])
def test_p3_a_pipe_in_the_place_of_the_next_attempts_file_is_not_waited_for(tmp_path, kind, name):
    """A log is refused by name; a pipe for the error file is the rank's own business, and left alone."""
    source = f"""
folder = os.path.dirname(os.environ['TORCHELASTIC_ERROR_FILE']).replace('attempt_0', 'attempt_1')
if not os.path.exists(folder):
    os.makedirs(folder, 0o700)
    os.mkfifo(os.path.join(folder, '{name}'))
os._exit(3)
"""
    with faulty(tmp_path, kind, [source], restart_policy=RestartPolicy(max_restarts=1, backoff=0.0)) as gang:
        if name == "error.json":
            assert gang.wait().failures[0].exitcode == 3
        else:
            assert "a log cannot be written to" in str(gang.wait().failures[0].message)


@each_kind
def test_p3_a_log_that_a_pipe_has_replaced_is_not_waited_for(tmp_path, kind):
    """When the result asks for its last lines."""
    source = """
path = os.path.join(os.path.dirname(os.environ['TORCHELASTIC_ERROR_FILE']), 'stderr.log')
os.write(2, b'words')
os.unlink(path)
os.mkfifo(path)
open(os.open(path, os.O_RDWR), 'wb', buffering=0).write(b'x')
os._exit(3)
"""
    with faulty(tmp_path, kind, [source]) as gang:
        result = gang.wait()
    assert (result.failures[0].exitcode, result.ends[0].stderr_tail) == (3, "")


@each_kind
def test_p3_a_log_with_a_hole_of_200_gib_is_shown_without_the_hole(tmp_path, kind):
    """One event tells of it. The memory of the host stays what it was."""
    source = f"""
say('ready')
wait_for_word()
for number in (1, 2):
    os.write(number, b'before\\n')
    os.ftruncate(number, {200 * GIB})
    os.write(number, b'\\nafter\\n')
os._exit(3)
"""
    body = "result = start().wait(); report['code'] = result.failures[0].exitcode"
    with hosted(tmp_path, kind, [source], tee=3, body=body) as host:
        assert host.hear() == "ready"
        before_kib = host.rss_peak_kib()
        host.tell(0)
        host.err.until(b"after\n")
        assert host.rss_peak_kib() - before_kib < 32 * 1024
        host.finish()
    assert host.report["code"] == 3
    for shown in (host.out.data, host.err.data):
        lines = shown.replace(b"\0", b"").split(b"\n")
        assert [line for line in lines if line not in {b"", b"[w0]:"}] == [b"[w0]:before", b"[w0]:after"]
        assert len(shown) < 1 << 20
    assert {(e["log_iostream"], "hole" in e["error"]) for e in host.complaints} == {("stdout", True), ("stderr", True)}
    for path in Path(tmp_path).glob("logs/*/*/0/*.log"):
        path.unlink()


def test_p3_an_error_file_at_the_limit_is_read(tmp_path):
    path = tmp_path / "error.json"
    whole = json.dumps(RECORD)
    for size, is_read in ((MOST_BYTES, True), (MOST_BYTES + 1, False)):
        path.write_text(whole + " " * (size - len(whole)))
        failure = ProcessFailure(0, 1, 3, str(path))
        assert (failure.message == RECORD["message"]) is is_read
        assert failure.error_file == os.fspath(path)


OTHER = 54321
"""An ordinary user, who need not have a name."""

LINKED = """
mv logs/*_* logs/away
ln -s "$PWD/victim" "$(ls -d logs/away | sed "s,away,$RUN,")"
"""
TREE = """
mv logs/*_* logs/away
mkdir -p "logs/$RUN/attempt_0"
ln -s "$PWD/victim/attempt_0/0" "logs/$RUN/attempt_0/0"
ln -s "$PWD/victim/attempt_1" "logs/$RUN/attempt_1"
"""
FILES = """
mv logs/*_* logs/away
mkdir -p "logs/$RUN/attempt_0/0" "logs/$RUN/attempt_1/0"
for name in attempt_0/0/error.json attempt_1/0/error.json attempt_1/0/stderr.log attempt_1/0/stdout.log \\
        events.jsonl result.json result.json.new; do
    ln -s "$PWD/victim/precious" "logs/$RUN/$name"
done
"""
ATTACKS = {"a link for the run": LINKED, "links in a tree": TREE, "links for the files": FILES}

each_attack = pytest.mark.parametrize("attack", ATTACKS)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with ``logs``, which is another user's, and ``victim``, which is not."""
    if os.geteuid() != 0:
        pytest.skip("only root can be two users")
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        place = Path(name)
        place.chmod(0o755)
        (place / "logs").mkdir()
        os.chown(place / "logs", OTHER, OTHER)
        for folder in ("attempt_0/0", "attempt_1/0"):
            (place / "victim" / folder).mkdir(parents=True)
        (place / "victim/precious").write_text("precious")
        yield place


def strike(place: Path, attack: str) -> None:
    """Have the owner of the logs do that."""
    [run] = (place / "logs").iterdir()
    subprocess.run(
        ["sh", "-ec", ATTACKS[attack]],
        cwd=place,
        env={**os.environ, "RUN": run.name},
        user=OTHER,
        group=OTHER,
        extra_groups=[],
        check=True,
    )


def state(folder: Path) -> dict[str, str]:
    """Return what is there."""
    return {str(p.relative_to(folder)): p.read_text() if p.is_file() else "" for p in sorted(folder.rglob("*"))}


@each_kind
@each_attack
def test_p2_nothing_outside_of_a_log_directory_of_another_user_is_written(tmp_path, place, kind, attack):
    """A rank records an exception after the attack, and a restart makes the files of its attempt."""
    before = state(place / "victim")
    source = "say('ready'); wait_for_word()\n" + (RECORDS if kind == "binary" else "raise ValueError('recorded')")
    specs = DefaultLogsSpecs(str(place / "logs"), redirects=Std.ALL)
    policy = RestartPolicy(max_restarts=1, backoff=0.0)
    with faulty(tmp_path, kind, [source], logs_specs=specs, restart_policy=policy) as gang:
        gang.hear()
        strike(place, attack)
        gang.tell(0)
        try:
            result: RunProcsResult | None = gang.wait()
        except (OSError, SuperviseError):  # of the restart
            result = None
    assert result is None or result.is_failed()
    assert state(place / "victim") == before


RECORDS = f"""
import sys
sys.path[:0] = {sys.path!r}
from supervise.recording import record
record(lambda: int('no number'))()
"""


@each_attack
def test_p2_nor_does_the_command_write_outside_of_it(tmp_path, place, attack):
    before = state(place / "victim")
    words = ("--log-dir", str(place / "logs"), "sh", "-c", "echo ready; read -r _ < gate; exit 3")
    os.mkfifo(tmp_path / "gate")
    with Command(tmp_path).started(*words) as run:
        run.hear()
        strike(place, attack)
        with (tmp_path / "gate").open("w") as gate:
            gate.write("go\n")
        assert run.end()[0] == 3
    assert state(place / "victim") == before


def test_p2_a_foreign_owner_is_named(place, caplog):
    specs = DefaultLogsSpecs(str(place / "logs"), Std.ALL)
    assert f"log_dir {place}/logs belongs to another user (number {OTHER})" in caplog.text
    context = start_processes("w", "true", {0: ()}, {0: {}}, logs_specs=specs)
    assert context.wait(PATIENCE_S).outcome == "succeeded"
    context.close()


@pytest.mark.parametrize("own", [True, False], ids=["own", "foreign"])
def test_p2_only_links_of_our_own_are_followed_to_a_folder(place, own):
    """In the path of an error file, say; the caller's own choice of `log_dir` is followed once, and then fixed."""
    link = place / "logs/link"
    link.symlink_to(place / "victim")
    if not own:
        os.chown(link, OTHER, OTHER, follow_symlinks=False)
        with pytest.raises(OSError, match="symbolic link of another user") as caught:
            open_folder(f"{link}/attempt_0")
        assert caught.value.filename == f"{link}/attempt_0"
    else:
        fd = open_folder(f"{link}/attempt_0")
        assert os.path.samestat(os.fstat(fd), (place / "victim/attempt_0").stat())
        os.close(fd)
    made = Path(DefaultLogsSpecs(str(link), Std.ALL).reify({0: {}}).stdouts[0])
    assert made.is_relative_to(link if own else place / "victim")
    assert made.parent.is_dir()


def test_p2_a_folder_of_another_user_is_not_taken_for_an_attempts(place):
    specs = DefaultLogsSpecs(str(place / "logs"), Std.ALL)
    attempt = Path(specs.reify({0: {"TORCHELASTIC_RESTART_COUNT": "0"}}).stdouts[0]).parents[1]
    planted = attempt.with_name("attempt_1")
    planted.mkdir()
    os.chown(planted, OTHER, OTHER)
    with pytest.raises(PermissionError, match="folder of another user") as caught:
        specs.reify({0: {"TORCHELASTIC_RESTART_COUNT": "1"}})
    assert caught.value.filename == str(planted)
    os.chown(attempt, OTHER, OTHER)  # as a network's file system would have it from the beginning
    specs.reify({0: {"TORCHELASTIC_RESTART_COUNT": "0"}})


def test_p2_a_recorder_does_not_follow_a_foreign_link(place, monkeypatch):
    """Not even in a program without a gang: it warns, and the exception goes on."""
    link = place / "logs/link"
    link.symlink_to(place / "victim")
    os.chown(link, OTHER, OTHER, follow_symlinks=False)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", f"{link}/error.json")
    before = state(place / "victim")
    with pytest.warns(UserWarning, match="symbolic link of another user"):
        ErrorHandler().record_exception(ValueError("x"))
    assert state(place / "victim") == before


def test_the_last_lines_of_a_crash_begin_with_its_reason_and_its_place(tmp_path):
    """The dump of faulthandler has more lines than are shown, and what matters comes first."""
    log = tmp_path / "log"
    source = "import os\ndef fall(n):\n    fall(n - 1) if n else os.abort()\nprint('before', flush=True)\nfall(60)"
    crashes = [sys.executable, "-X", "faulthandler", "-c", source]
    with log.open("wb") as file:
        subprocess.run(crashes, cwd=tmp_path, stdout=file, stderr=file, check=False)
    lines = last_lines(str(log)).split("\n")
    assert len(lines) == 20
    assert lines[:3] == ["before", "Fatal Python error: Aborted", ""]
    assert lines[3].startswith("Current thread 0x")
    assert lines[4].endswith(", line 3 in fall")


def test_the_last_lines_of_a_log_are_not_its_blank_ones(tmp_path):
    log = tmp_path / "log"
    log.write_text("ERROR\n" + " \n" * 30)
    assert last_lines(str(log)) == "ERROR"
