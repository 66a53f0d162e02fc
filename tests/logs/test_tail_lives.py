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

from supervise._append import forget_reader, open_to_append, tell_reader
from supervise._core.steps import TailEnded
from supervise._gang.orders import ChangeFiles, Drain
from supervise._gang.tail_files import readers
from supervise._gang.tail_specs import Source
from supervise._logs import watch as watching
from supervise._logs.lines import LineStream
from supervise._logs.reader import LogReader
from supervise._logs.sinks import CancelToken
from tests.patience import PATIENCE_S


@pytest.fixture(params=["inotify", "polling"])
def way(request, monkeypatch):
    monkeypatch.setattr(watching, "HAVE_INOTIFY", request.param == "inotify")


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


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
        wait_until(ref, lambda: open_files(tmp_path) <= (2 if watching.HAVE_INOTIFY else 4) + 1)  # the writer beside
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


def test_bytes_behind_the_size_of_a_past_life_are_not_waited_for(bench, sink, tmp_path):
    first, second = lives_of(tmp_path, 2)
    append(first, b"before\nafter\n")
    sink.gate.clear()
    ref = bench.tail(sink, [first])
    change(ref, sink, first, second, size=len(b"before\n"))
    sink.gate.set()
    append(second, b"new\n")
    sink.wait_for(b"[r0]:new\n")
    wait_until(ref, lambda: open_files(tmp_path) == 1 + (not watching.HAVE_INOTIFY))
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


def test_a_past_file_that_is_gone_from_its_folder_is_shown_whole(bench, sink, tmp_path):
    first, second = lives_of(tmp_path, 2)
    ref = bench.tail(sink, [first])
    append(first, b"early\n")
    sink.wait_for(b"early\n")
    append(first, b"late\n")
    first.unlink()
    change(ref, sink, first, second, size=None)
    sink.wait_for(b"[r0]:late\n")
    wait_until(ref, lambda: open_files(tmp_path) == 1 + (not watching.HAVE_INOTIFY))
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
    reader = LogReader(str(path), LineStream(b"", console=True))
    reader.open(lambda: None)
    reader.follow_writer()
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
    finally:
        os.close(fd)
        reader.close()


def test_the_last_reader_of_a_path_gets_the_copy(tmp_path):
    path = str(tmp_path / "0.log")
    past, present = (LogReader(path, LineStream(b"", console=True)) for _ in range(2))
    for reader in (past, present):
        reader.follow_writer()
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
