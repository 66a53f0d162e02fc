"""The log directory is another user's, who renames folders and plants links: nothing outside of it is written."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervise import DefaultLogsSpecs, RestartPolicy, RunProcsResult, Std, SuperviseError, start_processes
from supervise._folders import open_folder
from supervise.recording import ErrorHandler
from tests.cli.command import Command
from tests.patience import PATIENCE_S
from tests.processes.gangs import each_kind, faulty

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
