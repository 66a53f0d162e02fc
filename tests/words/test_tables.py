"""Tables of text in the columns of a terminal."""

import pytest

from supervise._story.wording import columns, fitted, shortened

WIDE = "\u6570\u636e"  # two characters in four columns
HEADS = ("RANK", "ROLE", "PID", "BEAT", "STATUS")
ROWS = (HEADS, ("0", f"{WIDE}.0", "4711", "0.1 s", f"epoch {WIDE}"), ("10", "web.1", "4712", "0.2 s", "x" * 70))


def test_columns_are_aligned_below_wide_characters():
    """As a terminal shows them; a style has no width."""
    rows = [("NAME", "N", "X"), (WIDE, "10", "a"), ("\x1b[31mred\x1b[0m", "7", "b")]
    assert columns(rows, right={1}) == ["NAME   N  X", f"{WIDE}  10  a", "\x1b[31mred\x1b[0m    7  b"]
    assert shortened(WIDE * 3, 9) == f"{WIDE} ..."


@pytest.mark.parametrize(
    ("room", "lines"),
    [
        (
            40,
            [
                "RANK  ROLE    BEAT   STATUS",
                f"0     {WIDE}.0  0.1 s  epoch {WIDE}",
                f"10    web.1   0.2 s  {'x' * 15} ...",
            ],
        ),
        (30, ["RANK  ROLE    STATUS", f"0     {WIDE}.0  epoch {WIDE}", f"10    web.1   {'x' * 12} ..."]),
        (18, ["RANK  ROLE", f"0     {WIDE}.0", "10    web.1"]),
    ],
)
def test_a_table_fits_the_terminal(room: int, lines: list[str]):
    """By leaving out columns, and by shortening the last one."""
    assert columns(fitted(ROWS, room, ("PID", "BEAT"))) == lines


def test_a_table_in_a_pipe_has_all_columns():
    assert columns(fitted(ROWS, None, ("PID", "BEAT")))[2] == f"10    web.1   4712  0.2 s  {'x' * 56} ..."
