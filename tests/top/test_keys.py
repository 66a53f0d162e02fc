"""Keys from the bytes of a terminal, however they are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervise._views.top.keys import Keys

TYPED = b"q\x1b[A\x1bOB\x1b[5~\r\t\x7f\xc3\xa9\x1b[1;5Cx"
MEANT = ["q", "up", "down", "page up", "enter", "tab", "backspace", "é", "x"]


@given(st.lists(st.integers(0, len(TYPED)), max_size=5))
def test_sequences_may_come_in_pieces(cuts):
    keys, found = Keys(), []
    places = [0, *sorted(cuts), len(TYPED)]
    for start, end in pairwise(places):
        found += keys.feed(TYPED[start:end])
    assert found == MEANT
    assert not keys.waits


def test_esc_is_a_key_if_nothing_follows_or_another_key():
    keys = Keys()
    assert keys.feed(b"\x1b") == []
    assert keys.waits
    assert keys.timed_out() == ["escape"]
    assert keys.feed(b"\x1bq") == ["escape", "q"]
    assert keys.feed(b"\x1b\x1b[B") == ["escape", "down"]


@given(st.binary(max_size=200))
def test_no_input_is_an_error(data):
    keys = Keys()
    for key in keys.feed(data) + keys.timed_out():
        assert key.isprintable()


@pytest.mark.parametrize("data", [b"\x1b[" + b"1" * 100 + b"q", b"\xff\xfeq", b"\x00\x01q"])
def test_what_is_not_a_key_is_skipped(data):
    assert Keys().feed(data)[-1] == "q"
