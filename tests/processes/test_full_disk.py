"""A disk that is full under the files that ranks write themselves: one event, and the blame stays right."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.processes.full_disk import FILL, on_small_disk

ROOT = Path(__file__).parents[2]

HOST = """
import json, os, sys, supervise, work
def main():
    kind, listens, told, events = sys.argv[1], sys.argv[2] == "True", [], []
    args = {r: (name,) if kind != "binary" else ("work.py", name) for r, name in enumerate(sys.argv[3:])}
    gang = supervise.Supervisor.start(
        name="w",
        entrypoint=sys.executable if kind == "binary" else work.rank,
        args=args,
        envs={r: {"LOCAL_RANK": str(r), "PYTHONPATH": os.environ["PYTHONPATH"]} for r in args},
        logs_specs=supervise.DefaultLogsSpecs("logs", supervise.Std.ALL),
        event_sink=events.append if listens else None,
        **({} if kind == "binary" else {"start_method": kind}),
    )
    gang.ask(supervise.Start())
    result = gang.ask(supervise.Wait())
    gang.stop()
    found = {
        "outcome": result.outcome,
        "failures": {rank: [f.exitcode, str(f.message)] for rank, f in result.failures.items()},
        "events": [e for e in events if e["event"] == "supervise.log.failed"],
        "stdouts": result.stdouts,
    }
    print(json.dumps(found))
if __name__ == "__main__":
    main()
"""
WORK = f"""{FILL}
import atexit, os, supervise, sys, threading
def floods():
    try:
        while os.write(1, b"y" * 100_000):
            pass
    except OSError:
        pass
def quiet():
    pass
def raises():
    fill("logs")
    atexit.register(threading.Event().wait, 1000)  # an exit of its own that lasts until it is stopped
    atexit.register(lambda: open("raised", "w").close())
    raise ValueError("the first")
def victim():
    while not os.path.exists("raised"):
        threading.Event().wait(0.01)
    os._exit(7)
def rank(name):
    globals()[name]()
if __name__ == "__main__":
    supervise.record(rank)(sys.argv[1])
"""


def run(folder: Path, kind: str, *ranks: str, listens: bool = True) -> tuple[dict[str, Any], str]:
    """Run a gang whose logs are on a small disk; return what its host has found, and the host's stderr."""
    (folder / "logs").mkdir()
    (folder / "host.py").write_text(HOST)
    (folder / "work.py").write_text(WORK)
    done = subprocess.run(
        [*on_small_disk("logs"), sys.executable, "host.py", kind, str(listens), *ranks],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "PYTHONPATH": f"{ROOT}:{folder}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("kind", ["binary", "spawn"])
def test_l7_a_full_disk_under_a_ranks_own_log_is_one_event(tmp_path: Path, kind: str):
    """The rank, which writes into its file itself, ignores the error. The event names the file; the gang goes on."""
    found, stderr = run(tmp_path, kind, "quiet", "floods", "quiet")
    assert found["outcome"] == "succeeded"
    [event] = found["events"]
    assert (event["level"], event["log_iostream"]) == ("warning", "stdout")
    assert event["path"] == found["stdouts"]["1"]
    assert "No space left on device" in event["error"]
    assert not stderr


def test_l7_a_full_disk_is_one_line_where_nobody_listens(tmp_path: Path):
    """On stderr, by the last resort of logging."""
    found, stderr = run(tmp_path, "binary", "floods", "floods", listens=False)
    assert found["outcome"] == "succeeded"
    [line] = stderr.splitlines()
    assert line.startswith("supervise: /")
    assert "stdout.log: No space left on device; " in line


def test_l7_a_disk_with_room_is_no_event(tmp_path: Path):
    """Nothing is said, and nothing is left beside the logs."""
    found, stderr = run(tmp_path, "binary", "quiet", "quiet")
    assert (found["outcome"], found["events"], stderr) == ("succeeded", [], "")


@pytest.mark.parametrize("kind", ["binary", "spawn"])
def test_l7_a_rank_that_raises_on_a_full_disk_stays_the_root_cause(tmp_path: Path, kind: str):
    """Its victim ends first. The time of the exception is kept although its text has no room; the message says so."""
    found, _ = run(tmp_path, kind, "victim", "raises", "quiet")
    assert found["outcome"] == "failed"
    assert list(found["failures"]) == ["1", "0"]
    assert "error.json could not be written: no space was left on its disk, " in found["failures"]["1"][1]
    assert len(found["events"]) == 1


RECORDS = f"""{FILL}
import os, stat, sys, warnings
from supervise import ProcessFailure
from supervise._gang.worker import recorded_ns
from supervise._files import make_ready, move_aside
from supervise.recording import ErrorHandler
warnings.simplefilter("ignore")
path = os.environ["TORCHELASTIC_ERROR_FILE"] = "disk/error.json"

open(path, "x").close()
assert recorded_ns(path, None) is None, "an empty file of anybody's is a record"
assert "the file is empty" in ProcessFailure(0, 1, 1, path).message
os.unlink(path)

fill("disk")
handler = ErrorHandler()
handler.record_exception(ValueError("no room"))
assert sorted(os.listdir("disk")) == ["error.json", "fill"], os.listdir("disk")
assert stat.filemode(os.stat(path).st_mode) == "-rw------T"
assert os.stat(path).st_mtime_ns == handler._moment_ns
assert recorded_ns(path, None) is not None
failure = ProcessFailure(0, 1, 1, path)
assert failure.message.endswith("the limit of file sizes (RLIMIT_FSIZE); exit code 1")
assert failure.timestamp_ns == handler._moment_ns

os.unlink("disk/fill")
handler.record_exception(ValueError("there is room again"))
whole = open(path).read()
assert "there is room again" in whole
fill("disk")
handler.record_exception(ValueError("no room"))
assert open(path).read() == whole, "a record was replaced by none"

os.unlink(path)
fill("disk")
handler.record_exception(ValueError("no room"))
assert move_aside(path) and os.listdir("disk").count("error.json.1") == 1, "a later run finds the mark of this one"
"""


def test_l7_what_stands_for_a_record_on_a_full_disk(tmp_path: Path):
    """An empty file with the sticky bit and the time, which replaces no record and is replaced by one."""
    (tmp_path / "disk").mkdir()
    subprocess.run(
        [*on_small_disk("disk"), sys.executable, "-c", RECORDS],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "PYTHONPATH": str(ROOT)},
        timeout=PATIENCE_S,
        check=True,
    )
