"""`WakeFd`: readable from `set` to `clear`, and harmless after `close`."""

import select

import pytest

from supervise._runtime.wakeup import WakeFd


def readable(fd):
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


@pytest.fixture
def wake_fd():
    made = WakeFd()
    yield made
    made.close()


def test_it_is_readable_from_set_to_clear(wake_fd):
    """Also when it is set twice, and when it is cleared twice."""
    assert not readable(wake_fd)
    wake_fd.set()
    wake_fd.set()
    assert readable(wake_fd)
    wake_fd.clear()
    wake_fd.clear()
    assert not readable(wake_fd)


def test_a_second_descriptor_of_the_same_event_outlives_the_first(wake_fd):
    """Each is closed by itself."""
    second = WakeFd(wake_fd)
    second.set()
    second.close()
    assert readable(wake_fd)


def test_a_set_after_the_close_is_harmless(wake_fd):
    """The Supervisor abandons its Tails, and a Tail that has ended has closed its descriptor."""
    wake_fd.close()
    wake_fd.set()
    wake_fd.close()
    assert wake_fd.fileno() == -1
