"""A ring ends a wait, whenever it comes."""

import threading

import pytest

from supervise._runtime.wakeup import Bell
from tests.patience import PATIENCE_S


@pytest.mark.parametrize("rings", [1, 3])
def test_a_ring_before_the_wait_ends_it_once(rings):
    """However often it was rung."""
    bell = Bell()
    for _ in range(rings):
        bell.ring()
    assert bell.wait(PATIENCE_S)
    assert not bell.wait(0)


@pytest.mark.parametrize("timeout_s", [None, PATIENCE_S, 1e300])
def test_a_ring_from_another_thread_ends_the_wait(timeout_s):
    """Whatever the timeout."""
    bell = Bell()
    ringing = threading.Timer(0.01, bell.ring)
    ringing.start()
    assert bell.wait(timeout_s)
    ringing.join()


@pytest.mark.parametrize("timeout_s", [0, -1, -1e-9])
def test_a_timeout_that_is_over_does_not_wait(timeout_s):
    """Nor is a negative one none."""
    assert not Bell().wait(timeout_s)


def test_the_shortest_waits_end():
    """Before Python 3.13 `queue.SimpleQueue.get` hangs in one of some thousands."""
    assert not any(Bell().wait(1e-6) for _ in range(10_000))
