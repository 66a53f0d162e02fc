"""Without memory files: what travels does so in temporary files, which nobody else sees."""

import os
import tempfile
from pathlib import Path

import pytest

from supervise import SpawnError, Start
from supervise._process import platform
from supervise._process.files import file_of
from tests.processes.gangs import PATIENCE_S, each_function, faulty
from tests.processes.hosts import Host, make_gang, watched

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def folder(monkeypatch):
    """Where temporary files are made: at a short path, since a fork server's socket is made there, too."""
    with tempfile.TemporaryDirectory() as where:
        monkeypatch.setattr(platform, "MEMFD", False)
        monkeypatch.setattr(tempfile, "tempdir", where)
        yield Path(where)


def test_the_files_are_private_and_have_no_path(folder):
    """They are the user's alone, at their start, and gone with their last descriptor."""
    fd = file_of("supervise-test", b"one", b"two")
    try:
        found = os.fstat(fd)
        assert (found.st_nlink, found.st_mode & 0o777, found.st_uid) == (0, 0o600, os.getuid())
        assert Path(f"/proc/self/fd/{fd}").stat().st_ino == found.st_ino
        assert str(Path(f"/proc/self/fd/{fd}").readlink()).startswith(f"{folder}/supervise-test-")
        assert not os.get_inheritable(fd)
        assert os.read(fd, 10) == b"onetwo"
        assert list(folder.iterdir()) == []
    finally:
        os.close(fd)


@each_function
def test_a_gang_leaves_nothing_in_the_folder_not_even_while_it_runs(tmp_path, folder, kind):
    """Arguments, outcomes and values are in files without a path, and arrive."""
    source = "wait_for_word()\nvalue = bytes(1 << 20)\n"
    with faulty(tmp_path, kind, [source] * 2) as gang:
        assert list(folder.iterdir()) == []
        gang.tell(0)
        gang.tell(1)
        assert gang.wait().return_values == {0: bytes(1 << 20), 1: bytes(1 << 20)}
    assert list(folder.iterdir()) == []


def test_a_host_that_is_killed_leaves_nothing_in_the_folder(folder, monkeypatch):
    """Though its ranks have not answered yet."""
    monkeypatch.setenv("SUPERVISE_WITHOUT", "memfd")
    monkeypatch.setenv("TMPDIR", str(folder))
    program = "print(*start_gang(kind, ['signal.pause()'] * 3).ask(Pids()).values(), flush=True)\nsignal.pause()"
    with Host(program, "spawn", os.devnull) as host, watched([int(pid) for pid in host.hear().split()]) as watch:
        host.kill()
        assert watch.survivors(5.0) == set()
    assert list(folder.iterdir()) == []


FULL = """
import resource
from supervise import DefaultLogsSpecs
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, hard))
gang = make_gang(kind, ["pass", {second}], logs_specs=DefaultLogsSpecs(ear))
try:
    print(gang.ask(Start(), timeout=20) and gang.ask(Wait(), timeout=20).failures[1].message)
except OSError as error:
    print(error)
gang.stop(timeout=20)
"""


@pytest.mark.parametrize("kind", ["spawn", "forkserver"])
def test_arguments_for_which_there_is_no_room_fail_the_start(tmp_path, folder, monkeypatch, kind):
    """The error names the rank, the cause and the folder. A limit of the files' size stands for a full disk."""
    monkeypatch.setenv("SUPERVISE_WITHOUT", "memfd")
    monkeypatch.setenv("TMPDIR", str(folder))
    with Host(FULL.format(second="'#' * 100_000"), kind, str(tmp_path / "logs")) as host:
        assert host.hear() == f"[Errno 27] rank 1 could not be started: File too large: '{folder}'"
        assert host.exit_code() == 0


@pytest.mark.parametrize("kind", ["spawn", "forkserver", "fork"])
def test_a_value_for_which_there_is_no_room_is_a_failure(tmp_path, folder, monkeypatch, kind):
    """Which says what is the matter."""
    monkeypatch.setenv("SUPERVISE_WITHOUT", "memfd")
    monkeypatch.setenv("TMPDIR", str(folder))
    with Host(FULL.format(second="'value = bytes(100_000)'"), kind, str(tmp_path / "logs")) as host:
        assert host.hear().startswith("{'message': 'OSError: [Errno 27] File too large'")
        assert host.exit_code() == 0


def test_no_folder_for_temporary_files_fails_the_start(tmp_path, monkeypatch):
    """There is none that can be written to."""
    monkeypatch.setattr(platform, "MEMFD", False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    gang = make_gang("spawn", ["pass"])
    with pytest.raises((FileNotFoundError, SpawnError), match="rank 0 could not be started: No such file"):
        gang.ask(Start(), timeout=PATIENCE_S)
    gang.stop(timeout=PATIENCE_S)
