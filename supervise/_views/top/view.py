"""The content of the live table: its states, orders and columns, and the effects of keys; without a terminal."""

from __future__ import annotations

import string
from functools import partial
from signal import Signals
from typing import TYPE_CHECKING, Any, Literal

from supervise._printable import first_columns, width_of
from supervise._record import NamedTuple
from supervise._story.wording import size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from supervise._views.incidents import Incident
    from supervise._views.top.reader import RankReading, Reading


# The states in the order of severity, ranks whose heartbeat is late, and the orders of the table


STATES = {
    "failed": "x",
    "hung": "h",
    "suspended": "z",
    "backoff": "b",
    "late": "l",
    "stopping": "t",
    "starting": "s",
    "waiting": "w",
    "terminated": "-",
    "ready": ".",
    "finished": "+",
}
"""State to its sign on the map, the worst first. ``late``: see `shown_states`."""

_LATE_S = 10.0
_LATE_PARTS = 4

ORDERS: dict[str, tuple[str, str, Callable[[RankReading], float]]] = {
    "worst first": ("STATE", "v", lambda _: 0.0),
    "by rank": ("RANK", "^", lambda _: 0.0),
    "by processor": ("CPU", "v", lambda row: -round(100 * (row.cpu or 0.0))),
    "by memory": ("MEMORY", "v", lambda row: -_as_shown(row.rss_bytes)),
    "by step, lowest first": ("STEP", "^", lambda row: float("inf") if row.step is None else row.step),
    "by heartbeat, oldest first": ("BEAT", "v", lambda row: -round(max(2.0, row.beat_age_s or 0.0))),
    "by output": ("OUTPUT/s", "v", lambda row: -_as_shown(row.output_bytes_per_s)),
}
"""Name of an order to the head of its column, the mark of its direction, and its key.

Ranks with equal keys are in the order of ranks; a key is rounded as in the column, so that ranks with equal texts do
not change places."""
BAD = ("failed", "hung", "suspended", "backoff")
"""The states of ranks that need a person."""


def _as_shown(size_bytes: float | None) -> float:
    """Return a size, rounded as in its text."""
    value, unit = float(size_bytes or 0), 1
    while round(value) >= 1024:
        value, unit = value / 1024, unit * 1024
    return round(value) * unit


def shown_states(reading: Reading) -> dict[int, str]:
    """Return each rank's state as the table shows it.

    A ready rank is ``late`` if its heartbeat is older than 10 s and than 4 times the median age.
    """
    ages_s = sorted(row.beat_age_s for row in reading.ranks.values() if row.beat_age_s is not None)
    median_s = ages_s[len(ages_s) // 2] if ages_s else 0.0  # the module statistics takes 4 ms to import
    limit_s = max(_LATE_S, _LATE_PARTS * median_s)
    return {
        rank: "late" if row.state == "ready" and (row.beat_age_s or 0.0) > limit_s else row.state
        for rank, row in reading.ranks.items()
    }


def ordered(reading: Reading, states: dict[int, str], order: str) -> list[int]:
    """Return the ranks in an order of `ORDERS`."""
    *_, key = ORDERS[order]
    if order == "worst first":
        return sorted(reading.ranks, key=lambda rank: (severity(states[rank]), -reading.ranks[rank].restarts, rank))
    return sorted(reading.ranks, key=lambda rank: (key(reading.ranks[rank]), rank))


def severity(state: str) -> int:
    """Return the place of a state in `STATES`. An unknown state has the first place."""
    return _SEVERITIES.get(state, 0)


_SEVERITIES = {state: number for number, state in enumerate(STATES)}


_LEAST_LAST_LINE = 16
_LEAST_ROLE = 16
"""Columns of the longest role, if the terminal has no more for it."""
_DROPPED = ("PROCS", "OUTPUT/s", "RESTARTS", "MEMORY", "CPU", "BEAT", "ROLE", "STEP")
"""The columns that a narrow terminal lacks, in the order in which they are dropped."""


class Column(NamedTuple):
    """A column."""

    head: str
    width: int
    """Its width. `columns_for` makes a column of numbers as wide as its highest number."""
    left: bool
    """Whether its text is aligned to the left."""
    value: Callable[[RankReading], Any]
    """None if the rank has no such value."""
    shown: Callable[[Any], str] = str

    def text(self, row: RankReading) -> str | None:
        """Return its text about a rank; None if the rank has no such value."""
        value = self.value(row)
        return None if value is None else self.shown(value)


def _age(age_s: float) -> str:
    if age_s < 2:
        return "<2 s"
    if round(age_s) < 600:
        return f"{age_s:.0f} s"
    return f"{age_s / 60:.0f} min" if round(age_s / 60) < 600 else f"{age_s / 3600:.0f} h"


def _state(row: RankReading) -> str:
    """Return the state of a rank. If the rank has failed, return its exit code or signal, such as ``exit 3``."""
    if row.end is None:
        return row.state
    return row.end.replace("exit code ", "exit ").partition(",")[0].partition(" (")[0]


def _columns(reading: Reading) -> list[Column]:
    role_width = min(_LEAST_ROLE, _widest_role(reading))
    return [
        Column("RANK", 4, False, lambda row: row.rank),
        Column("ROLE", max(4, role_width), True, lambda row: row.role or None),
        Column("STATE", 10, True, _state),
        Column("CPU", 5, False, lambda row: row.cpu, lambda cpu: f"{cpu * 100:.0f}%"),
        Column("MEMORY", 8, False, lambda row: row.rss_bytes, size),
        Column("PROCS", 5, False, lambda row: row.processes),
        Column("STEP", 7, False, lambda row: row.step),
        Column("BEAT", 7, False, lambda row: row.beat_age_s, _age),
        Column("OUTPUT/s", 8, False, lambda row: row.output_bytes_per_s, lambda rate: size(rate) if rate else "0"),
        Column("RESTARTS", 8, False, lambda row: row.restarts or None),
    ]


def _widest_role(reading: Reading) -> int:
    return max(map(width_of, {row.role for row in reading.ranks.values()}), default=0)


def _without_middle(role: str, columns: int) -> str:
    """Return a role and its number, at most `columns` wide: the beginning, ``~``, and the end with the number."""
    if width_of(role) <= columns:
        return role
    number = role[len(role.rstrip(string.digits)) :]
    end = role
    while width_of(end) > max(len(number), (columns - 1) // 2):
        end = end[1:]
    return f"{first_columns(role, columns - 1 - width_of(end))}~{end}"


def columns_for(reading: Reading, columns: int, seen: set[str]) -> list[Column]:
    """Return the columns for which at least one rank has a value, as many as the terminal has room for.

    Args:
        reading: The reading.
        columns: Width of the terminal.
        seen: The heads of columns that were shown before. These columns stay; the heads of this reading are added.
    """
    found = []
    for each in _columns(reading):
        values = [value for row in reading.ranks.values() if (value := each.value(row)) is not None]
        if values or each.head in seen:
            widest = len(each.shown(max(values))) if values and not each.left else 0
            found.append(each._replace(width=max(each.width, widest)))  # a number that is cut is another number
    seen.update(column.head for column in found)
    for head in _DROPPED:
        if sum(column.width + 2 for column in found) + _LEAST_LAST_LINE <= columns:
            break
        found = [column for column in found if column.head != head]
    free = max(0, columns - _LEAST_LAST_LINE - sum(column.width + 2 for column in found))
    for at, column in enumerate(found):
        if column.head == "ROLE":
            width = max(column.width, min(column.width + free, _widest_role(reading)))
            found[at] = column._replace(width=width, shown=partial(_without_middle, columns=width))
    return found


# What the table shows, and the effects of keys


Mode = Literal["table", "help", "why", "logs", "stacks", "stop", "signal", "goto"]

_LONGEST = {"signal": 12, "goto": 6}
"""Characters that can be typed."""
_DIGITS = frozenset(string.digits)
_LETTERS = frozenset(string.ascii_letters)
_SHIFT = 20

HELP = (
    "Keys of the table",
    "  up, down, k, j   select a rank            page up, page down   by a page",
    "  home             the first row, always    end                  the last row",
    "  g, 0 to 9        go to a rank             n, N    next, previous failed rank",
    "  Enter, l         logs of this rank        w    why it failed, what went wrong",
    "  t                stacks of all ranks      T    stacks of this rank",
    "  s                send a signal            x    stop the run",
    "  o, O             next, previous order     q    quit; the run goes on",
    "  ?, h             this help",
    "Keys of a page",
    "  up, down, page up, page down, home, end, left, right   move",
    "  Tab      the other log, stdout or stderr",
    "  Enter    on the page of w: logs of the rank; n, N: next, previous failed rank",
    "  q, Esc   back;  ?, h   close this help",
    "Signs, the worst state first. A sign for several ranks is that of the worst.",
    "  x failed   h hung   z suspended   b backoff, before a restart",
    "  l late: its heartbeat is older than 10 s and 4 times that of most ranks",
    "  t stopping   s starting   w waiting   - terminated   . ready   + finished",
    "Columns. The order is that of the column with v (highest first) or ^ (lowest)",
    "  STATE      of a failed rank: its exit code or signal",
    "  CPU        processor time of the rank and its children; 100%: one processor",
    "  MEMORY     resident memory of the same processes",
    "  STEP BEAT  what the rank has reported: its step, the age of its heartbeat",
    "  PROCS      number of these processes",
    "  OUTPUT/s   mean growth of its logs over the last 10 s",
    "  LAST LINE  the end of its newest log, or else its status text",
)


class Request(NamedTuple):
    """A request to supervise."""

    name: Literal["stop", "signal", "stacks"]
    ranks: list[int] | None
    """None: all."""
    signal: str | None = None


class View:
    """The state of the table. Used by one thread."""

    def __init__(self, name: str, started_s: float | None) -> None:
        """Begin without a reading.

        Args:
            name: Name of the run, printable.
            started_s: When it was started, in seconds since the epoch; None if that is not known.
        """
        self.name, self.started_s = name, started_s
        self.reading: Reading | None = None
        self.states: dict[int, str] = {}
        """Rank to the state that is shown."""
        self.rows: list[int] = []
        """Ranks in the order of the table."""
        self.first_failure: Incident | None = None
        self.incidents: Sequence[Incident] = ()
        """The incidents, the oldest first."""
        self.trouble = ""
        """Why there is no newer reading; "" if there is one."""
        self.notice = ""
        """The result of the last request; the next key removes it."""
        self.mode: Mode = "table"
        self.order = next(iter(ORDERS))
        self.selected: int | None = None
        """The selected local rank; None: the rank in the first row."""
        self.top = 0
        """Index of the first row that is shown."""
        self.page_rows = 1
        """How many rows fit, according to the last picture."""
        self.title = ""
        """The title of the page; that of the page ``why`` is made from the ranks."""
        self.lines: list[str] = []
        """The lines of the page."""
        self.log_rank: int | None = None
        """The rank whose logs are wanted."""
        self.log_turns = 0
        """How often Tab was pressed."""
        self.offset: int | None = None
        """The first line of the page that is shown; None: the last lines are shown."""
        self.shift = 0
        """The first column of the page that is shown."""
        self.failed: Sequence[int] = ()
        """The ranks with a failed life, the first failure first."""
        self.why_rank: int | None = None
        """The rank whose failure the page ``why`` shows; None: none has failed."""
        self.back: Mode = "table"
        """The mode to which the page of logs returns."""
        self.line_count = 0
        """Number of lines of the page, according to the last picture."""
        self.top_line = 0
        """The first line that is shown, according to the last picture."""
        self.typed = ""
        self.to_all = False
        self.seen: set[str] = set()
        """The columns that were shown."""

    def update(self, reading: Reading) -> None:
        """Show a new reading."""
        self.reading, self.trouble = reading, ""
        self.incidents, self.first_failure, self.failed = reading.incidents, reading.first_failure, reading.failed
        self.states = shown_states(reading)
        self._sort()

    def _sort(self) -> None:
        if self.reading is not None:
            self.rows = ordered(self.reading, self.states, self.order)

    @property
    def index(self) -> int:
        """The row of the selected rank."""
        return self.rows.index(self.selected) if self.selected in self.rows else 0

    @property
    def rank(self) -> int | None:
        """The selected rank; None if there is none."""
        return self.rows[self.index] if self.rows else None

    def show_page(self, mode: Mode, title: str, lines: list[str], offset: int | None = 0) -> None:
        """Show a page from its beginning, or from a line (`offset`)."""
        self.mode, self.title, self.lines = mode, title, lines
        self.offset, self.shift = offset, 0

    def key(self, key: str) -> Request | Literal["quit", "redraw"] | None:
        """Handle a key; return the action that the key requests, or None.

        ``quit``: the user wants to leave the table. ``redraw``: the terminal may show another picture than the last one
        that was written.
        """
        self.notice = ""
        if key == "redraw":
            return "redraw"
        if self.mode == "stop":
            self.mode = "table"
            return Request("stop", None) if key in ("y", "Y") else None
        if self.mode in ("signal", "goto"):
            return self._prompt_key(key)
        if self.mode == "table":
            return self._table_key(key)
        self._page_key(key)
        return None

    def _table_key(self, key: str) -> Request | Literal["quit"] | None:
        if self._moved(key):
            return None
        match key:
            case "q":
                return "quit"
            case "?" | "h":
                self.show_page("help", "help", list(HELP))
            case "w":  # all incidents, and why a rank failed: the selected rank, or else the rank that failed first
                self.why_rank = self.rank if self.selected in self.failed else next(iter(self.failed), None)
                self.show_page("why", "", [])
            case "o" | "O":
                names = list(ORDERS)
                self.order = names[(names.index(self.order) + (1 if key == "o" else -1)) % len(names)]
                self.selected = None
                self._sort()
            case "x":
                self.mode = "stop"
            case _ if self.rank is not None:
                return self._rank_key(key, self.rank)
            case _:
                pass
        return None

    def _rank_key(self, key: str, rank: int) -> Request | None:
        match key:
            case "s":
                self.mode, self.typed, self.to_all = "signal", "", False
                self.selected = rank  # the rank that the question names, even if another rank moves to the first row
            case "t" | "T":
                whose = "all ranks" if key == "t" else f"rank {rank}"
                self.show_page("stacks", f"stacks of {whose}", ["waiting for the stacks ..."])
                return Request("stacks", None if key == "t" else [rank])
            case "enter" | "l":
                self._show_logs(rank)
            case _:
                self.notice = f"{key} is not a key of this table; ?: all keys"
        return None

    def _show_logs(self, rank: int) -> None:
        self.back = "why" if self.mode == "why" else "table"
        self.log_rank, self.log_turns = rank, 0
        self.show_page("logs", f"logs of rank {rank}", ["..."], None)

    def _next_bad(self, step: int) -> None:
        """Select the next rank with a state in `BAD`."""
        count = len(self.rows)
        ranks = (self.rows[(self.index + step * far) % count] for far in range(1, count + 1))
        found = next((rank for rank in ranks if self.states[rank] in BAD), None)
        if found is None:
            self.notice = "no rank is failed, hung, suspended or in backoff; w: what went wrong before"
        else:
            self.selected = found

    def _prompt_key(self, key: str) -> Request | None:
        """Handle a key while a rank or a signal is typed."""
        mode = self.mode
        if key in ("escape", "enter"):
            self.mode = "table"
            if key == "enter" and mode == "signal":
                return self._send_signal()
            if key == "enter":
                self._go_to()
        elif key == "tab":
            self.to_all = not self.to_all
        elif key == "backspace":
            self.typed = self.typed[:-1]
        elif key in _DIGITS or (mode == "signal" and key in _LETTERS):
            self.typed += key.upper() if len(self.typed) < _LONGEST[mode] else ""
        return None

    def _go_to(self) -> None:
        if self.typed and int(self.typed) in self.states:
            self.selected = int(self.typed)
        elif self.typed:
            self.notice = f"there is no rank {int(self.typed)}"

    def _moved(self, key: str) -> bool:
        if key == "home":
            self.selected = None
        elif key in ("n", "N"):
            self._next_bad(1 if key == "n" else -1)
        elif key in _DIGITS or key == "g":
            self.mode, self.typed = "goto", key.removeprefix("g")
        elif key in _MOVES or key == "end":
            step = len(self.rows) if key == "end" else _MOVES[key] * (self.page_rows if key.startswith("page") else 1)
            if self.rows:
                self.selected = self.rows[min(max(self.index + step, 0), len(self.rows) - 1)]
        else:
            return False
        return True

    def _page_key(self, key: str) -> None:
        last = max(0, self.line_count - self.page_rows)
        now = last if self.offset is None else min(self.offset, last)
        if key in ("q", "escape") or (self.mode == "help" and key in ("?", "h")):
            self.mode, self.back = (self.back if self.mode == "logs" else "table"), "table"
            self.log_rank, self.offset, self.lines = None, 0, []
        elif self.mode == "why" and key in ("n", "N", "enter"):
            self._why_key(key)
        elif key == "home":
            self.offset = 0
        elif key == "end":
            self.offset = None if self.mode == "logs" else last
        elif key in _MOVES:
            now += _MOVES[key] * (self.page_rows if key.startswith("page") else 1)
            follows = self.mode == "logs" and now >= last
            self.offset = None if follows else max(0, min(now, last))
        elif key in ("left", "right"):
            self.shift = max(0, self.shift + (_SHIFT if key == "right" else -_SHIFT))
        elif key == "tab" and self.mode == "logs":
            self.log_turns += 1

    def _why_key(self, key: str) -> None:
        if self.why_rank is None:
            return
        if key == "enter":
            self._show_logs(self.why_rank)
            return
        step = 1 if key == "n" else -1
        self.why_rank = self.failed[(self.failed.index(self.why_rank) + step) % len(self.failed)]
        self.lines, self.offset = [], 0

    def _send_signal(self) -> Request | None:
        name = f"SIG{self.typed.removeprefix('SIG')}"
        if self.typed.isdigit():
            name = next((one.name for one in Signals if int(one) == int(self.typed)), name)
        if name not in Signals.__members__:
            self.notice = f"{self.typed!r} is not a signal; type a name such as USR1, or a number"
        elif self.rank is not None:
            return Request("signal", None if self.to_all else [self.rank], name)
        return None


_MOVES = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -1, "page down": 1}
