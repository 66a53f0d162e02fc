"""What cannot be started is refused at once, by name: in Python and by `supervise run`."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from supervise import SpecError, Supervisor, start_processes
from tests.processes import work
from tests.processes.gangs import each_kind
from tests.processes.hosts import NO_FILES, ROOT, Host

TOO_MANY = 5_000_000
"""More than Linux can have numbers for processes."""
RUN = (sys.executable, "-m", "supervise", "run")


class Many(Mapping):
    """So many ranks, none of which may be looked at."""

    def __len__(self):
        return TOO_MANY

    def __iter__(self):
        raise AssertionError("each of them is looked at")

    def __getitem__(self, rank):
        raise AssertionError(f"rank {rank} is looked at")


def refused(*command, **more):
    """Return what `supervise run` says as it refuses."""
    done = subprocess.run(
        command,
        check=False,
        env={**os.environ, "PYTHONPATH": ROOT},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=40,
        **more,
    )
    assert (done.returncode, done.stdout) == (2, ""), done
    assert "Traceback" not in done.stderr
    return done.stderr


@each_kind
def test_a_gang_of_no_ranks_is_refused(kind):
    """It would succeed with nothing done."""
    entrypoint, how = ("true", {}) if kind == "binary" else (work.double, {"start_method": kind})
    with pytest.raises(SpecError, match="args is empty, so there is no rank to start"):
        Supervisor.start(name="none", entrypoint=entrypoint, args={}, logs_specs=NO_FILES, **how)
    with pytest.raises(SpecError, match="args is empty"):
        start_processes("none", entrypoint, {}, {}, logs_specs=NO_FILES, **how)


def test_more_ranks_than_there_can_be_processes_are_refused():
    """Before anything is made for each of them."""
    with pytest.raises(SpecError, match=f"^{TOO_MANY} ranks"):
        Supervisor.start(name="many", entrypoint="true", args=Many(), logs_specs=NO_FILES)


def test_more_ranks_than_there_can_be_processes_are_refused_by_the_command(tmp_path):
    """Nothing is left in the folder for logs."""
    said = refused(*RUN, "-n", str(TOO_MANY), "--log-dir", str(tmp_path / "logs"), "true")
    assert f"{TOO_MANY} ranks" in said
    assert not (tmp_path / "logs").exists()


IN_A_DELETED_FOLDER = """
from supervise import SpecError
from tests.processes import work
from tests.processes.hosts import NO_FILES

import multiprocessing.util, socket  # Python 3.13.0 cannot import them where the working directory is gone
os.chdir(ear)
os.rmdir(ear)
how = {"entrypoint": "true"} if kind == "binary" else {"entrypoint": work.double, "start_method": kind}
for more in ({}, {"cwd": "/"}):
    try:
        args = {0: () if kind == "binary" else (1,)}
        gang = Supervisor.start(name="g", args=args, logs_specs=NO_FILES, **how, **more)
    except SpecError as error:
        print(error, flush=True)
        continue
    gang.ask(Start(), timeout=40)
    print(gang.ask(Wait(), timeout=40).outcome, flush=True)
    gang.stop(timeout=40)
"""


@each_kind
def test_a_working_directory_that_was_deleted_is_named(tmp_path, kind):
    """Where another one is given, it matters only to a function that must know where its host is."""
    (tmp_path / "gone").mkdir()
    with Host(IN_A_DELETED_FOLDER, kind, str(tmp_path / "gone")) as host:
        assert host.hear() == "the working directory of this process has been deleted; go to another one first"
        there = host.hear()
        assert host.exit_code() == 0
    assert there == "succeeded" if kind in {"binary", "fork"} else "has been deleted" in there


def test_a_working_directory_that_was_deleted_is_named_by_the_command(tmp_path):
    """And not a file of ours that cannot be found."""
    (tmp_path / "gone").mkdir()
    words = ("sh", "-c", f'cd {tmp_path / "gone"} && rmdir {tmp_path / "gone"} && exec "$@"', "sh")
    assert "the working directory of this process has been deleted" in refused(*words, *RUN, "-n", "2", "true")


@pytest.fixture
def _apart():
    """Skip where no namespace of mounts can be made."""
    apart = ["unshare", "--mount", "umount", "-l", "/proc"]
    if shutil.which("unshare") is None or subprocess.run(apart, check=False, stderr=-3).returncode:
        pytest.skip("no namespace of mounts can be made here")


NO_PROC = ("unshare", "--mount", "sh", "-c", 'umount -l /proc && exec "$@"', "sh")
REFUSED = """
import sys
from supervise import DefaultLogsSpecs, SpecError, Supervisor
try:
    Supervisor.start(name="g", entrypoint="true", args={0: ()})
except SpecError as error:
    sys.exit(f"{error}")
"""


@pytest.mark.usefixtures("_apart")
def test_a_proc_that_is_not_mounted_is_named():
    """And not a file in it."""
    done = subprocess.run(
        [*NO_PROC, sys.executable, "-c", REFUSED],
        check=False,
        cwd=Path(ROOT),
        capture_output=True,
        text=True,
        timeout=40,
    )
    assert done.stderr == "/proc is not mounted, which every start needs; mount it with: mount -t proc proc /proc\n"
    assert "/proc is not mounted" in refused(*NO_PROC, *RUN, "-n", "2", "true")


@pytest.mark.usefixtures("_apart")
def test_a_null_device_that_is_missing_is_named():
    """And the program is not blamed."""
    empty = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /dev && exec "$@"', "sh")
    assert "/dev/null does not exist, which every start needs; make it with: " in refused(*empty, *RUN, "true")


def test_a_proc_of_another_pid_namespace_is_named():
    """In it, other processes have the numbers of those of the gang."""
    apart = ("unshare", "--pid", "--fork", "--kill-child")
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], check=False, stderr=-3).returncode:
        pytest.skip("no pid namespace can be made here")
    assert "/proc shows the processes of another PID namespace; mount that " in refused(*apart, *RUN, "-n", "2", "true")
