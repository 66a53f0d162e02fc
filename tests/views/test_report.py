"""The page about a run: real runs, hostile ranks, large runs, and what a browser makes of it."""

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from supervise._views.report import page as report_page
from supervise._views.report.page import _LEGEND
from tests.cli.command import Command
from tests.patience import PATIENCE_S
from tests.views.fake_run import BEGIN_S, event, exited, iso, large_run, write_run
from tests.views.page import page_of, until_all_have_started

MB = 1 << 20
HOSTILE = "</pre></title></style><script>document.title='owned'</script><img src=http://x/>\x1b[31mred\x07\u202e\x00"
CHROMIUM = ("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom")
HANGS = """
import os, supervise
supervise.enable_stacks()

def load_batch():
    while True:
        pass

for step in range(10**9):
    supervise.notify(step=step, heartbeat=True)
    if os.environ["RANK"] == "1":
        load_batch()
"""


def test_a_failure_is_told_with_its_root_cause(supervise: Command) -> None:
    script = 'echo "out $RANK"; echo "err $RANK" >&2; [ "$RANK" = 1 ] && exit 3; exec sleep 1000'
    assert supervise.run("-n", "3", "--run-id", "job", "sh", "-c", script).returncode == 3
    page = page_of(supervise, "job")
    assert "rank 1 of 3 failed: exit code 3" in page.text
    bars = page.bars()
    assert len(bars) == 3
    assert "failed, exit code 3 (root cause)" in bars[1]
    assert all("stopped, SIGTERM; SIGTERM from supervise (a rank has failed)" in bars[rank] for rank in (0, 2))
    assert "err 1" in page.text
    assert "err 0" not in page.text.partition("All ranks")[0]
    [policy] = [attrs["content"] for tag, attrs in page.attributes if attrs.get("http-equiv")]
    assert str(policy).startswith("default-src 'none'")


def test_a_success_has_no_root_cause(supervise: Command) -> None:
    assert supervise.run("-n", "2", "--run-id", "job", "true").returncode == 0
    page = page_of(supervise, "job")
    assert [bar.rpartition(", ")[2] for bar in page.bars()] == ["succeeded", "succeeded"]
    assert "root cause" not in page.text
    assert "What happened" not in page.text


def test_a_rank_that_must_not_end_has_failed_by_its_exit_with_code_0(supervise: Command) -> None:
    """Its restart kind is permanent, and no restart is left. Only the event of the gang's failure says that."""
    words = ("-n", "1", "--run-id", "job", "--restart", "permanent", "--max-restarts", "1", "--backoff", "0", "true")
    assert supervise.run(*words).returncode == 1
    page = page_of(supervise, "job")
    assert "exited with code 0; its restart kind is permanent, and no restart is left" in page.text
    assert "failed, exit code 0, 1 restart (root cause)" in page.bars()[0]
    lives = json.loads(supervise.supervise("report", "--json", "job").stdout)["ranks"]["0"]["newest_lives"]
    assert [life["ending"] for life in lives] == ["succeeded", "failed"]


def test_the_duration_of_a_run_during_which_the_clock_was_set(supervise: Command) -> None:
    """It is measured by another clock, and is in result.json."""
    supervise.run("--run-id", "job", "true")
    path = supervise.directory() / "result.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"timestamp": "2100-01-01T00:00:00Z", "duration_s": 3725})
    )
    assert ", ran 1 h 02 min\n" in supervise.supervise("show", "job").stdout
    assert " 1 h 02 min " in supervise.supervise("ls").stdout
    supervise.supervise("report", "job")
    assert "1 h 02 min" in (supervise.directory() / "report.html").read_text()


def test_the_durations_of_the_page_are_those_of_the_report_and_of_show(supervise: Command, tmp_path: Path) -> None:
    """The run ends with its result, after its last event; how long a rank ran is in the event of its exit."""
    events = [event("process.started", 1, 0, pid=7), exited(6, 0, exit_code=3, level="error", uptime_s=4.2)]
    ended = {"outcome": "failed", "root_cause": 0, "timestamp": iso(BEGIN_S + 8.5)}
    write_run(tmp_path / "runs/job_x", 1, events, **ended)
    page = page_of(supervise, "job").text
    assert " duration 8.5 s " in page
    assert " root cause 4.2 s " in page
    assert ", ran 8.5 s\n" in supervise.supervise("show", "job").stdout


def test_a_failure_that_a_restart_has_mended_is_no_root_cause(supervise: Command, tmp_path: Path) -> None:
    """Neither of a run that timed out later, nor of one whose supervise was killed later."""
    events = [
        event("process.started", 0, 0, pid=7),
        exited(5, 0, exit_code=3, level="error"),
        event("process.started", 6, 0, pid=8),
    ]
    write_run(tmp_path / "runs/late_x", 1, events, outcome="timed_out", root_cause=None, exit_code=124)
    write_run(tmp_path / "runs/killed_x", 1, events)
    write_run(tmp_path / "runs/failed_x", 1, events[:2])
    found = {name: supervise.supervise("report", name, "--json").stdout for name in ("late", "killed", "failed")}
    assert {name: json.loads(text)["root_cause"] for name, text in found.items()} == {
        "late": None,
        "killed": None,
        "failed": 0,
    }


def test_a_failure_before_a_restart_of_all_ranks_is_no_root_cause(supervise: Command, tmp_path: Path) -> None:
    """Even if that rank did not start again before another one failed."""
    events = [
        *(event("process.started", 0, rank, pid=7 + rank) for rank in (0, 1)),
        exited(5, 0, exit_code=3, level="error"),
        event("gang.restarting", 5, attempt=1, backoff_s=0.0, root_cause_rank=0, error_type="exit code 3"),
        event("process.started", 6, 1, pid=9),
        exited(7, 1, exit_code=4, level="error"),
    ]
    write_run(tmp_path / "runs/killed_x", 2, events)
    assert json.loads(supervise.supervise("report", "killed", "--json").stdout)["root_cause"] == 1


def test_the_curve_of_steps_says_how_far_apart_the_ranks_are(supervise: Command, tmp_path: Path) -> None:
    """A mean over time would say nothing."""
    large_run(tmp_path / "runs/job_x", 4)
    page = supervise.supervise("report", "job_x", "-o", "-").stdout
    assert "Steps, from the slowest to the fastest rank: last all at 1775" in page
    assert "Memory, all ranks: mean 8 GiB, highest 8 GiB, last 8 GiB" in page


def test_each_life_of_a_rank_is_kept(supervise: Command) -> None:
    words = ("--strategy", "one_for_one", "--max-restarts", "2", "--backoff", "0")
    assert supervise.run("-n", "2", "--run-id", "job", *words, "sh", "-c", "exit $RANK").returncode == 1
    page = page_of(supervise, "job")
    assert "failed, exit code 1, 2 restarts (root cause)" in page.bars()[1]
    assert page.text.count("rank 1 restarts at once") == 2
    whole = json.loads(supervise.supervise("report", "--json", "job").stdout)
    assert (whole["schema_version"], whole["root_cause"]) == (1, 1)
    assert [life["attempt"] for life in whole["ranks"]["1"]["newest_lives"]] == [0, 1, 2]
    assert {life["ending"] for life in whole["ranks"]["1"]["newest_lives"]} == {"failed"}
    assert whole["ranks"]["0"]["lives"] == 1


def test_each_rank_has_its_step_and_status_at_its_end(supervise: Command, tmp_path: Path) -> None:
    """Not only the root cause; a run without a status has no column for it."""
    script = (
        "import os, sys, supervise as s\nr = int(os.environ['RANK'])\ns.notify(step=r + 40, status=f'part <{r}>')\n"
    )
    (tmp_path / "program.py").write_text(f"{script}sys.exit(3 * r)\n")
    words = ("-n", "2", "--run-id", "job", "--strategy", "one_for_one", "program.py")
    assert supervise.run(*words).returncode == 3
    for rank, row in enumerate(
        supervise.supervise("report", "job", "-o", "-").stdout.rpartition("<tbody>")[2].split("<tr")[:0:-1]
    ):
        assert f'<td class="number">{rank + 40}</td><td>part &lt;{rank}&gt;</td>' in row
    ranks = json.loads(supervise.supervise("report", "--json", "job").stdout)["ranks"]
    ends = [each["newest_lives"][0] for each in ranks.values()]
    assert [(life["step"], life["status"]) for life in ends] == [(40, "part <0>"), (41, "part <1>")]
    supervise.run("--run-id", "silent", "true")
    assert ">status<" not in supervise.supervise("report", "silent", "-o", "-").stdout


def test_a_restart_of_all_ranks_is_an_incident(supervise: Command) -> None:
    script = 'test "$TORCHELASTIC_RESTART_COUNT" = 1 || test "$RANK" = 0 || exit 3'
    words = ("--max-restarts", "1", "--backoff", "0")
    assert supervise.run("-n", "2", "--run-id", "job", *words, "sh", "-c", script).returncode == 0
    page = page_of(supervise, "job")
    assert "all ranks restart at once: rank 1 failed" in page.text
    assert [bar.rpartition(", ")[2] for bar in page.bars()] == ["1 restart", "1 restart"]
    assert "(root cause)" not in " ".join(page.bars())


def test_a_restart_of_all_ranks_that_a_stop_has_canceled_is_no_restart(supervise: Command, tmp_path: Path) -> None:
    """Of a run that goes on elsewhere, it may still come."""
    restart = {"max_restarts": 3, "error_type": "exit code 1", "root_cause_rank": 0, "backoff_s": 9.0}
    events = [
        event("process.started", 0, 0, pid=7),
        exited(1, 0, exit_code=1, level="error"),
        event("gang.restarting", 1, **restart, attempt=1),
        event("process.started", 2, 0, pid=8, attempt=1),
        exited(3, 0, exit_code=1, level="error", attempt=1),
        event("gang.restarting", 3, **restart, attempt=2),
    ]
    write_run(tmp_path / "runs/job_x", 1, events, outcome="failed", root_cause=0)
    write_run(tmp_path / "runs/elsewhere_x", 1, events)
    page = page_of(supervise, "job")
    assert "all ranks restart in 9 s: rank 0 failed (exit code 1)" in page.text
    assert "a restart of all ranks did not take place: rank 0 failed (exit code 1)" in page.text
    assert [attrs.get("class") for _, attrs in page.attributes if "d" in attrs].count("all") == 2  # legend, row
    assert page_of(supervise, "elsewhere").text.count("all ranks restart in 9 s") == 2
    shown = supervise.supervise("show", "job").stdout
    assert "rank 0 failed (exit code 1); restart 1\n" in shown
    assert "rank 0 failed (exit code 1); restart 2 did not take place\n" in shown


def test_a_hang_has_its_stacks(supervise: Command, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(HANGS)
    words = ("-n", "2", "--run-id", "job", "--heartbeat-timeout", "6", "--on-hang", "fail", "program.py")
    assert supervise.run(*words, **supervise.patient_stacks()).returncode != 0
    page = page_of(supervise, "job")
    assert "rank 1 hung: no heartbeat for" in page.text
    assert "rank 1: load_batch (program.py:" in page.text
    assert "(root cause)" in page.bars()[1]
    assert ", hung, " in page.bars()[1]


@pytest.mark.parametrize("faulted", [False, True])
def test_only_a_rank_that_failed_by_its_hang_is_called_hung(
    supervise: Command, tmp_path: Path, *, faulted: bool
) -> None:
    """A rank may go on after a hang, and fail later for another reason. Its bar is not marked as hung until the end."""
    fault = [event("process.faulted", 5, 0, message="hung: no heartbeat for 1.0 s", level="error")]
    events = [
        event("process.started", 0, 0, pid=7),
        event("process.hung", 5, 0, tier="heartbeat", age_s=1.0, step=None, status=None, waiting=[]),
        *(fault if faulted else []),
        exited(10, 0, exit_code=3, level="error", spontaneous=not faulted),
    ]
    write_run(tmp_path / "runs/job_x", 1, events, outcome="failed", root_cause=0, report=["rank 0 failed"])
    page = page_of(supervise, "job")
    how = "hung" if faulted else "failed"
    assert f"to 10 s, {how}, exit code 3 (root cause)" in page.bars()[0]
    assert f"{how} , exit code 3" in page.text.rpartition("All ranks")[2]
    [bar] = [
        attrs for _, attrs in page.attributes if attrs.get("class") == "hung" and "width" in attrs and "x" in attrs
    ]
    assert (bar["x"], bar["width"]) == ("400.0", "600.0" if faulted else "100.0")


def test_after_a_kill_of_supervise_the_ends_are_unknown(supervise: Command) -> None:
    with supervise.started("-n", "2", "--run-id", "job", "sh", "-c", "echo there; exec sleep 1000") as run:
        until_all_have_started(supervise)
        run.signal(signal.SIGKILL)
        run.end()
    page = page_of(supervise, "job")
    assert "supervise was killed" in page.text
    assert all("end unknown" in bar for bar in page.bars())


@pytest.mark.parametrize(
    ("ended", "told"),
    [
        ((1,), " The ends of ranks 0, 2 are not known."),
        ((0, 1), " The end of rank 2 is not known."),
        ((0, 1, 2), " Rank 0 failed at"),
    ],
)
def test_after_a_kill_of_supervise_the_ends_that_are_known_are_not_called_unknown(
    supervise: Command, tmp_path: Path, ended: tuple[int, ...], told: str
) -> None:
    events = [event("process.started", 0, rank, pid=7 + rank) for rank in range(3)]
    events += [exited(1, rank, exit_code=5, level="error") for rank in ended]
    write_run(tmp_path / "runs/job_x", 3, events, {"host_name": os.uname().nodename})  # which was booted since then
    assert f"supervise was killed before it could write a result.{told}" in page_of(supervise, "job").text


def test_a_run_that_goes_on_has_a_page(supervise: Command) -> None:
    with supervise.started("-n", "2", "--run-id", "job", "sh", "-c", "echo there; exec sleep 1000") as run:
        until_all_have_started(supervise)
        page = page_of(supervise, "job")
        run.signal(signal.SIGTERM)
        run.end()
    assert "until now" in page.text
    assert "running" in page.bars()[0]


def test_what_a_rank_writes_is_text(supervise: Command, tmp_path: Path) -> None:
    (tmp_path / "hostile.sh").write_text("printf '%s\\n' \"$1\"; printf '%s\\n' \"$1\" >&2; exit 1")
    hostile = HOSTILE.replace("\x00", "")
    assert supervise.run("--run-id", "job", "--no-python", "sh", "hostile.sh", hostile).returncode == 1
    page = page_of(supervise, "job")  # the parser fails at a script
    assert "<script>document.title='owned'</script>" in page.text
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", "".join(page.data))


def test_invalid_lines_of_the_files_are_left_out(supervise: Command, tmp_path: Path) -> None:
    values = (None, -1, 1e400, 2**80, "x", [], {}, True, HOSTILE)
    names = ("started", "ready", "exited", "signaled", "hung", "restarting", "leaked")
    events = [event("process.started", 0, 0, pid=7)]
    events += [event(f"process.{name}", 1, rank=value, pid=value) for name in names for value in values]  # type: ignore[arg-type]
    events += [event(f"process.{name}", 1, 0, **dict.fromkeys(KEYS, value)) for name in names for value in values]
    events += [
        event(f"gang.{name}", 1, **dict.fromkeys(KEYS, value)) for name in ("restarting", "stacks") for value in values
    ]
    events += [{**event("gang.started", 0), "timestamp": value} for value in values]
    path = tmp_path / "runs" / "job_x"
    write_run(path, 2, events, outcome=HOSTILE, root_cause="1", report=[HOSTILE, 3, None])
    rows = [{"pid": 7, "cpu_s": value, "rss_bytes": value, "output_bytes": value, "step": value} for value in values]
    samples = [{"time": 1e9, "ranks": {"0": row, HOSTILE: row}} for row in rows]
    samples += [{"time": value, "ranks": {}} for value in values]
    (path / "samples.jsonl").write_text("".join(json.dumps(each) + "\n" for each in samples) + '{"torn": ')
    page_of(supervise, "job")
    assert supervise.supervise("report", "job", "--trace", "-", "-o", str(tmp_path / "x.html")).returncode == 0


KEYS = (
    *("pid", "attempt", "exit_code", "exit_signal", "signal", "reason", "tier", "age_s", "step", "backoff_s"),
    *("max_rss_bytes", "cpu_time_s", "complaint", "root_cause_rank", "error_type", "path", "places"),
)


def test_a_planted_link_is_replaced_and_not_followed(supervise: Command, tmp_path: Path) -> None:
    supervise.run("--run-id", "job", "true")
    (tmp_path / "target").write_text("mine")
    (supervise.directory() / "report.html").symlink_to(tmp_path / "target")
    page_of(supervise, "job")
    assert (tmp_path / "target").read_text() == "mine"


def test_the_page_goes_where_it_is_wanted(supervise: Command, tmp_path: Path) -> None:
    supervise.run("--run-id", "job", "true")
    page_of(supervise, "job", "--output", str(tmp_path / "page.html"))
    done = supervise.supervise("report", "job", "--output", "-")
    assert done.stdout.startswith("<!DOCTYPE html>")
    missing = supervise.supervise("report", "job", "-o", str(tmp_path / "none" / "page.html"))
    assert missing.returncode == 1
    assert missing.stderr.startswith("supervise report: ")
    assert missing.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [("-o", "-", "--trace", "-"), ("--json", "--trace", "-"), ("--json", "-o", "x")])
def test_what_cannot_be_together_is_wrong_usage(words: tuple[str, ...], supervise: Command) -> None:
    supervise.run("--run-id", "job", "true")
    done = supervise.supervise("report", "job", *words)
    assert done.returncode == 2
    assert "Try 'supervise report --help'" in done.stderr


def test_the_legend_names_the_marks_that_the_timeline_has(supervise: Command, tmp_path: Path) -> None:
    """Each of them, and no other: in a run with all kinds of marks, and in one with few."""
    hung = {"tier": "heartbeat", "age_s": 1.0, "step": 3, "status": None, "waiting": []}
    restart = {"attempt": 1, "max_restarts": 3, "error_type": "exit code 1", "root_cause_rank": 0, "backoff_s": 1.0}
    stop = {"exit_code": None, "exit_signal": "SIGTERM", "spontaneous": False}
    events = [event("process.started", 0, rank, pid=7 + rank) for rank in range(4)]
    events += [
        event("process.ready", 1, 0),
        event("process.hung", 3, 0, **hung),
        event("process.stopped", 4, 0, signal="SIGSTOP"),
        event("process.signaled", 5, 1, signal="SIGTERM", reason="peer_failed"),
        exited(6, 1, **stop),
        exited(6, 0, exit_code=1, level="error"),
        event("gang.restarting", 6, **restart),
        event("process.started", 8, 0, pid=17, attempt=1),
        exited(9, 2),
    ]
    write_run(tmp_path / "runs" / "many_x", 4, events)
    rows = {"0": {"pid": 7, "cpu_s": 1, "rss_bytes": 1, "processes": 1, "output_bytes": 9, "step": 3}}
    samples = [{"time": BEGIN_S + at, "interval_s": 1, "ranks": rows} for at in (1, 2)]
    samples[1]["ranks"] = {"0": {**rows["0"], "output_bytes": 99, "step": 4}}
    (tmp_path / "runs/many_x/samples.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in samples))
    large_run(tmp_path / "runs" / "few_x", 3)
    found = {}
    for name in ("many", "few"):
        marks: dict[bool, set[str]] = {True: set(), False: set()}
        for tag, attrs in page_of(supervise, name).attributes:
            if attrs.get("class") in ("legend", "rows", "curves"):
                part = attrs["class"]
            elif tag in ("rect", "path", "polyline") and part != "curves":
                marks[part == "legend"].add(str(attrs["class"]))
        assert marks[True] == marks[False]
        found[name] = marks[True]
    assert found["many"] == {kind for kind, _, _ in _LEGEND}
    assert "backoff" not in found["few"]


def test_only_an_announced_delay_is_drawn_as_the_wait_for_a_restart(supervise: Command, tmp_path: Path) -> None:
    """Rank 0 has failed; rank 1 had finished long before a request restarted it at once."""
    events = [event("process.started", 0, rank, pid=7 + rank) for rank in range(2)]
    events += [
        exited(1, 0, exit_code=3, level="error"),
        event("process.restarting", 1, 0, backoff_s=4.0, exit_code=3, end_role="root_cause"),
        exited(1, 1),
        event("process.started", 5, 0, pid=17, attempt=1),
        event("process.restarting", 9, 1, backoff_s=0.0, exit_code=0, end_role="finished"),
        event("process.started", 9, 1, pid=18, attempt=1),
        *(exited(10, rank, attempt=1) for rank in range(2)),
    ]
    write_run(tmp_path / "runs" / "job_x", 2, events, outcome="succeeded")
    tags = page_of(supervise, "job").attributes
    assert [attrs["d"] for _, attrs in tags if attrs.get("class") == "backoff"] == ["M1 5H19", "M100.0 50H500.0"]


def test_equal_ranks_share_a_row(supervise: Command, tmp_path: Path) -> None:
    large_run(tmp_path / "runs" / "job_x", 1000)
    page = page_of(supervise, "job")
    first, second, third, *rest = page.bars()
    assert first.startswith("rank 1: ")
    assert "failed, SIGKILL, out of memory suspected (root cause)" in first
    assert second.startswith("rank 5: ")
    assert third.startswith("ranks 0, 2-4, 6-999: ")
    assert len(rest) == 998
    assert "ranks 0, 2-4, 6-999; the row above shows rank 999" in page.text
    assert (tmp_path / "runs" / "job_x" / "report.html").stat().st_size < 3 * MB


def test_many_restarts_have_a_bounded_page(supervise: Command, tmp_path: Path) -> None:
    events = []
    for life in range(20_000):
        events.append(event("process.started", life / 10, life % 3, pid=life + 1))
        events.append(exited(life / 10 + 0.05, life % 3, exit_code=1, level="error"))
        events.append(event("process.restarting", life / 10 + 0.06, life % 3, backoff_s=0.1, exit_code=1))
    write_run(tmp_path / "runs" / "job_x", 3, events, outcome="failed", root_cause=0)
    page = page_of(supervise, "job")
    assert "19500 later ones are left out" in page.text
    assert (tmp_path / "runs" / "job_x" / "report.html").stat().st_size < 3 * MB


def test_a_browser_shows_the_page_and_runs_nothing(supervise: Command, tmp_path: Path) -> None:
    if shutil.which(CHROMIUM[0]) is None:
        pytest.skip("chromium is not installed")
    path = tmp_path / "runs" / "job_x"
    write_run(path, 2, [event("process.started", 0, 0, pid=7)], outcome="failed", root_cause=0, report=[HOSTILE])
    supervise.supervise("report", "job")
    shown = subprocess.run(
        [*CHROMIUM, f"--user-data-dir={tmp_path}/profile", f"file://{path}/report.html"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
        env={**os.environ, "HOME": str(tmp_path)},
    ).stdout
    assert "<title>job_x: failed</title>" in shown
    assert "&lt;script&gt;document.title='owned'" in shown
    assert shown.count('class="bar"') == 2


def test_the_ranks_of_several_hosts_are_known_by_their_global_ranks(supervise: Command):
    """Each host of a run on Ray has a local rank 0."""
    events = [event("process.started", 1, rank, pid=1000 + rank) for rank in range(4)]
    events += [exited(2, 3, level="error", exit_code=7)]
    events = [each | {"local_rank": each["rank"] % 2, "host": each["rank"] // 2} for each in events]
    ray = {"engine": "ray", "nnodes": 2}
    write_run(supervise.tmp_path / "runs" / "ray_1", 4, events, ray, outcome="failed", root_cause=3, report=["x"])
    found = json.loads(supervise.supervise("report", "--json", "ray_1").stdout)["ranks"]
    lives = {rank: [life["pid"] for life in each["newest_lives"]] for rank, each in found.items()}
    assert lives == {"0": [1000], "1": [1001], "2": [1002], "3": [1003]}
    assert found["3"]["newest_lives"][0]["how"] == "exit code 7"
    assert "ranks:    4 on 2 hosts, supervised on host node7\n" in supervise.supervise("show", "ray_1").stdout
    assert set(json.loads(supervise.supervise("show", "--json", "ray_1").stdout)["ranks"]) == {"0", "1", "2", "3"}


def test_nothing_of_a_printed_page_is_behind_a_scroll_bar(supervise: Command, tmp_path: Path):
    """Paper does not scroll: whatever may scroll in a window is shown completely in print."""
    assert supervise.run("--run-id", "job", "true").returncode == 0
    page_of(supervise, "job", "--output", str(tmp_path / "page.html"))
    screen, _, printed = (tmp_path / "page.html").read_text().partition("@media print")
    scrolling = re.findall(r"^([^\n{@]+?) \{[^}]*overflow-x: auto", screen, re.MULTILINE)
    assert set(scrolling) == {"pre", ".wide"}
    for selector in scrolling:
        assert re.search(rf"^  {re.escape(selector)} \{{[^}}]*overflow-x: visible", printed, re.MULTILINE), selector


def test_a_long_last_line_is_shortened_as_in_the_story(supervise: Command):
    """Whole, it filled several pages of print."""
    script = "print('begin', 'x' * 15_000, 'end'); print('50%\\r100%'); raise SystemExit(3)"
    assert supervise.run("--run-id", "job", "--no-python", "python3", "-c", script).returncode == 3
    lines = page_of(supervise, "job").text.partition(" Last lines ")[2].partition(" All ranks ")[0]
    assert re.search(r" begin x+ \.\.\. \(14710 more characters\) \.\.\. x+ end 100%", lines)


def test_the_name_of_an_axis_meets_no_label_in_print_or_on_a_narrow_page():
    """It has a line of its own: up to 72rem, the name and the last label do not fit beside each other."""
    style = (Path(report_page.__file__).parent / "page.css").read_text()
    [where] = re.findall(r"^@media ([^{]*) \{(?:\n  [^\n]*)*?\n  \.axis small \{ bottom: 0; \}", style, re.MULTILINE)
    assert where.split(", ") == ["(max-width: 72rem)", "print"]


def test_no_two_marks_of_the_legend_look_the_same():
    """A mark has the declarations of its element, and those of its classes."""
    style = (Path(report_page.__file__).parent / "page.css").read_text()
    looks = {}
    for kind, _, shape in _LEGEND:
        rules = [rf"svg \.{kind.replace(' ', '.')}", *([r"svg \.mark"] if kind.startswith("mark ") else [])]
        found = tuple(found for rule in rules for found in re.findall(rf"{rule}(?:, [^{{]*)? \{{([^}}]*)\}}", style))
        looks.setdefault((shape.format(""), found), []).append(kind)
    assert [kinds for kinds in looks.values() if len(kinds) > 1] == []
