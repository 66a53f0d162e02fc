"""``supervise top --json``: versioned lines for machines, without a terminal."""

import json
import os
import select
import shutil
import signal
import time
from contextlib import contextmanager

from tests.cli.command import ROOT, Command
from tests.patience import PATIENCE_S
from tests.top.driver import SAYS, running
from tests.top.test_table import BEATS, FAILS

KEYS = {"schema_version", "kind", "name", "path", "time", "phase", "attempt", "pid", "restarts", "ranks", "incidents"}
RANK_KEYS = {
    *(
        "role",
        "state",
        "end",
        "pid",
        "attempt",
        "restarts",
        "cpu",
        "rss_bytes",
        "processes",
        "step",
        "beat_age_s",
        "status",
    ),
    *("output_bytes", "output_bytes_per_s", "last_line"),
}


@contextmanager
def lines_of(supervise: Command, **env: str):
    """Start the command; yield a function that returns the next line that fulfills a condition."""
    with supervise.started_command("top", "job", "--json", **env) as started:

        def until(condition):
            deadline_s = time.monotonic() + PATIENCE_S
            while True:
                line = started.process.stdout.readline()
                assert line, "it has ended"
                found = json.loads(line)
                if condition(found):
                    return found
                assert time.monotonic() < deadline_s, found

        until.process = started.process
        yield until


def test_readings_and_the_end(supervise: Command):
    """Every line has the version; the last tells how the run ended."""
    (supervise.tmp_path / "beats.py").write_text(BEATS)
    words = ("--ready", "notify", "--heartbeat-timeout", "600", "beats.py")
    with running(supervise, *words) as run, lines_of(supervise) as until:
        first = until(lambda _: True)
        assert set(first) == KEYS
        assert (first["schema_version"], first["kind"], first["phase"]) == (1, "reading", "running")
        assert first["path"] == str(supervise.directory())
        assert set(first["ranks"]) == {"0", "1"}
        second = until(lambda _: True)
        assert second["time"] > first["time"]
        row = second["ranks"]["1"]
        assert set(row) == RANK_KEYS
        assert (row["state"], row["step"], row["status"], row["last_line"]) == ("ready", 7, "epoch 1", "it waits")
        assert row["cpu"] >= 0
        assert row["rss_bytes"] > 1 << 20
        assert row["processes"] == 1
        assert row["output_bytes"] == len("it waits\n")
        assert row["output_bytes_per_s"] == 0
        run.send_signal(signal.SIGTERM)
        last = until(lambda line: line["kind"] == "end")
        assert (last["schema_version"], last["outcome"], last["exit_code"]) == (1, "stopped", 143)
        assert until.process.wait(PATIENCE_S) == 0


def test_the_failure_that_ends_a_run_is_in_the_last_line(supervise: Command):
    """No reading follows it. What was told before is not told again."""
    words = ("--strategy", "one_for_one", "--max-restarts", "1", "--backoff", "0.1", "sh", "-c")
    script = "echo up; [ $RANK = 1 ] && exec sleep 1000; [ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 3"
    found = []
    with (
        running(supervise, *words, f"{script}; until [ -e end ]; do sleep 0.02; done; exit 4") as _run,
        lines_of(supervise) as until,
    ):
        until(lambda line: found.extend(line["incidents"]) or line["restarts"] == 1)
        (supervise.tmp_path / "end").touch()
        last = until(lambda line: found.extend(line["incidents"]) or line["kind"] == "end")
    assert last["exit_code"] == 4
    failed = [each["text"] for each in found if each["kind"] == "failed"]
    assert [code in text for code, text in zip(("exit code 3", "exit code 4"), failed, strict=True)] == [True, True]


def test_a_run_whose_directory_is_gone_ends_when_supervise_is_killed(supervise: Command):
    with running(supervise, "sh", "-c", SAYS) as run, lines_of(supervise) as until:
        until(lambda _: True)
        shutil.rmtree(supervise.directory())
        run.kill()
        assert until(lambda line: line["kind"] == "end")["exit_code"] is None


def test_an_incident_is_told_once(supervise: Command):
    words = ("--strategy", "one_for_one", "--max-restarts", "1", "--backoff", "0.1", "sh", "-c", FAILS)
    with running(supervise, *words, count=3) as _run, lines_of(supervise) as until:
        found = []
        until(lambda line: found.extend(line["incidents"]) or (line["restarts"] == 1 and len(found) >= 2))
        later = until(lambda _: True)
        assert [each["kind"] for each in found] == ["failed", "restart"]
        assert found[0]["rank"] == 1
        assert "exit code 28" in found[0]["text"]
        assert "no space left on device" in found[0]["text"]
        assert later["incidents"] == []
        until.process.send_signal(signal.SIGINT)
        assert until.process.wait(PATIENCE_S) == 130


def test_without_rich_and_without_a_reader(supervise: Command):
    """Both end it quietly: as other commands do when their reader has gone."""
    (supervise.tmp_path / "without/rich").mkdir(parents=True)
    (supervise.tmp_path / "without/rich/__init__.py").write_text("raise ModuleNotFoundError('No module named rich')")
    path = f"{supervise.tmp_path}/without{os.pathsep}{ROOT}"
    with running(supervise, "sh", "-c", SAYS) as _run, lines_of(supervise, PYTHONPATH=path) as until:
        assert until(lambda _: True)["ranks"]["0"]["last_line"] == "rank 0 is up"
        until.process.stdout.close()
        assert until.process.wait(PATIENCE_S) == 141
        assert select.select([until.process.stderr], [], [], 0)[0]
        assert until.process.stderr.read() == ""


def test_a_supervise_that_does_not_answer_is_told_on_stderr(supervise: Command):
    with running(supervise, "sh", "-c", SAYS) as run, lines_of(supervise) as until:
        until(lambda _: True)
        run.send_signal(signal.SIGSTOP)
        assert "supervise did not reply in time; it may be suspended" in until.process.stderr.readline()
        run.send_signal(signal.SIGCONT)
        until(lambda line: line["kind"] == "reading")
