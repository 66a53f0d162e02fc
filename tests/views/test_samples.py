"""The samples that a real run records, and what process trees use, read from real processes."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from supervise._views.samples import SampleFile, Usage, trees
from supervise.messages import RankStatus
from tests.cli.command import Command, Started
from tests.patience import PATIENCE_S
from tests.views.fake_run import read_run

PROGRAM = """
import os, supervise, sys
print("x" * 3071, flush=True)
print("y" * 1023, file=sys.stderr, flush=True)
supervise.notify(step=40 + int(os.environ["RANK"]), heartbeat=True)
while not os.path.exists(sys.argv[1]):
    pass
"""


def until_samples(path: Path, count: int, run: Started, steps: Sequence[int] = ()) -> list[dict[str, Any]]:
    """Wait for `count` samples of a run that goes on, in which its ranks have these steps, if any are given."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        pause(run)
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        found = [
            sample
            for sample in map(json.loads, lines)
            if not steps or [sample["ranks"].get(str(rank), {}).get("step") for rank in range(len(steps))] == [*steps]
        ]
    return found


def test_a_run_records_what_its_ranks_use(supervise: Command, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    flag = tmp_path / "flag"
    words = ("-n", "2", "--heartbeat-timeout", "100", "program.py", str(flag))
    with supervise.started(*words) as run:
        [directory] = until_directory(tmp_path, run)
        before, *_, last = until_samples(directory / "samples.jsonl", 3, run, [40, 41])  # two intervals of a second
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
    assert supervise.run("-n", "2", "--metrics", "metrics", "true").returncode == 0
    metrics = (supervise.tmp_path / "metrics").read_text()
    took = re.search(r"^supervise_run_duration_seconds\S* (\S+)$", metrics, re.MULTILINE)
    assert took is not None
    assert not (supervise.directory() / "samples.jsonl").exists() or float(took[1]) >= 1


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
    monkeypatch.setattr("supervise._views.samples.trees", lambda _: {})
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
    file.write({0: RankStatus(pid=os.getpid(), state="ready", attempt=0, restarts=0)})
    assert file.due_s - clock[0] == pytest.approx(30)
    file.write({0: RankStatus(pid=os.getpid(), state="ready", attempt=0, restarts=0)})
    assert file.due_s - clock[0] == 1
    file.close()


CUT = """
import os, resource, sys
from supervise._views.samples import SampleFile
from supervise.messages import RankStatus
life = {0: RankStatus(pid=os.getpid(), state="ready", attempt=0, restarts=0, step=3)}
file = SampleFile(sys.argv[1], 1)
file.write(life)
size_bytes = os.path.getsize(sys.argv[1] + "/samples.jsonl")
unlimited = resource.RLIM_INFINITY
resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes + 20, unlimited))
file.write(life)  # the kernel takes 20 bytes of this sample
file.write(life)  # and nothing of this one
resource.setrlimit(resource.RLIMIT_FSIZE, (unlimited, unlimited))
file.write(life)
file.close()
"""


def test_a_full_disk_loses_samples_and_nothing_else(tmp_path: Path) -> None:
    """A sample that was cut has a line of its own, so that the next one can be read."""
    subprocess.run([sys.executable, "-c", CUT, str(tmp_path)], check=True, timeout=PATIENCE_S)
    first, cut, last = (tmp_path / "samples.jsonl").read_bytes().splitlines()
    assert (len(cut), cut[:12]) == (20, last[:12])  # the next sample may be of the next tenth of a second
    assert [json.loads(line)["ranks"]["0"]["step"] for line in (first, last)] == [3, 3]
    assert [sample["ranks"]["0"]["step"] for sample in read_run(tmp_path).samples()] == [3, 3]


MB = 1 << 20
PARENT = """
import os, sys, subprocess
{0}
print("there", flush=True)
sys.stdin.read()
"""
CHILD = """
child = subprocess.Popen([sys.executable, "-c", '''
import sys
held = bytearray(100 << 20)
print("there", flush=True)
sys.stdin.read()
'''], stdout=subprocess.PIPE)
child.stdout.readline()
"""


@contextmanager
def leader(code: str) -> Iterator[int]:
    """A process that leads a group and has run `code`; it ends with its children at the end of its stdin."""
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,
    )
    with process:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], PATIENCE_S)[0]
        assert process.stdout.readline() == b"there\n"
        yield process.pid


def test_a_tree_has_the_memory_of_its_children() -> None:
    with leader("") as alone, leader(CHILD) as parent:
        found = trees({0: alone, 7: parent})
    assert found[0].processes == 1
    assert found[0].rss_bytes < 50 * MB
    assert found[7].processes == 2
    assert found[7].rss_bytes > 100 * MB
    assert found[7].pid == parent


def test_a_child_that_has_left_the_group_still_counts() -> None:
    with leader(CHILD.replace("stdout=subprocess.PIPE)", "stdout=subprocess.PIPE, start_new_session=True)")) as parent:
        assert trees({0: parent})[0].processes == 2


def test_processor_time_counts_children_that_were_waited_for() -> None:
    spin = "import time\\nwhile time.process_time() < 0.3: pass"
    with leader(f'subprocess.run([sys.executable, "-c", "{spin}"])') as parent:
        found = trees({0: parent})[0]
    assert 0.25 <= found.cpu_s < PATIENCE_S  # the kernel counts whole ticks
    assert found.processes == 1


def test_a_member_of_the_group_counts_when_its_parent_has_ended() -> None:
    orphan = 'subprocess.run(["sh", "-c", "cat <&3 & exit"], pass_fds=[3])'
    with leader(f"os.dup2(0, 3); {orphan}") as parent:
        assert trees({0: parent})[0].processes == 2


def test_a_rank_without_a_process_is_missing() -> None:
    with leader("") as ended:
        pass
    assert trees({0: ended}) == {}


def test_zombies_do_not_count() -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {}, setpgroup=0)
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert trees({3: pid}) == {}
    finally:
        os.waitpid(pid, 0)


def test_without_ranks_there_is_no_usage() -> None:
    assert trees({}) == {}


def test_the_fields_are_those_of_the_file() -> None:
    assert Usage._fields == ("pid", "cpu_s", "rss_bytes", "processes")
