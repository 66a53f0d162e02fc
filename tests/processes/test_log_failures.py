"""A console that nobody reads, a log that is moved, a disk that is full: one event, and the gang goes on."""

import errno
import os
import select
import threading

import pytest

from supervise import Close, DefaultLogsSpecs, Start, Status, Std, Supervisor
from supervise.testing import EventRecorder
from tests.patience import PATIENCE_S
from tests.processes.console import hosted, show
from tests.processes.gangs import Stopwatch
from tests.processes.test_logs import OVER, each_kind, log_of

MIB = 1 << 20
RESULT = "report['outcome'] = start().wait().outcome"

FLOOD = f"""
say("ready")
wait_for_word()
line = b"x" * 99 + b"\\n"
for _ in range(64):
    os.write(1, line * ({MIB} // 100))
say("written")
wait_for_word()
os._exit(9)
"""
PEER = "say(os.getpid()); signal.pause()"


@each_kind
@pytest.mark.parametrize("console", ["pipe", "pty"])
def test_l5_a_console_that_nobody_reads_holds_up_nobody(tmp_path, kind, console):
    """64 MiB are written; a death is noticed and answered; close returns in time and says what was not shown."""
    body = """
import time
gang = start()
wait_for_word()
begun = time.monotonic()
gang.close(timeout=1)
report["took_s"] = time.monotonic() - begun
report["result"] = gang.wait(0).outcome
"""
    more = {"tee": 1, "log_line_prefixes": {0: ""}, "console": console}
    with hosted(tmp_path, kind, [FLOOD, PEER], body=body, **more) as host:
        said = {host.hear(), host.hear()}
        peer = os.pidfd_open(int(min(said)))
        before_kib = host.rss_peak_kib()
        host.tell(0)
        assert host.hear() == "written"
        with Stopwatch() as watch:
            host.tell(0)
            assert select.select([peer], [], [], 20)[0], "the death of rank 0 was not noticed"
        os.close(peer)
        assert watch.seconds < PATIENCE_S / 2
        assert host.rss_peak_kib() - before_kib < 12 * 1024
        host.tell()
        host.process.wait(30)
        host.finish()
    assert host.report["result"] == "failed"
    assert host.report["took_s"] < PATIENCE_S / 2
    size = 64 * (MIB // 100) * 100
    log = log_of(tmp_path).read_bytes()
    assert len(log) == size
    assert host.out.data
    assert log.startswith(host.out.data)
    [event] = host.complaints
    assert (event["log_iostream"], event["remaining_bytes"]) == ("stdout", size - len(host.out.data))


TALKER = """
for text in ("the first", "second", "third"):
    os.write(1, f"{text}\\n".encode())
    os.write(2, f"{text} error\\n".encode())
    say(text)
    wait_for_word()
os.write(1, b"last words\\n")
"""


@each_kind
@pytest.mark.parametrize("console", ["pipe", "pty"])
def test_l7_a_console_whose_reader_is_gone_is_one_event(tmp_path, kind, console):
    """The gang succeeds, its files are whole, and the other stream is shown on."""
    with hosted(tmp_path, kind, [TALKER], tee=3, body=RESULT, console=console) as host:
        assert host.hear() == "the first"
        host.out.until(b"[w0]:the first\n")
        host.out.close()
        for text in ("second", "third"):
            host.tell(0)
            assert host.hear() == text
            host.err.until(f"[w0]:{text} error\n".encode())
        host.tell(0)
        host.finish()
    assert host.report["outcome"] == "succeeded"
    assert log_of(tmp_path).read_bytes() == b"the first\nsecond\nthird\nlast words\n"
    assert host.err.data == b"[w0]:the first error\n[w0]:second error\n[w0]:third error\n"
    [event] = host.complaints
    assert event["log_iostream"] == "stdout"
    assert "Broken pipe" in event["error"] or "Input/output error" in event["error"]


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("binary", "renamed"),
        ("binary", "rotated"),
        ("binary", "unlinked"),
        ("binary", "replaced by a pipe"),
        ("binary", "replaced by a folder"),
        ("binary", "replaced by a link"),
        ("spawn", "rotated"),
        ("forkserver", "unlinked"),
    ],
)
def test_l7_a_log_that_is_moved_away_is_shown_to_its_end(tmp_path, kind, how):
    """The worker writes on into the same file, and so does the console show it, whatever now has its name."""
    source = TALKER + "open(1, 'wb', closefd=False).write(b'more\\n' * 1_000_000)"
    with hosted(tmp_path, kind, [source], tee=1) as host:
        assert host.hear() == "the first"
        host.out.until(b"[w0]:the first\n")
        path = log_of(tmp_path)
        if how == "unlinked":
            path.unlink()
        else:
            path.rename(path.with_suffix(".old"))
        if how == "rotated":
            path.touch()
        elif how == "replaced by a pipe":
            os.mkfifo(path)
        elif how == "replaced by a folder":
            path.mkdir()
        elif how == "replaced by a link":
            path.symlink_to("/dev/zero")
        for text in ("second", "third"):
            host.tell(0)
            assert host.hear() == text
        host.tell(0)
        host.finish()
    first = b"[w0]:the first\n[w0]:second\n[w0]:third\n[w0]:last words\n"
    assert host.out.data == first + b"[w0]:more\n" * 1_000_000 + OVER
    assert host.complaints == []


@each_kind
def test_l7_a_log_that_is_truncated_is_one_event_and_shown_on(tmp_path, kind):
    """Twice cut to nothing and begun with less, it is shown from its beginning each time; that is said once."""
    with hosted(tmp_path, kind, [TALKER], tee=1) as host:
        for text in ("the first", "second", "third"):
            assert host.hear() == text
            host.out.until(f"[w0]:{text}\n".encode())
            if text != "third":
                os.truncate(log_of(tmp_path), 0)
            host.tell(0)
        host.finish()
    assert host.out.data == b"[w0]:the first\n[w0]:second\n[w0]:third\n[w0]:last words\n" + OVER
    [event] = host.complaints
    assert (event["path"], "truncated" in event["error"]) == (str(log_of(tmp_path)), True)


FULL = """
class Full(supervise.DefaultLogsSpecs):
    def reify(self, envs):
        dest = super().reify(envs)
        dest.filtered_stdout = "/dev/full"
        return dest

specs = Full(spec["folder"] + "/logs", tee=supervise.Std.ALL)
gang = start(logs_specs=specs, duplicate_stdout_filters=["r"], duplicate_stderr_filters=["i"])
report["outcome"] = gang.wait().outcome
"""


@each_kind
def test_l7_a_filtered_file_on_a_full_disk_is_one_event(tmp_path, kind):
    """The console and the other filtered file get everything."""
    with hosted(tmp_path, kind, [TALKER], body=FULL) as host:
        for _ in range(3):
            host.hear()
            host.tell(0)
        host.finish()
    assert host.report["outcome"] == "succeeded"
    assert host.out.data == b"[w0]:the first\n[w0]:second\n[w0]:third\n[w0]:last words\n"
    [filtered] = tmp_path.glob("logs/*/attempt_0/filtered_stderr.log")
    assert filtered.read_bytes() == b"[w0]:the first error\n[w0]:third error\n"
    [event] = host.complaints
    assert (event["log_iostream"], "No space left" in event["error"]) == ("filtered_stdout", True)


HEIR = """
import subprocess
subprocess.Popen(["sh", "-c", "ulimit -f 4000000; exec yes"], start_new_session={alone})
os.write(2, b"bye\\n")
"""


@each_kind
def test_l10_a_grandchild_that_keeps_writing_is_not_waited_for(tmp_path, kind):
    """The result is there while `yes` still runs; shown is what had been written when the rank was reaped."""
    body = """
gang = start(by=supervise.Supervisor.start)
gang.ask(supervise.Start())
result = gang.ask(supervise.Wait())
report["left"] = list(gang.ask(supervise.Status()).leftovers)
report["outcome"] = result.outcome
gang.ask(supervise.Close(timeout=0))
gang.stop()
"""
    more = {"tee": 3, "log_line_prefixes": {0: ""}, "body": body, "console": "file"}
    host = show(tmp_path, kind, [HEIR.format(alone=False)], **more)
    report = dict(host.report)
    events = report.pop("events")
    assert report == {"left": [0], "outcome": "succeeded"}
    # `yes` was fast: it wrote more than is shown, or wrote on until the close
    expected = ("after the end of their rank", "closed before everything was shown")
    errors = [event["error"] for event in events]
    assert all(any(text in error for text in expected) for error in errors), errors
    shown, log = tmp_path / "stdout", log_of(tmp_path)
    assert shown.stat().st_size <= log.stat().st_size  # it may have been killed before it wrote on
    assert set(host.out.data) <= {*b"y\n"}
    assert host.err.data == b"bye\n"
    log.unlink()


def test_l5_the_tails_of_a_start_without_descriptors_report_nothing_behind_the_end_of_the_gang(tmp_path, breaking):
    """The start fails when its Tails run already; on a busy machine they open their logs after the close."""
    ended = threading.Event()

    def open_late(_open, reader, notice):
        assert ended.wait(PATIENCE_S)
        raise OSError(errno.EMFILE, "no descriptor is left", reader.path)

    breaking.instead("open of a log", open_late)
    breaking.raises("making of a worker", OSError(errno.EMFILE, "no descriptor is left"))
    events = EventRecorder()
    logs = DefaultLogsSpecs(str(tmp_path), tee=Std.ALL)
    gang = Supervisor.start(name="x", entrypoint="sleep", args={0: ("1000",)}, logs_specs=logs, event_sink=events)
    try:
        with pytest.raises(OSError, match="no descriptor is left"):
            gang.ask(Start(), timeout=PATIENCE_S)
        tails = [thread for thread in threading.enumerate() if thread.name.startswith("Tail-")]
        assert tails
        gang.ask(Close(), timeout=PATIENCE_S)
        ended.set()
        for thread in tails:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        gang.ask(Status(), timeout=PATIENCE_S)  # answered behind what the Tails have posted
    finally:
        ended.set()
        gang.stop(timeout=PATIENCE_S)
    assert [event["event"] for event in events.all] == ["supervise.gang.finished"]
