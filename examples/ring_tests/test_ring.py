"""A test suite with ranks: the ring of `ring.py`, tested in several processes.

    python -m pytest examples/ring_tests

Each test runs in every rank. `pytest.ini` limits the time of a test, and how many ranks run at once with pytest-xdist.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import pytest

from examples.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def ring(gang_tmp_path: Path, rank: int, world_size: int) -> Iterator[Ring]:
    """The connections of this rank, over sockets in a folder of all ranks."""
    with Ring(gang_tmp_path, rank, world_size) as ring:
        yield ring


@pytest.mark.ranks([1, 2, 3, 4])
def test_each_rank_receives_from_its_left_neighbor(ring: Ring) -> None:
    """The first rank is the right neighbor of the last."""
    received = ring.exchange(array("d", [ring.rank]))
    assert received.tolist() == [(ring.rank - 1) % ring.size]


@pytest.mark.ranks([1, 2, 3, 4])
@pytest.mark.parametrize("length", [0, 1, 7, 50_000])
def test_all_ranks_have_the_same_sum(
    ring: Ring, length: int, rank_gather: Callable[[list[float]], list[list[float]]]
) -> None:
    """Also if the vector is shorter than the ring, or longer than the buffers of a socket."""
    total = ring.all_reduce(array("d", (ring.rank + number for number in range(length)))).tolist()
    assert total == [sum(rank + number for rank in range(ring.size)) for number in range(length)]
    assert rank_gather(total) == [total] * ring.size


@pytest.mark.ranks(3)
def test_a_rank_notices_that_its_left_neighbor_has_closed(ring: Ring) -> None:
    """Rank 1 does not wait for numbers that never come."""
    if ring.rank == 0:
        ring.right.close()
    elif ring.rank == 1:
        with pytest.raises(ConnectionError, match="the left neighbor has closed"):
            ring.exchange(array("d", [1.0]))
