"""What is written turns one picture into the next, on a terminal that knows only the sequences in use."""

import re

from hypothesis import given
from hypothesis import strategies as st

from supervise._views.top.canvas import STYLES, Canvas, Palette, width_of
from tests.top.emulator import Emulator

COLUMNS, ROWS = 23, 5
TEXT = st.text(alphabet="ab 漢字é\u0301", max_size=30)
WRITE = st.tuples(
    st.integers(-1, ROWS), st.integers(0, COLUMNS + 2), TEXT, st.sampled_from(["", *STYLES, "failed selected"])
)
PICTURE = st.lists(WRITE, max_size=8)


def picture(writes):
    found = Canvas(COLUMNS, ROWS)
    for row, column, text, style in writes:
        found.write(row, column, text, style)
    return found


@given(st.lists(PICTURE, min_size=1, max_size=4), st.booleans())
def test_each_picture_is_on_the_screen_after_what_was_written(pictures, color):
    """Also where wide characters were, or are; the emulator refuses a character beyond the last column."""
    screen, before = Emulator(COLUMNS, ROWS), None
    screen.feed("\x1b[?1049h")
    for writes in pictures:
        now = picture(writes)
        screen.feed(now.drawing(before, Palette(color=color)))
        whole = Emulator(COLUMNS, ROWS)
        whole.feed("\x1b[?1049h" + now.drawing(None, Palette(color=color)))
        assert screen.lines() == whole.lines()
        before = now


def test_an_equal_picture_needs_nothing_and_a_small_change_little():
    writes = [(0, 0, "running 0:00:01", "running"), (1, 0, "rank 0 is up", "")]
    before, now = picture(writes), picture([(0, 0, "running 0:00:02", "running"), writes[1]])
    palette = Palette(color=True)
    assert picture(writes).drawing(before, palette) == ""
    assert now.drawing(before, palette) == "\x1b[1;15H\x1b[32m2\x1b[0m"


def test_without_color_the_selected_row_can_still_be_seen():
    one = Canvas(10, 1)
    one.write(0, 0, "x", "failed")
    one.paint(0, "selected")
    assert "\x1b[1;7m" in one.drawing(None, Palette(color=False))
    assert "31" not in one.drawing(None, Palette(color=False))


@given(st.text(max_size=30))
def test_no_text_contains_a_control_sequence_afterwards(text):
    one = Canvas(40, 1)
    one.write(0, 0, text)
    drawn = one.drawing(None, Palette(color=True)).removeprefix("\x1b[0m\x1b[2J")
    assert re.sub(r"\x1b\[1;\d+H", "", drawn).isprintable()


def test_the_width_of_text():
    assert width_of("漢字") == 4
    assert width_of("e\u0301") == 1
