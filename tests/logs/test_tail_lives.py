"""A Tail follows the lives of a rank: no byte lost or shown twice, no line mixed, and past files are given back."""

import errno
import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pykka
import pytest

from supervise._core.steps import TailEnded
from supervise._files import forget_reader, move_aside, open_to_append, tell_reader
from supervise._gang.attempt import Source
from supervise._gang.tail import ChangeFiles, Drain, readers
from supervise._logs.lines import LineStream
from supervise._logs.reader import LogReader
from supervise._logs.sinks import CancelToken, console
from tests.patience import PATIENCE_S


def append(path, data):
    with path.open("ab", buffering=0) as stream:
        assert stream.write(data) == len(data)


def change(
    ref: Any,
    sink: Any,
    past: Path,
    new: Path,
    *,
    size: int | None = -1,
    prefix: bytes = b"[r0]:",
    line_filter: Callable[[bytes], bool] | None = None,
) -> None:
    """Order a Tail to follow the file of a rank's next life; a negative size is the present one of the past file."""
    feeds = readers(
        sink, [Source(local_rank=0, path=str(new), prefix=prefix)], line_filter, follow_writers=sink.is_console
    )
    if size == -1:
        size = past.stat().st_size
    ref.tell(ChangeFiles(feeds=feeds, sizes={str(past): size}))


def open_files(folder: Path) -> int:
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            found += str(link.readlink()).startswith(str(folder))
        except OSError:
            continue
    return found


def wait_until(ref: Any, holds: Callable[[], bool]) -> None:
    """Wait until the Tail has done something; each ask takes it at least one step further."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s
        ref.ask("any message", timeout=PATIENCE_S)


def lives_of(folder: Path, count: int) -> list[Path]:
    paths = [folder / f"life-{life}.log" for life in range(count)]
    for path in paths:
        path.touch()
    return paths


def test_200_lives_beside_a_rank_that_writes_all_the_time(way, bench, sink, tmp_path):
    lives, beside = lives_of(tmp_path, 200), tmp_path / "beside.log"
    beside.touch()
    ref = bench.tail(sink, [lives[0], beside])
    stop = threading.Event()

    def write_beside() -> None:
        for number in itertools.count():
            append(beside, b"beside %d\n" % number * 10)
            if stop.is_set():
                return

    writer = threading.Thread(target=write_beside)
    writer.start()
    try:
        for life, path in enumerate(lives):
            if life:
                change(ref, sink, lives[life - 1], path)
            with path.open("ab", buffering=0) as file:
                for start in range(0, 1000, 100):
                    file.write(b"".join(b"life %d line %d\n" % (life, line) for line in range(start, start + 100)))
                file.write(b"half of %d" % life)
        wait_until(ref, lambda: b"life 198 line 999\n" in sink.data and b"half of 198\n" in sink.data)
        wait_until(ref, lambda: open_files(tmp_path) <= (2 if way == "inotify" else 4) + 1)  # the writer beside
    finally:
        stop.set()
        writer.join(PATIENCE_S)
    assert bench.drain(ref, [lives[-1], beside]) == TailEnded(name="stdout", remaining_bytes=0, error=None)
    shown = bytes(sink.data).splitlines(keepends=True)
    own = [line.removeprefix(b"[r0]:") for line in shown if line.startswith(b"[r0]:")]
    by_life: dict[int, list[bytes]] = {life: [] for life in range(200)}
    for line in own:
        by_life[int(line.split()[2 if line.startswith(b"half") else 1])].append(line)
    for life, path in enumerate(lives):
        assert b"".join(by_life[life]) == path.read_bytes() + b"\n"
    others = [line.removeprefix(b"[r1]:") for line in shown if line.startswith(b"[r1]:")]
    assert b"".join(others) == beside.read_bytes()
    assert len(shown) == 200 * 1001 + len(others)
    assert bench.errors.empty()


def test_an_unfinished_line_of_a_past_life_ends_before_the_next_life_s_first(bench, sink, file_like_sink, tmp_path):
    for destination in (sink, file_like_sink):
        first, second = lives_of(tmp_path, 2)
        append(first, b"whole\nhalf")
        ref = bench.tail(destination, [first])
        destination.wait_for(b"[r0]:whole\n")
        change(ref, destination, first, second)
        append(second, b"new\n")
        destination.wait_for(b"[r0]:half\n[r0]:new\n")
        bench.drain(ref, [second])
        assert destination.data == b"[r0]:whole\n[r0]:half\n[r0]:new\n"
        for path in (first, second):
            path.unlink()


def test_a_long_line_of_a_past_life_gives_way_to_the_next_life(bench, sink, tmp_path):
    first, second = lives_of(tmp_path, 2)
    ref = bench.tail(sink, [first])
    append(first, b"y" * 200_000)
    sink.wait_for(b"[r0]:y")
    change(ref, sink, first, second)
    append(second, b"new\n")
    sink.wait_for(b"[r0]:new\n")
    assert bench.drain(ref, [second]).remaining_bytes == 0
    assert bytes(sink.data) == b"[r0]:" + b"y" * 200_000 + b"\n[r0]:new\n"


def test_the_lives_of_a_rank_wait_for_the_long_line_of_another(bench, sink, tmp_path):
    *lives, other = lives_of(tmp_path, 4)
    ref = bench.tail(sink, [lives[0], other])
    append(other, b"y" * 200_000)
    sink.wait_for(b"[r1]:y")
    for life, path in enumerate(lives):
        append(path, b"life %d\n" % life)
        if life:
            change(ref, sink, lives[life - 1], path)
    append(other, b"\n")
    sink.wait_for(b"[r0]:life 2\n")
    bench.drain(ref, [lives[-1], other])
    assert bytes(sink.data).splitlines()[1:] == [b"[r0]:life 0", b"[r0]:life 1", b"[r0]:life 2"]


def test_bytes_behind_the_size_of_a_past_life_are_not_waited_for(way, bench, sink, tmp_path):
    first, second = lives_of(tmp_path, 2)
    append(first, b"before\nafter\n")
    sink.gate.clear()
    ref = bench.tail(sink, [first])
    change(ref, sink, first, second, size=len(b"before\n"))
    sink.gate.set()
    append(second, b"new\n")
    sink.wait_for(b"[r0]:new\n")
    wait_until(ref, lambda: open_files(tmp_path) == 1 + (way == "polling"))
    assert bench.drain(ref, [second]).remaining_bytes == 0


def test_lives_with_the_same_path_are_shown_once_each(bench, sink, tmp_path):
    path = tmp_path / "always.log"
    path.touch()
    ref = bench.tail(sink, [path])
    for life in range(20):
        append(path, b"life %d\n" % life)
        sink.wait_for(b"life %d\n" % life)
        append(path, b"rest of %d\n" % life)
        size = path.stat().st_size
        path.rename(f"{path}.{life}")
        path.touch()
        change(ref, sink, path, path, size=size)
    assert bench.drain(ref, [path]).remaining_bytes == 0
    assert bytes(sink.data) == b"".join(b"[r0]:life %d\n[r0]:rest of %d\n" % (life, life) for life in range(20))
    assert bench.errors.empty()


def test_a_past_file_that_is_gone_from_its_folder_is_shown_whole(way, bench, sink, tmp_path):
    first, second = lives_of(tmp_path, 2)
    ref = bench.tail(sink, [first])
    append(first, b"early\n")
    sink.wait_for(b"early\n")
    append(first, b"late\n")
    first.unlink()
    change(ref, sink, first, second, size=None)
    sink.wait_for(b"[r0]:late\n")
    wait_until(ref, lambda: open_files(tmp_path) == 1 + (way == "polling"))
    bench.drain(ref, [second])


def test_a_life_whose_log_cannot_be_read_is_told_and_its_bytes_are_counted(bench, sink, tmp_path):
    first, gone, third = lives_of(tmp_path, 3)
    ref = bench.tail(sink, [first])
    gone.unlink()
    change(ref, sink, first, gone)
    where, error = bench.errors.get(timeout=PATIENCE_S)
    assert (where, error.errno) == (str(gone), errno.ENOENT)
    change(ref, sink, gone, third, size=100)
    append(third, b"new\n")
    sink.wait_for(b"[r0]:new\n")
    assert bench.drain(ref, [third]).remaining_bytes == 100


def test_a_filtered_destination_follows_the_lives_too(bench, file_like_sink, tmp_path):
    def keeps(line: bytes) -> bool:
        return b"keep" in line

    first, second = lives_of(tmp_path, 2)
    append(first, b"keep 1\ndrop\nkeep half")
    ref = bench.tail(file_like_sink, [first], line_filter=keeps)
    change(ref, file_like_sink, first, second, line_filter=keeps)
    append(second, b"drop\nkeep 2\n")
    bench.drain(ref, [second])
    assert file_like_sink.data == b"[r0]:keep 1\n[r0]:keep half\n[r0]:keep 2\n"


def test_a_truncation_of_unread_lines_is_told_after_the_end_of_a_life_too(bench, sink, tmp_path):
    """The position of the rank's descriptor outlives the descriptor's copy."""
    path = tmp_path / "0.log"
    path.touch()
    reader = LogReader(str(path), LineStream(b"", console=True), follows_writer=True)
    reader.open(lambda: None)
    before = open_files(tmp_path)
    fd = open_to_append(str(path))
    try:
        tell_reader(str(path), fd)
        os.write(fd, b"unread\n" * 3)
        os.truncate(path, 0)
        assert open_files(tmp_path) == before + 2
        reader.writer_ended()
        assert open_files(tmp_path) == before + 1
        assert reader.was_written_over()
        reader.start_again()
        assert not reader.was_written_over()  # once
    finally:
        os.close(fd)
        reader.close()


def test_the_last_reader_of_a_path_gets_the_copy(tmp_path):
    path = str(tmp_path / "0.log")
    past, present = (LogReader(path, LineStream(b"", console=True), follows_writer=True) for _ in range(2))
    past.writer_ended()
    fd = open_to_append(path)
    try:
        tell_reader(path, fd)
        assert open_files(tmp_path) == 2
        past.close()
        assert open_files(tmp_path) == 2
        present.close()
        assert open_files(tmp_path) == 1
    finally:
        os.close(fd)
        forget_reader(path, present._take_writer)


def run_in_any_order(bench: Any, sink: Any, paths: Sequence[Path], orders: list[str], abandon: CancelToken) -> None:
    """Tell a Tail of one rank these orders, also after its end; `TailEnded` comes once, and nothing stays open."""
    ref = bench.tail(sink, [paths[0]], abandon=abandon)
    life, closed = 0, []
    for order in orders:
        if order == "change" and life + 1 < len(paths):
            source = Source(local_rank=0, path=str(paths[life + 1]), prefix=b"")
            feeds = readers(sink, [source], None, follow_writers=True)
            closed += feeds
            size = paths[life].stat().st_size
            life += 1
            try:
                ref.tell(ChangeFiles(feeds=feeds, sizes={str(paths[life - 1]): size}))
            except pykka.ActorDeadError:
                continue
        elif order == "write":
            append(paths[life], b"x" * 5000 + b"\n")
        elif order == "drain":
            try:
                ref.tell(Drain(sizes={str(paths[life]): paths[life].stat().st_size}))
            except pykka.ActorDeadError:
                continue
        elif order == "abandon":
            abandon.set()
    abandon.set()
    assert bench.ended().error is None
    assert ref.actor_stopped.wait(PATIENCE_S)
    for feed in closed:  # as `RankActors` does with those that a Tail has not taken
        feed.close()
    assert bench.told.empty()


def test_an_end_wins_at_every_moment(way, bench, tmp_path, sink):
    rng = random.Random(5)
    for number in range(60):
        folder = tmp_path / str(number)
        folder.mkdir()
        orders = rng.choices(["change", "write", "drain", "abandon"], weights=[5, 8, 1, 1], k=25)
        run_in_any_order(bench, sink, lives_of(folder, 12), orders, CancelToken())
        wait_for_none_open(folder)


def wait_for_none_open(folder: Path) -> None:
    """Wait for the watching thread, which closes a polled file."""
    deadline_s = time.monotonic() + PATIENCE_S
    while open_files(folder):
        assert time.monotonic() < deadline_s
        os.sched_yield()


def test_a_change_behind_a_drain_still_shows_both_lives(bench, sink, tmp_path):
    """A close may win while a change is under way."""
    first, second = lives_of(tmp_path, 2)
    append(first, b"first\n" * 50_000)
    sink.gate.clear()
    ref = bench.tail(sink, [first])
    assert sink.writing.wait(PATIENCE_S)
    append(second, b"second\n")
    ref.tell(Drain(sizes={str(first): first.stat().st_size}))
    change(ref, sink, first, second)
    sink.gate.set()
    assert bench.ended().remaining_bytes == 0
    assert sink.data.count(b"[r0]:first\n") == 50_000
    assert sink.data.count(b"[r0]:second\n") == 1


def test_a_drain_behind_a_change_shows_the_rest_of_the_past_life(bench, sink, tmp_path):
    first, second = lives_of(tmp_path, 2)
    append(first, b"first\n" * 50_000)
    sink.gate.clear()
    ref = bench.tail(sink, [first])
    assert sink.writing.wait(PATIENCE_S)
    change(ref, sink, first, second)
    append(second, b"second\n")
    ref.tell(Drain(sizes={str(second): second.stat().st_size}))
    append(first, b"behind\n")
    sink.gate.set()
    assert bench.ended().remaining_bytes == 0
    assert sink.data.count(b"[r0]:first\n") == 50_000
    assert sink.data.count(b"[r0]:second\n") == 1
    assert b"behind" not in sink.data


PREFIX = b"[r0]:"


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


def open_descriptors():
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


def test_200_lives_of_1000_lines_beside_a_rank_that_writes_all_the_time(bench, to, logs, way):
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
    before = open_descriptors()
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
    assert open_descriptors() < before
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
    before = open_descriptors()
    for life in range(100):
        rank.live(b"life %d\n" % life)
    assert open_descriptors() <= before
    sink.gate.set()
    sink.wait_for(b"[r0]:life 99\n")
    settle(bench, rank)
    assert open_descriptors() <= before
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
    before = open_descriptors()
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
    assert open_descriptors() <= before
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
