"""Looks follow each other at once, or at the pace."""

from supervise._logs.watch import BURST, PAUSE_NS, Pace


def looks(pace: Pace, wanted_ns: list[int]) -> list[int]:
    """Return when looks are made that are wanted at these moments."""
    made = []
    for now_ns in wanted_ns:
        at_ns = max(now_ns, pace.due_ns)
        pace.look(at_ns)
        made.append(at_ns - now_ns)
    return made


def test_a_few_looks_do_not_wait():
    """As many as a burst has, whenever they come."""
    assert looks(Pace(), [10**9] * BURST) == [0] * BURST


def test_under_a_flood_looks_are_a_pause_apart():
    """Once the burst is used up."""
    late = looks(Pace(), [10**9] * (BURST + 3))
    assert late[BURST:] == [PAUSE_NS, 2 * PAUSE_NS, 3 * PAUSE_NS]


def test_looks_that_are_a_pause_apart_never_wait():
    """For however long."""
    assert set(looks(Pace(), [n * PAUSE_NS for n in range(1000)])) == {0}


def test_after_a_rest_there_is_a_burst_again():
    """But not a larger one, however long the rest was."""
    pace = Pace()
    looks(pace, [0] * (BURST + 1))
    assert looks(pace, [10**12] * (BURST + 1)) == [0] * BURST + [PAUSE_NS]
