"""The picture of every size and every state of a gang: nothing beyond the last column, the worst rank first."""

import time

import pytest

from supervise._views.top.columns import columns_for
from supervise._views.top.order import ORDERS, STATES, late_ranks, ordered, shown_states
from supervise._views.top.picture import draw
from supervise._views.top.reading import Incident, RankReading, Reading
from supervise._views.top.view import HELP, Quit, Request, View

SIZES = [(1, 1), (5, 2), (20, 4), (33, 7), (40, 10), (80, 24), (160, 50)]


def rank(number: int, **changed: object) -> RankReading:
    plain = RankReading(
        rank=number,
        role="",
        state="ready",
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
    view.log_lines = ["x" * 300, "漢字" * 200]
    shown(View("job", None), columns, rows)
    for key in (
        "x",
        "n",
        "s",
        "escape",
        "o",
        "w",
        "q",
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
        shown(view, columns, rows)


def test_the_help_fits_80_columns():
    assert max(map(len, HELP)) < 80


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


def test_a_rank_is_late_if_its_heartbeat_is_much_older_than_that_of_most():
    assert late_ranks(reading(4, r1={"beat_age_s": 9.0})) == frozenset()
    assert late_ranks(reading(4, r1={"beat_age_s": 11.0})) == {1}
    every = {f"r{number}": {"beat_age_s": 30.0} for number in range(4)}
    assert late_ranks(reading(4, **every)) == frozenset()
    assert late_ranks(reading(4, r1={"beat_age_s": 11.0, "state": "stopping"})) == frozenset()


def test_every_order():
    found = reading(
        3,
        r0={"cpu": 3.0, "step": 9, "output_bytes_per_s": None},
        r1={"rss_bytes": 1 << 40, "beat_age_s": 5.0, "step": None},
        r2={"state": "hung", "output_bytes_per_s": 1e9, "step": 2, "cpu": None},
    )
    first = {name: ordered(found, shown_states(found), name)[0] for name in ORDERS}
    assert list(first.values()) == [2, 0, 0, 1, 2, 1, 2]


def test_a_narrow_terminal_keeps_what_matters_most():
    heads = [column.head for column in columns_for(reading(4), 45, set())]
    assert heads[:2] == ["RANK", "STATE"]
    assert "OUTPUT" not in heads
    assert [column.head for column in columns_for(reading(4), 20, set())] == ["RANK", "STATE"]


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
    assert view.key("q") == Quit()
