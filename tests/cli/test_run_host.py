"""Whether a run still goes on, by its process or its lock: `supervise clean` must never remove such a run."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import HANG, SUPERVISE, Command, Started
from tests.cli.test_reaping import AS_PID_1
from tests.cli.test_run_commands import until

RUN = ("run", "--run-id", "job", "sh", "-c", f"echo up; {HANG}")
WITHOUT_LOCKS = (
    *(sys.executable, "-c"),
    "import fcntl; del fcntl.F_OFD_SETLK; from supervise.cli import main; raise SystemExit(main())",
)
"""As on a file system, or another system, that has no such locks."""


@contextmanager
def going_on(supervise: Command, *program: str) -> Iterator[Started]:
    """Start a run that says when it has begun; it is gone afterwards."""
    with supervise.started_command(*RUN, program=program) as run:
        run.hear()
        yield run


def state(supervise: Command) -> str:
    """Return the state of the only run."""
    found = supervise.supervise("ls", "--json")
    assert (found.returncode, found.stderr) == (0, "")
    return str(json.loads(found.stdout)["state"])


def change(supervise: Command, **values: Any) -> None:
    """Change the ``run.json`` of the only run."""
    path = supervise.directory() / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_without_a_lock_the_process_tells(supervise: Command):
    """Process ID and start time: a later process that has the same ID is another one."""
    with going_on(supervise, *WITHOUT_LOCKS) as run:
        assert json.loads((supervise.directory() / "run.json").read_text())["locked"] is False
        assert state(supervise) == "running"
        assert supervise.supervise("clean", "--all").stdout == "0 runs removed, 0 B\n"
        change(supervise, started_ticks=1)
        assert state(supervise) == "killed"
        change(supervise, started_ticks=None)
        assert state(supervise) == "running"
        run.signal(signal.SIGKILL)
        os.waitid(os.P_PID, run.process.pid, os.WEXITED | os.WNOWAIT)  # a zombie has ended as well
        change(supervise, started_ticks=7)
        assert state(supervise) == "killed"
    assert "1 run removed" in supervise.supervise("clean", "--all").stdout


def test_the_lock_tells_of_another_pid_namespace(supervise: Command):
    """A container on this machine: its process IDs mean nothing outside."""
    if shutil.which("unshare") is None or subprocess.run([*AS_PID_1, "true"], check=False, stderr=-3).returncode:
        pytest.skip("no pid namespace can be made here")
    with going_on(supervise, *AS_PID_1[:2], "--kill-child", *AS_PID_1[2:], *SUPERVISE):
        info = json.loads((supervise.directory() / "run.json").read_text())
        assert (info["locked"], info["pid"]) == (True, 1)
        assert state(supervise) == "running"
        change(supervise, host_name="a-container")
        assert state(supervise) == "running"
        assert "0 runs removed" in supervise.supervise("clean", "--all").stdout
    until(lambda: state(supervise) == "killed")  # the kernel kills the namespace after the end of `unshare`


def test_a_run_of_another_host_without_a_result_is_kept(supervise: Command):
    """In a shared home, whose locks may be of one host only: nothing here tells that it has ended."""
    with going_on(supervise, *SUPERVISE) as run:
        until(lambda: "process.started" in (supervise.directory() / "events.jsonl").read_text())
        run.signal(signal.SIGKILL)
    assert state(supervise) == "killed"
    change(supervise, boot_id="another", host_name="elsewhere")
    assert state(supervise) == "unknown"
    cleaned = supervise.supervise("clean", "--all").stdout
    name = supervise.directory().name
    assert cleaned == (
        f"kept {name}: it may still run on host elsewhere; use supervise clean there, or rm -r\n0 runs removed, 0 B\n"
    )
    shown = supervise.supervise("show", "job").stdout
    assert "\nsupervise may still run on host elsewhere. The last that is known:\n  rank 0: running\n" in shown
    change(supervise, host_name=os.uname().nodename)
    assert state(supervise) == "killed"  # this host has been booted since


def test_a_run_of_another_host_with_a_result_is_over(supervise: Command):
    """Its result says so."""
    supervise.run("--run-id", "job", "true")
    change(supervise, boot_id="another", host_name="elsewhere")
    assert state(supervise) == "succeeded"
    assert "1 run removed" in supervise.supervise("clean", "--all").stdout


@pytest.mark.parametrize(
    "values",
    [
        {"pid": -1},
        {"pid": 10**30},
        {"pid": "x"},
        {"pid": None, "locked": "yes"},
        {"boot_id": 3, "host_name": [], "pid_namespace": {}},
    ],
    ids=str,
)
def test_a_run_json_with_wrong_values_is_no_error(supervise: Command, values: dict[str, Any]):
    """A rank can write what it wants there; what cannot be known is not removed."""
    with going_on(supervise, *SUPERVISE) as run:
        change(supervise, **values)
        assert state(supervise) == "running"
        run.signal(signal.SIGKILL)
        run.process.wait()
    assert state(supervise) in ("killed", "unknown")


@pytest.mark.parametrize("words", [("ls",), ("clean",), ("show", "job"), ("logs", "job")], ids=" ".join)
def test_a_runs_folder_that_is_a_file(supervise: Command, tmp_path: Path, words: tuple[str, ...]):
    """One line, and no traceback."""
    file = tmp_path / "file"
    file.touch()
    done = supervise.supervise(*words, SUPERVISE_RUNS_DIR=str(file))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"supervise {words[0]}: {file}: is not a folder; set SUPERVISE_RUNS_DIR to one\n"
