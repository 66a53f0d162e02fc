"""A log file that several processes open at once."""

import os

import pytest

from supervise._append import open_to_append


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
