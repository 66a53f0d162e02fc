"""The picture of every size and every state of a gang, how a terminal gets from one to the next, and the keys."""

import re
import time
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from supervise._views.incidents import Incident
from supervise._views.top.picture import draw
from supervise._views.top.reader import RankReading, Reading
from supervise._views.top.screen import STYLES, Canvas, Keys, Palette, width_of
from supervise._views.top.view import (
    HELP,
    ORDERS,
    STATES,
    Request,
    View,
    columns_for,
    ordered,
    shown_states,
)
from tests.top.emulator import Emulator

SIZES = [(1, 1), (5, 2), (20, 4), (33, 7), (40, 10), (80, 24), (160, 50)]


def rank(number: int, **changed: object) -> RankReading:
    plain = RankReading(
        rank=number,
        role="",
        state="ready",
        end=None,
        pid=1000 + number,
        attempt=0,
        restarts=0,
        cpu=0.5,
        rss_bytes=10 << 20,
        processes=1,
        step=number,
        beat_age_s=0.5,
        status=None,
        output_bytes=100,
        output_bytes_per_s=10.0,
        last_line=f"line of {number}",
    )
    return plain._replace(**changed)


def reading(count: int, **changed: dict[str, object]) -> Reading:
    rows = {number: rank(number, **changed.get(f"r{number}", {})) for number in range(count)}
    return Reading(time.time(), "running", 0, 4711, rows)


def view_of(found: Reading) -> View:
    view = View("job_12345678", found.at_s - 3723)
    view.update(found)
    return view


def shown(view: View, columns: int = 80, rows: int = 24) -> list[str]:
    lines = draw(view, columns, rows).text()
    assert len(lines) == rows
    assert max(map(len, lines)) <= columns
    return lines


@pytest.mark.parametrize(("columns", "rows"), SIZES)
@pytest.mark.parametrize("count", [0, 1, 4, 64, 1000])
def test_every_page_fits_every_size(columns: int, rows: int, count: int):
    found = reading(count, r3={"state": "failed", "last_line": "漢字" * 50, "restarts": 12345})
    view = view_of(found)
    view.incidents = [Incident(found.at_s, "failed", 3, "rank 3 failed: " + "why " * 50)] * 30
    view.first_failure = view.incidents[0]
    view.failed = [3]
    shown(View("job", None), columns, rows)
    for key in (
        "x",
        "n",
        "s",
        "escape",
        "o",
        "w",
        "n",
        "enter",
        "q",
        "q",
        "5",
        "enter",
        "n",
        "?",
        "down",
        "q",
        "t",
        "end",
        "q",
        "l",
        "right",
        "tab",
        "q",
        "end",
    ):
        view.key(key)
        if view.mode == "logs":
            view.lines = ["x" * 300, "漢字" * 200]
        shown(view, columns, rows)


def test_the_help_fits_80_columns_and_closes_with_its_own_keys():
    assert max(map(len, HELP)) < 80
    for opens in "?h":
        for closes in ("?", "h", "q", "escape"):
            view = view_of(reading(4))
            view.key(opens)
            assert shown(view)[1] == "help"
            view.key(closes)
            assert shown(view)[1].startswith("RANK")
    assert any("?, h" in line and "this help" in line for line in HELP)


def test_the_worst_is_first_and_on_the_map():
    found = reading(
        1000,
        r7={"state": "backoff", "restarts": 2},
        r500={"state": "failed"},
        r501={"beat_age_s": 60.0},
        r999={"state": "suspended"},
    )
    lines = shown(view_of(found))
    assert lines[0] == "running  x 1 failed  z 1 suspended  b 1 backoff  l 1 late  . 996 ready"
    rows = [line.split()[:2] for line in lines if line.strip() and line.split()[0].isdigit() and "." not in line]
    assert rows[:4] == [["500", "failed"], ["999", "suspended"], ["7", "backoff"], ["501", "late"]]
    signs = "".join(line[4:].split("  ")[0] for line in lines[1:5])
    assert sorted(signs.replace(".", "")) == ["b", "x", "z"]
    assert "each sign: 4 ranks" in lines[4]


def late_ranks(found: Reading) -> set[int]:
    return {rank for rank, state in shown_states(found).items() if state == "late"}


def test_a_rank_is_late_if_its_heartbeat_is_much_older_than_that_of_most():
    assert late_ranks(reading(4, r1={"beat_age_s": 9.0})) == set()
    assert late_ranks(reading(4, r1={"beat_age_s": 10.0})) == set()
    assert late_ranks(reading(4, r1={"beat_age_s": 11.0})) == {1}
    every = {f"r{number}": {"beat_age_s": 30.0} for number in range(4)}
    assert late_ranks(reading(4, **every)) == set()
    assert late_ranks(reading(4, r1={"beat_age_s": 11.0, "state": "stopping"})) == set()


def test_every_order():
    found = reading(
        3,
        r0={"cpu": 3.0, "step": 9, "output_bytes_per_s": None},
        r1={"rss_bytes": 1 << 40, "beat_age_s": 5.0, "step": None},
        r2={"state": "hung", "output_bytes_per_s": 1e9, "step": 2, "cpu": None},
    )
    first = {name: ordered(found, shown_states(found), name)[0] for name in ORDERS}
    assert list(first.values()) == [2, 0, 0, 1, 2, 1, 2]


def test_ranks_that_look_the_same_keep_their_places():
    """A tie in the shown value is broken by the rank; the exact values may change with every reading."""
    found = reading(
        4,
        r0={"cpu": 0.001, "rss_bytes": (3 << 20) + 1, "beat_age_s": 0.1, "output_bytes_per_s": 10.2},
        r1={"cpu": 0.003, "rss_bytes": (3 << 20) + 2, "beat_age_s": 0.4, "output_bytes_per_s": 10.4},
        r2={"cpu": 0.004, "rss_bytes": (3 << 20) + 3, "beat_age_s": 1.9, "output_bytes_per_s": 9.9},
        r3={"cpu": 2.0, "rss_bytes": 1 << 30, "beat_age_s": 9.0, "output_bytes_per_s": 1e6},
    )
    states = shown_states(found)
    for name in ("by processor", "by memory", "by heartbeat, oldest first", "by output"):
        assert ordered(found, states, name) == [3, 0, 1, 2], name


def test_the_column_of_the_order_is_marked_and_the_keys_stay():
    view = view_of(reading(4))
    marked = []
    for name in ORDERS:
        assert view.order == name
        picture = draw(view, 140, 24)
        lines = picture.text()
        assert f"o order: {name}" in lines[-1]
        assert lines[-1].startswith("? help")
        marked.append(next(word for word in lines[1].split() if word[-1] in "v^"))
        reversed_cells = "".join(text for text, style in picture._lines[1] if "selected" in style)
        assert reversed_cells == marked[-1]
        view.key("o")
    assert marked == ["STATEv", "RANK^", "CPUv", "MEMORYv", "STEP^", "BEATv", "OUTPUT/sv"]


@pytest.mark.parametrize(
    ("end", "text"),
    [("exit code 3", "exit 3"), ("SIGKILL, core dumped", "SIGKILL"), ("exit code 0 (no result)", "exit 0")],
)
def test_the_state_of_a_failed_rank_is_its_exit(end: str, text: str):
    view = view_of(reading(2, r1={"state": "failed", "end": end}))
    lines = shown(view)
    assert lines[2].startswith(f"   1  {text}  ")
    assert "x 1 failed" in lines[0]


@pytest.mark.parametrize("count", [4, 64, 1000])
def test_the_number_of_processes_has_a_column(count: int):
    """Also if each rank is one process."""
    assert "PROCS" in shown(view_of(reading(count)), 100)[1 + (count > 20) * (4 if count > 64 else 1)]


def test_a_rank_is_found_by_its_number():
    view = view_of(reading(100))
    for keys in (["4", "2", "enter"], ["g", "5", "backspace", "4", "2", "enter"]):
        view.key("home")
        for key in keys[:-1]:
            view.key(key)
        assert "Go to rank: 42_" in shown(view)[-1]
        view.key("enter")
        assert view.rank == 42
        assert any(line.startswith("  42") for line in shown(view))
    for key in ("7", "escape"):
        view.key(key)
    assert view.rank == 42
    for key in ("1", "0", "0", "enter"):
        view.key(key)
    assert view.rank == 42
    assert shown(view)[-1] == "there is no rank 100"


def test_the_next_failed_rank_is_found_in_every_order():
    view = view_of(reading(100))
    view.key("n")
    assert "no rank is failed" in shown(view)[-1]
    view.update(reading(100, r20={"state": "failed"}, r60={"state": "hung"}, r90={"state": "backoff"}))
    view.key("o")
    found = []
    for key in "nnnnN":
        view.key(key)
        found.append(view.rank)
        assert any(line.startswith(f"  {view.rank}") for line in shown(view))
    assert found == [20, 60, 90, 20, 90]


def test_the_page_of_what_went_wrong_tells_why_and_leads_to_the_logs():
    view = view_of(found := reading(9, r3={"state": "failed"}, r5={"state": "failed"}))
    view.key("w")
    assert shown(view)[1:3] == ["what went wrong", "nothing went wrong so far"]
    view.key("escape")
    view.incidents = [Incident(found.at_s, "failed", rank, f"rank {rank} failed: exit code 3") for rank in (5, 3)]
    view.first_failure, view.failed = view.incidents[0], [5, 3]
    view.key("w")
    view.lines = ["rank 5 of 9 failed: exit code 3", "  ValueError: no data"]
    lines = shown(view)
    assert lines[1:4] == ["why rank 5 failed (1 of 2 failed ranks)", *view.lines]
    assert "first failure: rank 5 failed" in lines[6]
    assert "Enter logs" in lines[-1]
    view.key("n")
    assert view.why_rank == 3
    assert shown(view)[1] == "why rank 3 failed (2 of 2 failed ranks)"
    view.key("enter")
    assert (view.mode, view.log_rank) == ("logs", 3)
    view.key("escape")
    assert (view.mode, view.log_rank, view.why_rank) == ("why", None, 3)
    view.key("escape")
    assert view.mode == "table"
    view.key("3")
    view.key("enter")
    view.key("w")
    assert view.why_rank == 3


def test_a_narrow_terminal_keeps_what_matters_most():
    heads = [column.head for column in columns_for(reading(4), 45, set())]
    assert heads[:2] == ["RANK", "STATE"]
    assert "OUTPUT/s" not in heads
    assert [column.head for column in columns_for(reading(4), 20, set())] == ["RANK", "STATE"]


def test_no_number_is_cut():
    """It would be another number. The column becomes wider, and a narrow terminal has fewer columns."""
    found = reading(
        3,
        r0={"step": 123_456_789, "beat_age_s": 6000.0, "cpu": 1234.5},
        r1={"step": 12_345_678, "beat_age_s": 599.7, "rss_bytes": 1023 << 40, "restarts": 123_456_789},
        r2={"beat_age_s": 35_999.0},
    )
    view = view_of(found)
    view.key("o")
    first, second, third = (line.split() for line in shown(view, 160)[2:5])
    assert {"123456789", "100", "min", "123450%"} <= set(first)
    assert {"12345678", "10", "1023.0", "TiB", "123456789"} <= set(second)
    assert "10 h" in " ".join(third)
    for columns in range(20, 160):
        heads = {column.head for column in columns_for(found, columns, set())}
        assert (" 123456789 " in shown(view, columns)[2]) == ("STEP" in heads)


LONG = "日本語の役割の名前の長い"


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (160, ["inference-server0", "inference-server-gpu0", "inference-server-gpu11", f"{LONG}3"]),
        (80, ["inference-server0", "inference~rver-gpu0", "inference~ver-gpu11", "日本語の~前の長い3"]),
    ],
)
def test_a_long_role_keeps_its_number(columns: int, told: list[str]):
    """And its end, by which roles often differ. With free columns, it is whole."""
    roles = ("inference-server0", "inference-server-gpu0", "inference-server-gpu11", f"{LONG}3")
    found = reading(4, **{f"r{rank}": {"role": role} for rank, role in enumerate(roles)})
    lines = shown(view_of(found), columns)
    assert [line.split()[1] for line in lines[2:6]] == told
    starts = {width_of(line[: line.index(" ready ")]) for line in lines[2:6]}
    assert starts == {lines[1].index("STATE") - 1}


def test_a_column_that_was_shown_stays():
    seen: set[str] = set()
    columns_for(reading(2, r1={"restarts": 1}), 160, seen)
    assert "RESTARTS" in [column.head for column in columns_for(reading(2), 160, seen)]
    assert "RESTARTS" not in [column.head for column in columns_for(reading(2), 160, set())]


def test_the_selection_stays_with_its_rank():
    """Until the person selects one, the first row is selected, whichever rank that is."""
    view = view_of(reading(100))
    view.update(reading(100, r42={"state": "failed"}))
    assert view.rank == 42
    shown(view)
    view.key("down")
    assert view.rank == 0
    view.update(reading(100, r42={"state": "failed"}, r43={"state": "failed"}))
    assert view.rank == 0
    for _ in range(50):
        view.key("page down")
        assert f"{view.rank}  " in "".join(shown(view))
    assert view.rank == 99
    view.key("home")
    assert view.rank == 42


def test_every_state_has_a_sign_of_its_own():
    assert len(set(STATES.values())) == len(STATES)


def test_what_keys_ask_for():
    view = view_of(reading(3))
    assert view.key("t") == Request("stacks", None)
    view.key("escape")
    view.key("down")
    assert view.key("T") == Request("stacks", [1])
    view.key("q")
    view.key("s")
    for key in "1x0":
        view.key(key)
    view.key("backspace")
    view.key("backspace")
    view.key("0")
    assert view.key("enter") == Request("signal", [1], "SIGUSR1")
    assert view.key("q") == "quit"


def test_a_signal_goes_to_the_rank_that_the_question_named():
    """Even if another rank comes into the first row while the person types."""
    view = view_of(reading(3))
    view.key("s")
    assert "Signal to rank 0" in shown(view)[-1]
    view.update(reading(3, r2={"state": "failed"}))
    assert "Signal to rank 0" in shown(view)[-1]
    for key in "TERM":
        view.key(key)
    assert view.key("enter") == Request("signal", [0], "SIGTERM")


def test_a_key_that_does_nothing_says_where_the_keys_are():
    """Until the next key."""
    view = view_of(reading(3))
    assert view.key("z") is None
    assert view.notice == "z is not a key of this table; ?: all keys"
    view.key("down")
    assert view.notice == ""


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


@pytest.mark.parametrize("data", [b"\x1b[" + b"1" * 100 + b"q", b"\xff\xfeq", b"\xe6q", b"\x00\x01q"])
def test_what_is_not_a_key_is_skipped(data):
    assert Keys().feed(data)[-1] == "q"
