"""The samples that a real run records."""

import json
import os
import select
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from supervise._views.samples import Life, SampleFile
from tests.cli.command import Command, Started

PROGRAM = """
import os, supervise, sys
print("x" * 3071, flush=True)
print("y" * 1023, file=sys.stderr, flush=True)
supervise.notify(step=40 + int(os.environ["RANK"]), heartbeat=True)
while not os.path.exists(sys.argv[1]):
    pass
"""


def until_samples(path: Path, count: int, run: Started) -> list[dict[str, Any]]:
    """Wait for `count` samples of a run that goes on."""
    while not path.exists() or len(lines := path.read_bytes().split(b"\n")[:-1]) < count:
        pause(run)
    return [json.loads(line) for line in lines]


def test_a_run_records_what_its_ranks_use(supervise: Command, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    flag = tmp_path / "flag"
    words = ("-n", "2", "--heartbeat-timeout", "100", "program.py", str(flag))
    with supervise.started(*words) as run:
        [directory] = until_directory(tmp_path, run)
        *_, before, last = until_samples(directory / "samples.jsonl", 3, run)
        flag.touch()
        assert run.end()[0] == 0
    assert (directory / "samples.jsonl").stat().st_mode & 0o777 == 0o600
    assert before["time"] < last["time"] < time.time()
    assert before["interval_s"] >= 1
    pids = {
        str(event["local_rank"]): event["pid"]
        for event in map(json.loads, (directory / "events.jsonl").read_text().splitlines())
        if event["event"] == "supervise.process.started"
    }
    assert last["ranks"].keys() == {"0", "1"}
    for rank, found in last["ranks"].items():
        assert found["pid"] == pids[rank]
        assert found["cpu_s"] > before["ranks"][rank]["cpu_s"]
        assert found["rss_bytes"] > 1 << 20
        assert found["processes"] == 1
        assert (found["output_bytes"], found["stderr_bytes"]) == (4096, 1024)
        assert found["step"] == 40 + int(rank)


def until_directory(tmp_path: Path, run: Started) -> list[Path]:
    while not (found := list(tmp_path.glob("runs/*_*"))):
        pause(run)
    return found


def pause(run: Started) -> None:
    """Wait for a moment; the test's own timeout bounds the whole."""
    assert run.process.poll() is None, run.end()
    select.select([], [], [], 0.02)


def test_a_short_run_has_no_samples(supervise: Command) -> None:
    assert supervise.run("-n", "2", "true").returncode == 0
    assert not (supervise.directory() / "samples.jsonl").exists()


def test_a_killed_run_keeps_its_samples(supervise: Command, tmp_path: Path) -> None:
    with supervise.started("-n", "1", "sleep", "1000") as run:
        [directory] = until_directory(tmp_path, run)
        until_samples(directory / "samples.jsonl", 1, run)
        run.signal(signal.SIGKILL)
        run.end()
    assert json.loads((directory / "samples.jsonl").read_text().splitlines()[0])["ranks"]["0"]["processes"] == 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of `time.monotonic`, in a list of one."""
    now_s = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    return now_s


@pytest.mark.parametrize(("ranks", "most"), [(1, 2600), (64, 2600), (1000, 280)])
def test_the_intervals_grow_with_the_age_of_the_run(
    ranks: int, most: int, tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervise._views.usage.trees", lambda _: {})
    file = SampleFile(str(tmp_path), ranks)
    count = 0
    while clock[0] < 1000 + 7 * 86400:
        clock[0] = file.due_s
        file.write({})
        count += 1
    file.close()
    assert count <= most
    assert len((tmp_path / "samples.jsonl").read_text().splitlines()) == count


def test_a_costly_sample_makes_the_interval_longer(
    tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    costs_s = iter([0.0, 0.1, 1.0, 1.0])
    monkeypatch.setattr(time, "thread_time", lambda: next(costs_s))
    file = SampleFile(str(tmp_path), 1)
    file.write({0: Life(os.getpid(), 0, None)})
    assert file.due_s - clock[0] == pytest.approx(30)
    file.write({0: Life(os.getpid(), 0, None)})
    assert file.due_s - clock[0] == 1
    file.close()


def test_a_full_disk_loses_samples_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl").symlink_to("/dev/full")
    file = SampleFile(str(tmp_path), 1)
    file.write({0: Life(os.getpid(), 0, 3)})
    file.close()
