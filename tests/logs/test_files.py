"""Log files: several processes write to one, and a bound removes what is shown."""

import errno
import os
from pathlib import Path

import pytest

from supervise._files import open_to_append
from supervise._logs.lines import LineStream
from supervise._logs.reader import LogReader
from supervise._logs.trim import LogTrimmer
from tests.faults import Holes
from tests.logs.conftest import Bench, MemorySink


@pytest.mark.ranks(4)
def test_lines_of_several_processes_stay_whole_and_none_is_lost(rank, world_size, rank_gather, gang_tmp_path):
    """Also if all of them make the file in the same moment."""
    path, count = gang_tmp_path / "stdout.log", 200
    rank_gather()
    fd = open_to_append(str(path))
    try:
        for number in range(count):
            os.write(fd, b"rank %d, line %d\n" % (rank, number))
    finally:
        os.close(fd)
    rank_gather()
    expected = {f"rank {each}, line {number}" for each in range(world_size) for number in range(count)}
    lines = path.read_text().splitlines()
    assert len(lines) == len(expected)
    assert set(lines) == expected


BOUND = 1 << 16


class Reader:
    shown_bytes = 0


def grow(log: Path, size: int) -> None:
    with log.open("ab") as file:
        file.write(b"x" * size)


def test_the_oldest_part_is_removed_once_it_is_shown(tmp_path: Path, holes: Holes):
    """Whole blocks, up to the bound, and an eighth of it more; before the place of the slowest reader."""
    log, told = tmp_path / "log", []
    grow(log, BOUND)
    trimmer = LogTrimmer(str(log), BOUND, lambda path, error: told.append((path, error)))
    slow, fast = Reader(), Reader()
    fast.shown_bytes = BOUND * 10
    trimmer.add(slow)
    trimmer.add(fast)
    grow(log, BOUND)
    trimmer.trim()
    assert (holes.made, told) == ([], [])
    slow.shown_bytes = 20_000
    trimmer.trim()
    assert holes.made == [(0, 12_288)]
    assert told == [(str(log), None)]
    trimmer.remove(slow)
    assert holes.made[1:] == [(12_288, BOUND + BOUND // 8 - 12_288)]
    trimmer.trim()
    grow(log, BOUND // 8)
    trimmer.trim()
    assert len(holes.made) == 2
    assert len(told) == 1


def test_a_truncated_log_begins_again(tmp_path: Path, holes: Holes):
    """Its hole is gone with its content. A removed or replaced log is left alone."""
    log = tmp_path / "log"
    grow(log, 2 * BOUND)
    trimmer = LogTrimmer(str(log), BOUND, lambda *_: None)
    trimmer.trim()
    os.truncate(log, 10)
    trimmer.trim()
    assert trimmer.trimmed_bytes == 0
    log.rename(tmp_path / "moved")
    trimmer.trim()
    grow(log, 2 * BOUND)
    trimmer.trim()
    assert len(holes.made) == 1


def test_a_file_system_without_holes_is_reported_once(tmp_path: Path, holes: Holes):
    """Then the file stays as it is."""
    log, told = tmp_path / "log", []
    grow(log, 2 * BOUND)
    holes.error = OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    trimmer = LogTrimmer(str(log), BOUND, lambda *what: told.append(what[1]))
    trimmer.trim()
    trimmer.trim()
    assert told == [holes.error]
    assert trimmer.trimmed_bytes == 0


def test_the_start_of_a_trimmed_log_is_not_compared(tmp_path: Path):
    """A reader does not take the hole for a log that was written over; it notices a truncation still."""
    log = tmp_path / "log"
    grow(log, 2 * BOUND)
    trimmer = LogTrimmer(str(log), BOUND, lambda *_: None)
    reader = LogReader(str(log), LineStream(b"", console=False), trimmer=trimmer)
    reader.open(lambda: None)
    while reader.read():
        reader.shown_bytes = reader.offset
    with log.open("r+b") as file:
        file.write(bytes(BOUND))
    assert reader.was_written_over()
    assert reader.trimmer is not None
    reader.trimmer.trimmed_bytes = BOUND
    assert not reader.was_written_over()
    os.truncate(log, 10)
    assert reader.was_written_over()
    reader.close()


def test_a_later_reader_skips_the_removed_part(tmp_path: Path, bench: Bench, sink: MemorySink):
    """However short the hole is; it shows no NUL."""
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.truncate(8192)
        file.seek(8192)
        file.write(b"rest\n")
    if log.stat().st_blocks * 512 > 8192:
        pytest.skip("the file system has no holes")
    bench.drain(bench.tail(sink, [log]), [log])
    assert bytes(sink.data) == b"[r0]:rest\n"
