"""A Tail whose destination is slow, blocked or failing while a rank is restarted: order, bytes, descriptors."""

import errno
import os
import threading

import pytest

from supervise._core.steps import TailEnded
from supervise._gang.orders import ChangeFiles, Drain
from supervise._gang.tail_files import readers
from supervise._gang.tail_specs import Source
from supervise._logs import watch as watching
from supervise._logs.files import move_aside
from supervise._logs.sinks import CancelToken, console
from tests.patience import PATIENCE_S

PREFIX = b"[r0]:"


def append(path, data):
    with path.open("ab", buffering=0) as stream:
        assert stream.write(data) == len(data)


class Rank:
    """Rank 0 of a Tail: `begin` makes the file of its next life and tells the Tail of it."""

    def __init__(self, ref, sink, first, line_filter=None):
        self.ref = ref
        self.sink = sink
        self.paths = [first]
        self.feeds = []
        self.line_filter = line_filter

    @property
    def path(self):
        return self.paths[-1]

    def begin(self, path=None):
        sizes = {str(self.path): self.path.stat().st_size}
        if path is None:
            path = self.path.parent / f"life_{len(self.paths)}.log"
        else:
            move_aside(str(path))
        path.touch()
        source = Source(local_rank=0, path=str(path), prefix=PREFIX)
        feeds = readers(self.sink, [source], self.line_filter, follow_writers=True)
        for feed in feeds:
            feed.expect_present_file()
        for feed in self.feeds[-1:]:
            feed.writer_ended()
        self.paths.append(path)
        self.feeds += feeds
        self.ref.tell(ChangeFiles(feeds=feeds, sizes=sizes))

    def live(self, data):
        self.begin()
        append(self.path, data)

    def shown(self):
        """What the Tail should have shown of all lives."""
        lines = b"".join(path.read_bytes() for path in self.paths).splitlines(keepends=True)
        return b"".join(PREFIX + line for line in lines)

    def drain(self, *others):
        self.ref.tell(Drain(sizes={str(path): path.stat().st_size for path in [self.path, *others]}))


def open_files():
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def open_logs():
    """Return the number of descriptors without those of watching threads, which close theirs some time after use."""
    return sum(not kind_of(fd).startswith("anon_inode:") for fd in os.listdir("/proc/self/fd"))  # noqa: PTH208


def kind_of(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115
    except FileNotFoundError:  # closed meanwhile
        return "anon_inode:"


def settle(bench, rank):
    """Wait until the Tail has handled what it was told."""
    assert rank.ref.ask("flush", timeout=PATIENCE_S) is None


@pytest.fixture(params=["console", "file"])
def to(request, sink, file_like_sink):
    return sink if request.param == "console" else file_like_sink


@pytest.mark.parametrize("have_inotify", [True, False], ids=["inotify", "polling"])
def test_200_lives_of_1000_lines_beside_a_rank_that_writes_all_the_time(bench, to, logs, monkeypatch, have_inotify):
    monkeypatch.setattr(watching, "HAVE_INOTIFY", have_inotify)
    paths = logs(2)
    rank = Rank(bench.tail(to, paths), to, paths[0])
    lives_over = threading.Event()

    def write():
        number = 0
        while not lives_over.is_set() and number < 100_000:
            append(paths[1], b"".join(b"other %d\n" % (number + i) for i in range(10)))
            number += 10

    other = threading.Thread(target=write)
    other.start()
    settle(bench, rank)
    before = open_files()
    for life in range(200):
        lines = b"".join(b"life %d line %d\n" % (life, number) for number in range(1000))
        append(rank.path, lines[:7001])  # within a line
        append(rank.path, lines[7001:])
        if life < 199:
            rank.begin()
    lives_over.set()
    other.join(PATIENCE_S)
    rank.drain(paths[1])
    assert bench.ended() == TailEnded(name="stdout", remaining_bytes=0, error=None)
    shown = bytes(to.data).splitlines(keepends=True)
    assert b"".join(line for line in shown if line.startswith(PREFIX)) == rank.shown()
    others = b"".join(line.removeprefix(b"[r1]:") for line in shown if line.startswith(b"[r1]:"))
    assert others == paths[1].read_bytes()
    assert len(shown) == 200_000 + others.count(b"\n")
    assert open_files() < before
    assert bench.errors.empty()


def test_a_past_life_is_shown_whole_before_the_next_one(bench, sink, logs):
    """Also if it has much more to show than the Tail reads in one turn."""
    paths = logs(2)
    append(paths[0], b"".join(b"life 0 line %d\n" % number for number in range(30_000)))
    append(paths[1], b"not held up\n")
    sink.gate.clear()
    rank = Rank(bench.tail(sink, paths), sink, paths[0])
    assert sink.writing.wait(PATIENCE_S)
    for life in range(1, 4):
        rank.live(b"".join(b"life %d line %d\n" % (life, number) for number in range(10_000)))
    sink.gate.set()
    sink.wait_for(b"[r1]:not held up\n")
    sink.wait_for(b"[r0]:life 3 line 9999\n")
    assert bytes(sink.data).replace(b"[r1]:not held up\n", b"") == rank.shown()
    assert sink.data.index(b"[r1]") < sink.data.index(b"life 1")
    rank.drain(paths[1])
    assert bench.ended().remaining_bytes == 0


def waiting_lives(bench, sink, paths):
    """Three large lives that the Tail has not yet shown, because the destination blocks."""
    append(paths[0], b"life 0\n" * 30_000)
    sink.gate.clear()
    rank = Rank(bench.tail(sink, paths), sink, paths[0])
    assert sink.writing.wait(PATIENCE_S)
    for life in range(1, 4):
        rank.live(b"life %d\n" % life * 30_000)
    return rank


def test_a_waiting_life_of_unknown_size_is_shown_whole(bench, sink, logs):
    rank = waiting_lives(bench, sink, logs(1))
    rank.ref.tell(Drain(sizes={}))
    sink.gate.set()
    assert bench.ended().remaining_bytes == 0
    assert sink.data == rank.shown()


@pytest.mark.parametrize("gone", [1, 2, 3])
def test_a_waiting_life_whose_file_is_gone_is_told_and_counted(bench, sink, logs, gone):
    rank = waiting_lives(bench, sink, logs(1))
    rank.drain()
    lost = rank.paths.pop(gone)
    size = lost.stat().st_size
    lost.unlink()
    sink.gate.set()
    assert bench.ended().remaining_bytes == size
    assert sink.data == rank.shown()
    where, error = bench.errors.get_nowait()
    assert (where, error.errno) == (str(lost), errno.ENOENT)
    assert bench.errors.empty()


def test_a_progress_bar_of_a_past_life_ends_with_its_last_state(bench, sink, logs):
    paths = logs(1)
    rank = Rank(bench.tail(sink, paths), sink, paths[0])
    append(rank.path, b"\r 1%")
    sink.wait_for(b"[r0]: 1%\n")
    append(rank.path, b"\r 2%\r 3%")
    rank.live(b"next\n")
    rank.drain()
    bench.ended()
    assert sink.data == b"[r0]: 1%\n[r0]: 3%\n[r0]:next\n"


def test_a_destination_that_blocks_costs_no_descriptors_and_gets_all_in_the_end(bench, sink, logs):
    paths = logs(2)
    append(paths[0], b"first\n")
    sink.gate.clear()
    rank = Rank(bench.tail(sink, paths), sink, paths[0])
    assert sink.writing.wait(PATIENCE_S)
    before = open_files()
    for life in range(100):
        rank.live(b"life %d\n" % life)
    assert open_files() <= before
    sink.gate.set()
    sink.wait_for(b"[r0]:life 99\n")
    settle(bench, rank)
    assert open_files() <= before
    rank.drain(paths[1])
    assert bench.ended().remaining_bytes == 0
    assert sink.data == rank.shown()


def test_a_slow_console_gets_all_and_costs_no_descriptors(bench, logs):
    """A pipe that is read in small pieces, while each life writes more than the pipe holds."""
    paths = logs(1)
    reader, writer = os.pipe()
    got = bytearray()
    with os.fdopen(writer, "w") as stream:
        sink = console(stream)
        rank = Rank(bench.tail(sink, paths), sink, paths[0])
        settle(bench, rank)  # its thread has opened what it needs
        before = open_logs()
        most = before
        for life in range(30):
            rank.live(b"".join(b"life %d line %d\n" % (life, number) for number in range(8_000)))
            got += os.read(reader, 4096)
            most = max(most, open_logs())
        rank.drain()
        expected = rank.shown()
        while len(got) < len(expected):
            got += os.read(reader, 65536)
            most = max(most, open_logs())
        assert bench.ended().remaining_bytes == 0
    os.close(reader)
    assert got == expected
    assert most <= before + 8


@pytest.mark.parametrize("interruptible", [True, False])
def test_abandoned_while_lives_wait_it_counts_their_bytes(bench, sink, logs, interruptible):
    paths = logs(1)
    append(paths[0], b"line\n" * 100)
    abandon = CancelToken()
    if interruptible:
        reader, writer = os.pipe()
        with os.fdopen(os.dup(writer), "w") as stream:
            to = console(stream)
        os.set_blocking(writer, False)
        filled = os.write(writer, b"x" * (1 << 20))
        waiting = threading.Event()
        waits = to._wait_writable
        to._wait_writable = lambda *args, **kwargs: (waiting.set(), waits(*args, **kwargs))[1]
    else:
        to, waiting = sink, sink.writing
        to.interruptible = False
        to.gate.clear()
    before = set(threading.enumerate())
    rank = Rank(bench.tail(to, paths, abandon=abandon), to, paths[0])
    assert waiting.wait(PATIENCE_S)
    for _ in range(3):
        rank.live(b"line\n" * 10)
    rank.drain()
    abandon.set()
    assert bench.ended() == TailEnded(name="stdout", remaining_bytes=500 + 3 * 50)
    assert not any(feed.is_open for feed in rank.feeds)
    if interruptible:
        os.close(writer)
        assert len(os.read(reader, 2 << 20)) == filled
        os.close(reader)
    else:
        to.gate.set()
    for thread in set(threading.enumerate()) - before:
        if thread.name != "supervise-inotify":
            thread.join(PATIENCE_S)


def test_lives_that_wait_when_the_destination_fails_are_counted_and_not_opened(bench, sink, logs):
    paths = logs(1)
    append(paths[0], b"line\n" * 10)
    sink.gate.clear()
    before = open_files()
    rank = Rank(bench.tail(sink, paths), sink, paths[0])
    assert sink.writing.wait(PATIENCE_S)
    rank.live(b"line\n")
    rank.live(b"line\n")
    rank.drain()
    sink.fault = BrokenPipeError(errno.EPIPE, "gone")
    sink.gate.set()
    ended = bench.ended()
    assert ("gone" in ended.error, ended.remaining_bytes) == (True, 60)
    assert not any(feed.is_open for feed in rank.feeds)
    for feed in rank.feeds:
        feed.close()
    for thread in threading.enumerate():
        if thread.name == "supervise-inotify":
            thread.join(PATIENCE_S)
    assert open_files() <= before
    assert bench.errors.empty()


def test_a_log_truncated_just_before_the_life_ends_is_shown_whole(bench, sink, logs):
    paths = logs(1)
    sink.gate.clear()
    rank = Rank(bench.tail(sink, paths), sink, paths[0])
    append(rank.path, b"before\n" * 100)
    assert sink.writing.wait(PATIENCE_S)
    os.truncate(rank.path, 0)
    append(rank.path, b"after\n")
    rank.live(b"next\n")
    rank.drain()
    sink.gate.set()
    assert bench.ended().remaining_bytes == 0
    assert sink.data.endswith(b"[r0]:before\n[r0]:after\n[r0]:next\n")
    where, error = bench.errors.get_nowait()
    assert (where, error.errno) == (str(paths[0]), errno.ESTALE)
    assert bench.errors.empty()


def test_a_life_whose_file_was_replaced_before_a_blocked_tail_opened_it_is_told_and_counted(bench, sink, logs):
    paths = logs(1)
    append(paths[0], b"first\n")
    sink.gate.clear()
    rank = Rank(bench.tail(sink, paths), sink, paths[0])
    assert sink.writing.wait(PATIENCE_S)
    rank.begin(paths[0])
    append(paths[0], b"second\n")
    rank.begin(paths[0])
    append(paths[0], b"third\n")
    sink.gate.set()
    sink.wait_for(b"third\n")
    rank.drain()
    assert bench.ended().remaining_bytes == len(b"second\n")
    assert sink.data == b"[r0]:first\n[r0]:third\n"
    where, error = bench.errors.get_nowait()
    assert (where, error.errno) == (str(paths[0]), errno.ESTALE)
    assert bench.errors.empty()
