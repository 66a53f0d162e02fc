"""What a reader sees at a glance on the page about a run: what failed and when, scales, gaps, the order of ranks."""

import json
import re
import signal
from pathlib import Path

import pytest

from tests.cli.command import Command
from tests.cli.test_run_commands import until
from tests.views.fake_run import BEGIN_S, event, exited, write_run
from tests.views.page import page_of, until_all_have_started

MB = 1 << 20


def test_a_rank_that_has_failed_is_told_while_the_run_goes_on(supervise: Command) -> None:
    """Who failed, when and why, by a badge, in words and in the first row of the table."""
    script = '[ "$RANK" = 2 ] || { echo there; exec sleep 1000; }; echo "disk is full" >&2; exit 3'
    words = ("-n", "3", "--keep-going", "--run-id", "job", "sh", "-c", script)
    with supervise.started(*words) as run:
        ended = '"supervise.process.exited"'
        until(lambda: any(ended in path.read_text() for path in supervise.tmp_path.glob("runs/*_*/events.jsonl")))
        page = page_of(supervise, "job")
        run.signal(signal.SIGTERM)
        run.end()
    stopped = page_of(supervise, "job").text
    assert "Stopped on request at" in stopped
    assert "rank 2 of 3 failed" in stopped
    assert "Stopped on request" not in page.text
    assert "running 1 rank failed" in page.text
    assert re.search(r"Rank 2 failed at 20[-0-9]+ [0-9:]+ \S+, \S+ m?s after the start; the run goes on\.", page.text)
    assert "rank 2 of 3 failed: exit code 3 (host " in page.text
    assert "the end of its stderr: disk is full" in page.text
    table = page.text.partition("All ranks")[2]
    assert re.search(r"last line 2 \d+ 1 failed , exit code 3 , root cause ", table)
    assert "(root cause)" in page.bars()[2]


def test_a_stop_on_request_is_told_with_its_time(supervise: Command) -> None:
    with supervise.started("--run-id", "job", "sh", "-c", "echo there; exec sleep 1000") as run:
        until_all_have_started(supervise)
        assert supervise.supervise("stop", "job").returncode == 0
        run.end()
    page = page_of(supervise, "job")
    assert re.search(r"Stopped on request at 20[-0-9]+ [0-9:]+ \S+, \S+ m?s after the start\.", page.text)
    assert "stopped by supervise stop" in page.text


def samples(path: Path, *rows: tuple[float, dict[str, object]]) -> None:
    """Write samples of rank 0."""
    plain = {"pid": 7, "cpu_s": 0.0, "rss_bytes": MB, "processes": 1, "output_bytes": 0, "step": None}
    lines = [{"time": BEGIN_S + at_s, "interval_s": 1, "ranks": {"0": plain | row}} for at_s, row in rows]
    (path / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_highest_value_is_that_of_a_sample_and_not_of_a_column(supervise: Command, tmp_path: Path) -> None:
    """Of a long run, many samples share a column, and some are dropped from the bars; the peak stays."""
    path = tmp_path / "runs/job_x"
    write_run(path, 1, [event("process.started", 0, 0, pid=7)], outcome="succeeded", exit_code=0)
    peak = 1001
    rows = []
    for at_s in range(1, 5000):
        output = 100 * MB if at_s >= peak else 0
        rows.append(
            (float(at_s), {"output_bytes": output, "cpu_s": 0.01 * at_s, "rss_bytes": (1 + (at_s == peak)) * MB})
        )
    samples(path, *rows)
    page = page_of(supervise, "job")
    assert "Output, all ranks: mean 20 KiB/s, highest 100 MiB/s, last 0 B/s" in page.labels()
    assert "Memory, all ranks: mean 1 MiB, highest 2 MiB, last 1 MiB" in page.labels()


def test_noise_near_zero_is_flat(supervise: Command, tmp_path: Path) -> None:
    """Each scale has a least end, and says it."""
    path = tmp_path / "runs/job_x"
    write_run(path, 1, [event("process.started", 0, 0, pid=7)], outcome="succeeded", exit_code=0)
    samples(path, *((float(at_s), {"cpu_s": 0.001 * (at_s % 2), "output_bytes": at_s, "step": 1}) for at_s in range(9)))
    page = page_of(supervise, "job")
    for curve in (attrs["points"] for tag, attrs in page.attributes if attrs.get("class") == "line"):
        heights = [float(point.partition(",")[2]) for point in str(curve).split()]
        assert min(heights) > 80, curve
    for label in ("1 0 Processors", "64 MiB 0", "1 KiB/s 0", "10 0"):
        assert label in page.text
    assert page.text.count("after the start") == 5


def test_the_time_after_the_last_sample_is_hatched(supervise: Command, tmp_path: Path) -> None:
    """A curve that ends before the run does is not a curve at zero."""
    path = tmp_path / "runs/job_x"
    end = exited(20, 0)
    write_run(path, 1, [event("process.started", 0, 0, pid=7), end], outcome="succeeded", exit_code=0)
    samples(path, *((float(at_s), {}) for at_s in range(1, 11)))
    found = [attrs["d"] for _, attrs in page_of(supervise, "job").attributes if attrs.get("class") == "unsampled"]
    assert len(found) == 3
    assert str(found[0]).startswith("M500 100")
    assert "Hatched: the time after the last sample." in page_of(supervise, "job").text
    samples(path, *((float(at_s), {}) for at_s in range(1, 21)))
    assert not [tag for tag, attrs in page_of(supervise, "job").attributes if attrs.get("class") == "unsampled"]
    assert "Hatched" not in page_of(supervise, "job").text


def test_the_table_has_what_a_running_rank_has_used_so_far(supervise: Command, tmp_path: Path) -> None:
    """Its processor time comes from the last sample; without several roles, there is no column for them."""
    path = tmp_path / "runs/job_x"
    write_run(path, 1, [event("process.started", 0, 0, pid=7)])
    samples(path, (10.0, {"cpu_s": 8.5, "step": 4}))
    page = page_of(supervise, "job")
    assert "rank pid lives end ran CPU peak memory step last line 0 7 1 end unknown 10 s 8.5 s 1 MiB 4" in page.text
    assert "trainer0" not in page.text
    roles = [{"name": "actor", "count": 1, "program": ["a"]}, {"name": "learner", "count": 1, "program": ["b"]}]
    write_run(tmp_path / "runs/roles_x", 2, [event("process.started", 0, 1, pid=7)], {"roles": roles})
    assert "rank role pid lives" in (text := page_of(supervise, "roles").text)
    assert "1 learner0" in text


def hangs(at_s: float, tier: str) -> dict[str, object]:
    return event("process.hung", at_s, 0, tier=tier, age_s=4.0, step=3, status=None, waiting=[])


@pytest.mark.parametrize("tier", ["output", "heartbeat"])
def test_a_rank_that_hangs_is_said_to_and_one_that_went_on_is_not(
    supervise: Command, tmp_path: Path, tier: str
) -> None:
    """In words, since a color alone is not read by everyone; a sample with more output, or a higher step, ends it."""
    path = tmp_path / "runs/job_x"
    stop = exited(20, 0, exit_code=None, exit_signal="SIGTERM", spontaneous=False)
    started = event("process.started", 0, 0, pid=7)
    write_run(path, 1, [started, hangs(9, tier), stop], outcome="stopped", exit_code=143)
    still: dict[str, object] = {"output_bytes": 9, "step": 3}
    rows = [(float(at_s), still) for at_s in range(1, 20)]
    samples(path, *rows)
    page = page_of(supervise, "job")
    assert ", hung until stopped, SIGTERM" in page.bars()[0]
    assert page.text.count("hung until stopped") == 3  # the bar, its end, the table
    watched, other = ("output_bytes", "step") if tier == "output" else ("step", "output_bytes")
    samples(path, *rows, (19.5, still | {other: 99}))
    assert ", hung until stopped, SIGTERM" in page_of(supervise, "job").bars()[0]
    samples(path, *rows, (19.5, still | {watched: 99}))
    assert "hung until stopped" not in page_of(supervise, "job").text
