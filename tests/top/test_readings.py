"""What a reading says, from the files of a run and from what supervise tells."""

import json
import os
import time
from pathlib import Path

import pytest

from supervise._views.top.reader import MOST_KEPT, Incidents, Reader, last_line, log_end, read_lines
from supervise.cli.commands.steering import Target
from supervise.cli.commands.top import Feed
from supervise.cli.run.signal_inbox import SignalInbox
from tests.views.fake_run import BEGIN_S, event, exited, read_run, write_run

ROW = {"pid": 7, "state": "ready", "attempt": 0, "restarts": 0, "status": None, "step": None, "beat_age_s": None}


def status(**changed):
    rows = {"0": ROW, "1": ROW | changed}
    return {"phase": "running", "attempt": 0, "pid": os.getpid(), "running": [0, 1], "ranks": rows}


def write_log(run: Path, rank: int, text: bytes, *, attempt: int = 0, name: str = "stdout.log") -> Path:
    path = run / f"attempt_{attempt}/{rank}/{name}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_run(tmp_path / "job_x", 2, [])
    return tmp_path / "job_x"


def append(run: Path, *events: object) -> None:
    with (run / "events.jsonl").open("a") as file:
        for each in events:
            file.write(each if isinstance(each, str) else json.dumps(each) + "\n")


def test_events_are_followed_and_a_line_may_come_in_parts(run: Path):
    incidents = Incidents(str(run))
    write_log(run, 1, b"the last words\n \n", name="stderr.log")
    write_log(run, 1, b"not those\n")
    assert incidents.look() == []
    whole = json.dumps(exited(5, 1, exit_code=3, level="error", uptime_s=5.0))
    append(run, whole[:40])
    assert incidents.look() == []
    append(run, whole[40:] + "\n")
    (found,) = incidents.look()
    assert (found.kind, found.rank, found.at_s) == ("failed", 1, BEGIN_S + 5)
    assert found.text == "rank 1 failed: exit code 3 after 5 s; last line: the last words"
    assert incidents.first is found
    append(run, exited(5.5, 0, exit_code=4, level="error"))
    assert [each.rank for each in incidents.look()] == [0]
    assert incidents.first is found
    assert incidents.look() == []
    append(run, event("gang.restarting", 6, attempt=1, backoff_s=1.0, root_cause_rank=1, error_type="exit code 3"))
    (found,) = incidents.look()
    assert found.text == "all ranks restart in 1 s: rank 1 failed (exit code 3)"
    assert incidents.first is None
    append(
        run,
        event(
            "process.restarting", 7, 1, attempt=2, backoff_s=0.0, exit_code=0, end_role="terminated", level="warning"
        ),
    )
    (found,) = incidents.look()
    assert found.text == "rank 1 restarts at once: stopped, exit code 0"
    append(
        run,
        event("process.hung", 8, 0, tier="heartbeat", age_s=30.0, step=None),
        event("process.faulted", 8, 0, message="hung: no heartbeat for 30.0 s"),
        exited(9, 0, spontaneous=False),
        event("process.restarting", 9, 0, attempt=2, backoff_s=1.0, exit_code=0, level="warning"),
    )
    assert [each.text for each in incidents.look()] == [
        *("rank 0 hangs: no heartbeat for 30 s", "rank 0 restarts in 1 s: hung")
    ]


def test_what_a_rank_may_have_written_to_the_events_is_left_out(run: Path):
    incidents = Incidents(str(run))
    bad = [
        event("process.exited", 1, 0, level="error"),
        event("process.hung", 1, 0, tier="heartbeat", age_s="long", step=None),
        event("process.hung", 1, 0, tier="heartbeat", age_s=float("inf"), step=None),
        event("gang.restarting", 1, backoff_s=[]),
        '{"event": "supervise.process.exited"\n',
        '["supervise.process.exited"]\n',
        '{"event": 3, "x": "supervise.gang."}\n',
        "\0" * 1000 + "\n",
        "[" * 100_000 + '"supervise.gang."\n',
    ]
    append(run, *bad, event("process.stopped", 2, 1, signal="SIGTSTP\x1b[2J"))
    (found,) = incidents.look()
    assert found.text == "rank 1 was suspended by SIGTSTP"
    append(run, *[event("process.stopped", 3, 0, signal="SIGSTOP")] * (MOST_KEPT + 5))
    incidents.look()
    assert (len(incidents.kept), incidents.count) == (MOST_KEPT, MOST_KEPT + 6)


@pytest.mark.parametrize("hole", ["\0" * 1000 + "\n", "\0" * 1000, "\0" * (1 << 21)], ids=["a line", "short", "long"])
def test_an_event_after_a_hole_is_read_once(run: Path, hole: str):
    """What a full disk, or a rank, leaves in the file."""
    append(run, hole, *[event("process.stopped", after_s, 1, signal="SIGTSTP") for after_s in (2, 3)])
    assert len(Incidents(str(run)).look()) == 2
    found = [each for each in read_run(run).events() if each["event"].endswith("stopped")]
    assert len(found) == 2


def test_of_a_huge_file_only_the_end_is_read(run: Path):
    append(run, ("x" * 1000 + "\n") * 6000, event("process.stopped", 3, 0, signal="SIGSTOP"))
    (found,) = Incidents(str(run)).look()
    assert found.kind == "suspended"


def test_a_hang_lasts_until_the_next_heartbeat_or_output(run: Path):
    reader = Reader(read_run(run))
    log = write_log(run, 1, b"one\n")

    def state(**changed: object) -> str:
        return reader.read(status(**changed), same_pids=False).ranks[1].state

    now_s = time.time() - BEGIN_S
    append(run, event("process.hung", now_s, 1, tier="heartbeat", age_s=30.0, step=4))
    assert state(beat_age_s=30.0) == "hung"
    assert state(beat_age_s=None) == "hung"
    assert state(beat_age_s=-1.0) == "ready"
    assert state(beat_age_s=30.0, attempt=1) == "ready"
    assert state(beat_age_s=30.0, state="stopping") == "stopping"
    append(run, event("process.hung", now_s + 1000, 1, tier="output", age_s=30.0, step=None))
    assert state(beat_age_s=0.0) == "hung"
    os.utime(log, (BEGIN_S + now_s + 1001,) * 2)
    assert state(beat_age_s=0.0) == "ready"


def test_rates_need_two_readings_of_one_life(run: Path):
    reader = Reader(read_run(run))
    log = write_log(run, 1, b"12345\n")
    mine = {"pid": os.getpid()}
    first = reader.read(status(**mine), same_pids=True).ranks[1]
    assert (first.cpu, first.output_bytes, first.output_bytes_per_s) == (None, 6, None)
    assert first.rss_bytes > 1 << 20
    log.write_bytes(b"123456789\n")
    second = reader.read(status(**mine), same_pids=True).ranks[1]
    assert second.cpu >= 0
    assert second.output_bytes_per_s > 0
    third = reader.read(status(**mine, attempt=1), same_pids=False).ranks[1]
    assert (third.cpu, third.rss_bytes, third.output_bytes) == (None, None, None)


def test_output_is_averaged_over_some_readings(run: Path, monkeypatch: pytest.MonkeyPatch):
    """A rank that prints every 3 s is not at 0 between its lines; after 10 s without a line, it is."""
    clock = [100.0]
    monkeypatch.setattr("supervise._views.top.reader.time.monotonic", lambda: clock[0])
    reader = Reader(read_run(run))
    log = write_log(run, 1, b"")
    rates = []
    for second in range(40):
        if second % 3 == 0 and second < 24:
            with log.open("ab") as file:
                file.write(b"x" * 29 + b"\n")
        rates.append(reader.read(status(), same_pids=False).ranks[1].output_bytes_per_s)
        clock[0] += 1
    assert rates[0] is None
    assert all(8 <= rate <= 12 for rate in rates[11:24]), rates
    assert rates[31] == 0
    write_log(run, 1, b"of the next life\n", attempt=1)
    assert reader.read(status(attempt=1), same_pids=False).ranks[1].output_bytes_per_s is None
    write_log(run, 1, b"of the next life\nand more\n", attempt=1)
    clock[0] += 3
    assert reader.read(status(attempt=1), same_pids=False).ranks[1].output_bytes_per_s == 3


def test_a_failed_rank_has_its_end_and_the_text_of_the_report(run: Path):
    reader = Reader(read_run(run))
    write_log(run, 1, b"step 16\n")
    write_log(run, 1, b"Traceback ...\nKeyError: 'weights'\n", name="stderr.log")
    failed = {"level": "error", "pid": 7, "uptime_s": 2.0, "exit_code": None, "exit_signal": "SIGKILL"}
    append(run, event("process.started", 1, 1, pid=7), exited(3, 1, **failed))
    row = reader.read(status(state="failed"), same_pids=False).ranks[1]
    assert row.end == "SIGKILL"
    assert reader.why(0) == []
    assert reader.why(1) == [
        "rank 1 of 2 failed: SIGKILL (host node7, pid 7, after 2 s)",
        "  the end of its stderr:",
        "    Traceback ...",
        "    KeyError: 'weights'",
    ]
    assert reader.incidents.first.text == "rank 1 failed: SIGKILL after 2 s; last line: KeyError: 'weights'"
    append(run, event("process.started", 4, 1, pid=8))
    row = reader.read(status(attempt=1), same_pids=False).ranks[1]
    assert row.end is None
    assert reader.why(1)[0].startswith("rank 1 of 2 failed: SIGKILL")


@pytest.mark.parametrize("bad", ["x", None, [], {}, float("inf"), -(2**70)])
def test_an_end_that_a_rank_has_written_is_told_as_far_as_possible(run: Path, bad: object):
    reader = Reader(read_run(run))
    fields = dict.fromkeys(("pid", "uptime_s", "exit_code", "exit_signal", "attempt", "complaint", "oom_kill"), bad)
    append(run, exited(3, 1, level="error") | fields, event("process.faulted", 3, 0, message=bad))
    reader.read(status(state="failed"), same_pids=False)
    assert all(isinstance(line, str) for rank in (0, 1) for line in reader.why(rank))


def test_a_hang_is_told_as_the_failure_also_when_its_process_has_ended(run: Path):
    reader = Reader(read_run(run))
    append(
        run, event("process.started", 1, 1, pid=7), event("process.faulted", 2, 1, message="hung: no output for 30 s")
    )
    reader.read(status(), same_pids=False)
    assert reader.why(1) == ["rank 1 failed: hung: no output for 30 s"]
    append(run, exited(3, 1, pid=7, uptime_s=2.0, exit_code=None, exit_signal="SIGTERM", spontaneous=False))
    reader.read(status(), same_pids=False)
    assert reader.why(1)[0] == "rank 1 of 2 failed: hung: no output for 30 s (host node7, pid 7, after 2 s)"


def test_processes_on_other_machines_are_not_read(run: Path):
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(info | {"engine": "ray"}))
    row = Reader(read_run(run)).read(status(pid=os.getpid()), same_pids=True).ranks[1]
    assert row.rss_bytes is None


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"one\ntwo\n\n  \n", "two"),
        (b"10%\r20%\r30%", "30%"),
        (b"10%\r20%\r", "20%"),
        (b"\x1b]0;owned\x07a\tb\x1b[31mc\n", "a       bc"),
        (b"\xff\xfe\n", "\ufffd\ufffd"),
        (b"\0" * 5000 + b"after a hole\n", "after a hole"),
        (b"", None),
    ],
)
def test_the_last_line_is_as_a_terminal_would_show_it(run: Path, content: bytes, line: str | None):
    write_log(run, 0, content)
    assert last_line(log_end(str(run), 0, 0)) == line


def test_the_log_that_was_written_last_counts_and_an_empty_one_does_not(run: Path):
    out, err = write_log(run, 0, b"out\n"), write_log(run, 0, b"err\n", name="stderr.log")
    os.utime(err, (1, 1))
    assert last_line(log_end(str(run), 0, 0)) == "out"
    out.write_bytes(b"")
    assert last_line(log_end(str(run), 0, 0)) == "err"
    assert log_end(str(run), 0, 1) is None


def test_a_log_that_was_replaced_is_not_read(run: Path):
    """A pipe would block, and a link lead elsewhere."""
    path = write_log(run, 0, b"secret\n")
    link = run / "link"
    link.symlink_to(path)
    os.mkfifo(run / "pipe")
    assert read_lines(str(link)) == []
    assert read_lines(str(run / "pipe")) == []
    assert read_lines(str(path)) == ["secret"]


def test_readings_do_not_pile_up_while_the_output_blocks(run: Path):
    reader = Reader(read_run(run))
    with SignalInbox((), restore=True) as inbox:
        feed = Feed(Target("job", str(run / "control.sock"), read_run(run)), inbox)
        for _ in range(10):
            feed._pass_on(reader.read(status(), same_pids=False))
        assert len(feed.drain()) == 2
        feed._pass_on(reader.read(status(), same_pids=False))
        assert len(feed.drain()) == 1


def test_on_an_engine_incidents_name_global_ranks(run):
    """The local rank of such an event is that of its host; rows and logs are known by global ranks."""
    append(run, event("process.hung", 1, 3, tier="heartbeat", age_s=30.0, step=4) | {"local_rank": 1, "host": 1})
    incidents = Incidents(str(run))
    (found,) = incidents.look()
    assert (found.rank, found.text) == (3, "rank 3 hangs: no heartbeat for 30 s (step 4)")
    assert list(incidents.state.ranks) == [3]
