"""`TailLog` by itself: files that come late or never, streams of any kind, an end in any case."""

import io
import logging
import os
import queue
import threading
import time

import pykka
import pytest

from supervise.elastic.tail_log import TailLog, tail_logfile
from tests.kernels import use_inotify
from tests.patience import PATIENCE_S


class Lines(io.StringIO):
    """A text stream that tells of each line that is written to it."""

    def __init__(self):
        super().__init__()
        self.lines = queue.Queue()

    def write(self, text):
        for line in text.splitlines(keepends=True):
            self.lines.put(line)
        return super().write(text)

    def next(self):
        return self.lines.get(timeout=PATIENCE_S)


def add(path, text):
    with path.open("a") as file:
        file.write(text)


@pytest.fixture(params=[True, False], ids=["inotify", "polled"])
def _either_watch(request, monkeypatch):
    use_inotify(monkeypatch, use=request.param)


@pytest.mark.usefixtures("_either_watch")
def test_lines_are_shown_as_they_come_and_the_rest_at_stop(tmp_path):
    files = {0: tmp_path / "0.log", 1: tmp_path / "1.log"}
    for path in files.values():
        path.touch()
    dst = Lines()
    tail = TailLog("trainer", files, dst).start()
    add(files[0], "a\n")
    assert dst.next() == "[trainer0]:a\n"
    add(files[1], "b\n")
    assert dst.next() == "[trainer1]:b\n"
    add(files[0], "c\nunfinished")
    assert not tail.stopped()
    tail.stop()
    assert tail.stopped()
    assert dst.getvalue().splitlines() == ["[trainer0]:a", "[trainer1]:b", "[trainer0]:c", "[trainer0]:unfinished"]


@pytest.mark.usefixtures("_either_watch")
@pytest.mark.parametrize("way", ["created", "folders", "renamed", "link"])
def test_a_file_may_come_later(tmp_path, way):
    """It is noticed when it comes, in a folder that may be missing too."""
    path = tmp_path / "a" / "b" / "0.log" if way == "folders" else tmp_path / "0.log"
    if way == "link":
        (tmp_path / "elsewhere").mkdir()
        path.symlink_to(tmp_path / "elsewhere" / "real.log")
    dst = Lines()
    tail = TailLog("t", {0: str(path)}, dst).start()
    try:
        if way == "folders":
            path.parent.parent.mkdir()
            path.parent.mkdir()
        if way == "renamed":
            add(tmp_path / "other", "hello\n")
            (tmp_path / "other").rename(path)
        else:
            add(path, "hello\n")
        assert dst.next() == "[t0]:hello\n"
        add(path, "again\n")
        assert dst.next() == "[t0]:again\n"
    finally:
        tail.stop()


def test_a_file_that_came_unnoticed_is_shown_at_stop(tmp_path, monkeypatch):
    def nobody_tells(path, changed):
        raise PermissionError(13, "may not be watched", path)

    monkeypatch.setattr("supervise._logs.watch.watch", nobody_tells)
    dst = io.StringIO()
    tail = TailLog("t", {0: str(tmp_path / "0.log")}, dst).start()
    add(tmp_path / "0.log", "hello\n")
    tail.stop()
    assert dst.getvalue() == "[t0]:hello\n"


def test_a_file_that_never_comes_does_not_hold_up_the_end(tmp_path, caplog):
    tail = TailLog("t", {0: str(tmp_path / "never"), 1: str(tmp_path / "no" / "never")}, io.StringIO()).start()
    begun = time.monotonic()
    tail.stop()
    tail.stop()
    assert time.monotonic() - begun < PATIENCE_S
    assert not caplog.records


def test_a_file_that_cannot_be_read_is_logged_once_and_hurts_no_other(tmp_path, caplog):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    add(tmp_path / "good", "hello\n")
    dst = Lines()
    files = {0: str(tmp_path / "folder"), 1: str(tmp_path / "pipe"), 2: str(tmp_path / "good")}
    with caplog.at_level(logging.ERROR):
        tail = TailLog("t", files, dst).start()
        assert dst.next() == "[t2]:hello\n"
        tail.stop()
    assert sorted(r.message.split(".")[0] for r in caplog.records) == [
        "error in log tailer for t0",
        "error in log tailer for t1",
    ]


def test_prefixes_and_the_default_where_one_is_missing(tmp_path):
    for name in "01":
        add(tmp_path / name, "x\n")
    dst = io.StringIO()
    tail = TailLog("t", {0: str(tmp_path / "0"), 1: str(tmp_path / "1")}, dst, {1: "one> "}).start()
    tail.stop()
    assert sorted(dst.getvalue().splitlines()) == ["[t0]:x", "one> x"]


def test_the_filter_gets_text_lines_and_decides(tmp_path):
    (tmp_path / "0").write_bytes("keep ä\ndrop\nkeep \xff\n".encode("latin-1") + b"keep last")
    seen = []

    def keep(line):
        seen.append(line)
        return "keep" in line

    dst = io.StringIO()
    TailLog("t", {0: str(tmp_path / "0")}, dst, log_line_filter=keep).start().stop()
    assert seen == ["keep �\n", "drop\n", "keep �\n", "keep last"]
    assert dst.getvalue() == "[t0]:keep �\n[t0]:keep �\n[t0]:keep last"


def test_a_filter_that_raises_ends_the_showing_and_not_the_stop(tmp_path, caplog):
    add(tmp_path / "0", "x\n")

    def broken(line):
        raise KeyError(line)

    tail = TailLog("t", {0: str(tmp_path / "0")}, io.StringIO(), log_line_filter=broken).start()
    tail.stop()
    assert any("not shown to its end" in record.message for record in caplog.records)


@pytest.mark.parametrize("files", [{}, {0: "unused"}, {0: os.devnull, 1: ""}])
def test_without_files_or_without_a_stream_it_does_nothing(files, caplog):
    tail = TailLog("t", files, None if files == {0: "unused"} else io.StringIO())
    assert tail.start() is tail
    tail.stop()
    assert tail.stopped()
    assert not caplog.records


def test_stop_before_start_and_start_after_stop(tmp_path):
    tail = TailLog("t", {0: str(tmp_path / "0")}, io.StringIO())
    tail.stop()
    with pytest.raises(RuntimeError, match="was stopped"):
        tail.start()


def test_started_twice_it_shows_once(tmp_path):
    add(tmp_path / "0", "x\n")
    dst = io.StringIO()
    TailLog("t", {0: str(tmp_path / "0")}, dst).start().start().stop()
    assert dst.getvalue() == "[t0]:x\n"


def test_a_real_file_gets_every_byte_of_500_000_lines(tmp_path):
    """Nothing is lost between a writer that goes on until the stop and the stop."""
    source, shown = tmp_path / "0", tmp_path / "shown"
    source.touch()
    with shown.open("w") as dst:
        tail = TailLog("t", {0: str(source)}, dst, {0: ""}).start()
        with source.open("w") as file:
            file.writelines(f"line {i}\r\n" if i % 7 == 0 else f"line\r{i}\n" for i in range(500_000))
        tail.stop()
    assert shown.read_bytes() == source.read_bytes()


def test_a_destination_that_takes_nothing_is_given_up(tmp_path, stuck_destination_is_given_up_soon, caplog):
    source = tmp_path / "0"
    source.write_bytes(b"x" * 99 + b"\n")
    for _ in range(13):
        source.write_bytes(source.read_bytes() * 2)
    read, write = os.pipe()
    try:
        with open(write, "w") as dst:  # noqa: PTH123 - a descriptor
            tail = TailLog("t", {0: str(source)}, dst).start()
            tail.stop()
            assert tail.stopped()
        assert "bytes are only in its files" in caplog.text
    finally:
        os.close(read)


def test_a_destination_that_fails_is_logged_and_ends_it(tmp_path, caplog):
    add(tmp_path / "0", "x\n")
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as dst:  # noqa: PTH123
        TailLog("t", {0: str(tmp_path / "0")}, dst).start().stop()
    assert "Broken pipe" in caplog.text


def test_stopping_every_actor_ends_it_after_it_has_shown_all(tmp_path):
    add(tmp_path / "0", "x\n")
    dst = io.StringIO()
    tail = TailLog("t", {0: str(tmp_path / "0")}, dst).start()
    pykka.ActorRegistry.stop_all(timeout=PATIENCE_S)
    assert dst.getvalue() == "[t0]:x\n"
    tail.stop()


def test_tail_logfile_blocks_until_finished_is_set(tmp_path):
    dst, finished = Lines(), threading.Event()
    thread = threading.Thread(target=tail_logfile, args=("h:", str(tmp_path / "0"), dst, finished, 0.1, lambda _: True))
    thread.start()
    add(tmp_path / "0", "x\n")
    assert dst.next() == "h:x\n"
    add(tmp_path / "0", "y\n")
    finished.set()
    thread.join(PATIENCE_S)
    assert dst.getvalue() == "h:x\nh:y\n"


def test_tail_logfile_raises_what_the_file_raises(tmp_path):
    finished = threading.Event()
    finished.set()
    tail_logfile("h:", str(tmp_path / "never"), io.StringIO(), finished, 0.1)
    with pytest.raises(IsADirectoryError):
        tail_logfile("h:", str(tmp_path), io.StringIO(), finished, 0.1)


def test_the_name_of_pytorchs_thread_pool_tells_whether_it_was_shut_down(tmp_path):
    tail = TailLog("trainer", {0: str(tmp_path / "never")}, io.StringIO()).start()
    assert not tail._threadpool._shutdown
    tail.stop()
    assert tail._threadpool._shutdown
    assert TailLog("trainer", {}, io.StringIO())._threadpool is None
