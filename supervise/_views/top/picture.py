"""The picture of the live table for a size of the terminal."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from supervise._story.wording import counted
from supervise._views.top.screen import STYLES, Canvas, width_of
from supervise._views.top.view import ORDERS, STATES, Column, columns_for, severity

if TYPE_CHECKING:
    from supervise._views.incidents import Incident
    from supervise._views.top.reader import RankReading
    from supervise._views.top.view import View

_TABLE_KEYS: tuple[tuple[str, str], ...] = (
    *(("?", "help"), ("q", "quit"), ("Enter", "logs"), ("w", "why"), ("n", "failed"), ("t", "stacks"), ("x", "stop")),
    *(("s", "signal"), ("o", "order"), ("g", "go to rank")),
)
_PAGE_KEYS = (("Esc", "back"), ("up/down", "move"))
_WHY_KEYS = (("Esc", "back"), ("Enter", "logs"), ("n", "next failed rank"), ("up/down", "move"))
_LOG_KEYS = (*_PAGE_KEYS, ("left/right", "shift"), ("Tab", "other log"))
_LEAST_FOR_MAP = 10
"""The least number of rows of a terminal that has a map."""
_LEAST_FOR_HEAD = 7
_PARTS = 5
"""The map has at most a fifth of the rows. The incidents have at most a fifth if the ranks need the other rows."""
_MOST_INCIDENTS = 10


def draw(view: View, columns: int, rows: int) -> Canvas:
    """Return the picture.

    Args:
        view: What is shown. This function sets its `page_rows`, `top` and `line_count`.
        columns: Width of the terminal, at least 1.
        rows: Height of the terminal, at least 1.
    """
    canvas = Canvas(columns, rows)
    _head(view, canvas)
    end = rows - 1 if rows > 2 else rows
    if view.mode in ("table", "stop", "signal", "goto"):
        _table(view, canvas, 1, end)
    else:
        _page(view, canvas, 1, end)
    if rows > 2:
        _foot(view, canvas, rows - 1)
    return canvas


# The first and the last row


def _head(view: View, canvas: Canvas) -> None:
    """Draw the first row: the longest of its forms that fits."""
    reading = view.reading
    if reading is None:
        canvas.write(0, 0, f"{view.name}: {view.trouble or 'waiting for supervise ...'}", "title")
        return
    phase = ("no reply", "failed") if view.trouble else (reading.phase, _style(reading.phase, default="title"))
    clock = [] if view.started_s is None else [(_clock(max(0.0, reading.at_s - view.started_s)), "")]
    ranks = (f"{counted(len(reading.ranks), 'rank')}:", "title")
    counts = sorted(Counter(view.states.values()).items(), key=lambda item: severity(item[0]))
    signs = [(STATES.get(state, "?"), count, state) for state, count in counts]
    long = [(f"{sign} {count} {state}", _style(state)) for sign, count, state in signs]
    short = [(f"{sign} {count}", _style(state)) for sign, count, state in signs]
    restarts = [(counted(reading.restarts, "restart"), "backoff")] if reading.restarts else []
    forms = [
        [phase, *clock, ranks, *long, *restarts, (view.name, "dim")],
        [phase, *clock, ranks, *long, *restarts],
        [phase, *clock, *long, *restarts],
        [phase, *long],
        [phase, *short],
        short,
    ]
    fitting = (form for form in forms if sum(width_of(text) + 2 for text, _ in form) - 2 <= canvas.columns)
    at = 0
    for text, style in next(fitting, short):
        at = canvas.write(0, at, text, style) + 2


def _clock(past_s: float) -> str:
    minutes, second = divmod(int(past_s), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}"


def _foot(view: View, canvas: Canvas, row: int) -> None:
    whom, other = ("all ranks", "one rank") if view.to_all else (f"rank {view.rank}", "all ranks")
    questions = {
        "stop": (f"Stop the run, all {counted(len(view.rows), 'rank')}? y: stop   other key: no", ""),
        "signal": (f"Signal to {whom}: {view.typed}_", f"Enter: send   Tab: {other}   Esc: no"),
        "goto": (f"Go to rank: {view.typed}_", "Enter: go   Esc: no"),
    }
    if view.mode in questions:
        question, keys_of_it = questions[view.mode]
        at = canvas.write(row, 0, question, "ask")
        canvas.write(row, at + 2, keys_of_it)
        return
    if view.notice:
        canvas.write(row, 0, view.notice, "title")
        return
    keys = {"table": _TABLE_KEYS, "logs": _LOG_KEYS, "why": _WHY_KEYS}.get(view.mode, _PAGE_KEYS)
    count, first = (len(view.rows), view.top) if view.mode == "table" else (view.line_count, view.top_line)
    place = f"{first + 1}-{min(count, first + view.page_rows)} of {count}" if count > view.page_rows else ""
    end = canvas.columns - len(place) - 2 if len(place) + 16 <= canvas.columns else canvas.columns
    at = 0
    for key, short in keys:
        long = f"order: {view.order}" if key == "o" else short
        meaning = long if at + len(key) + 1 + len(long) <= end else short
        if at + len(key) + 1 + len(meaning) > end:
            break
        at = canvas.write(row, at, key, "key")
        at = canvas.write(row, at + 1, meaning) + 2
    if end < canvas.columns:
        canvas.write(row, canvas.columns - len(place), place, "dim")


# The table


def _table(view: View, canvas: Canvas, start: int, end: int) -> None:
    """Draw the map, the ranks and the incidents into the lines from `start` to before `end`."""
    if view.reading is None:
        return
    room = end - start
    left = min(room - 1 - len(view.rows), _MOST_INCIDENTS)  # the rows that are left if every rank has a row
    incidents = _incidents(view, max(1, room // _PARTS, left) if room > 2 else 0)
    end -= len(incidents)
    for number, (text, style) in enumerate(incidents):
        canvas.write(end + number, 0, text, style)
    if canvas.rows >= _LEAST_FOR_MAP and len(view.rows) > end - start - 1:
        start = _map(view, canvas, start, room // _PARTS)
    columns = columns_for(view.reading, canvas.columns, view.seen)
    if canvas.rows >= _LEAST_FOR_HEAD:
        _heads(canvas, start, columns, view.order)
        start += 1
    view.page_rows = max(1, end - start)
    top = min(max(view.top, view.index - view.page_rows + 1), view.index)  # so that the selected rank is visible
    view.top = max(0, min(top, len(view.rows) - view.page_rows))
    for number, rank in enumerate(view.rows[view.top : view.top + end - start]):
        _rank_row(canvas, start + number, view.reading.ranks[rank], view.states[rank], columns)
        if rank == view.rank:
            canvas.paint(start + number, "selected")


def _heads(canvas: Canvas, at_row: int, columns: list[Column], order: str) -> None:
    """Draw the heads of the columns, with a mark at the column by which the table is ordered."""
    canvas.write(at_row, 0, " " * canvas.columns, "head")
    sorted_head, mark, _ = ORDERS[order]
    at = 0
    for column in columns:
        head = column.head[: column.width]
        place = at if column.left else at + column.width - len(head)
        if column.head == sorted_head:
            canvas.write(at_row, place, head + mark, "head selected")
        else:
            canvas.write(at_row, place, head, "head")
        at += column.width + 2
    canvas.write(at_row, at, "LAST LINE", "head")


def _rank_row(canvas: Canvas, at_row: int, row: RankReading, state: str, columns: list[Column]) -> None:
    at = 0
    for column in columns:
        if column.head == "STATE":
            shown = state if row.end is None else column.text(row) or state
            canvas.write(at_row, at, shown[: column.width], _style(state))
        elif (found := column.text(row)) is not None:
            style = "late" if column.head == "BEAT" and state in ("late", "hung") else ""
            canvas.write(at_row, at, found if column.left else found.rjust(column.width), style)
        at += column.width + 2
    canvas.write(at_row, at, (row.last_line or "").strip() or row.status or "")


def _map(view: View, canvas: Canvas, start: int, most_rows: int) -> int:
    """Draw a map with a sign for each rank, or for some ranks together; return the row after the map."""
    ranks = sorted(view.states)
    label = len(str(ranks[-1]))
    room = canvas.columns - label - 1
    width = room // 10 * 10 if room >= 10 else max(1, room)
    parts = -(-len(ranks) // (width * max(1, most_rows)))
    for first in range(0, len(ranks), width * parts):
        canvas.write(start, 0, str(ranks[first]).rjust(label), "dim")
        line = ranks[first : first + width * parts]
        for number in range(0, len(line), parts):
            state = min((view.states[rank] for rank in line[number : number + parts]), key=severity)
            canvas.write(start, label + 1 + number // parts, STATES.get(state, "?"), _style(state))
        start += 1
    if parts > 1:
        last = label + 1 + -(-len(line) // parts)
        canvas.write(start - 1, last + 2, f"each sign: {parts} ranks", "dim")
    return start


def _style(state: str, *, default: str = "") -> str:
    return state if state in STYLES else default


# What went wrong


def _incidents(view: View, most: int) -> list[tuple[str, str]]:
    """Return the newest incidents as lines. If the first failure of the run is older, it is the first line."""
    found = [*view.incidents[-most:]] if most else []
    first = view.first_failure
    if first is not None and most and first not in found:
        found = [first, *found[1:]]
    return [(_line(each, first), _kind_style(each)) for each in found]


def _line(incident: Incident, first: Incident | None) -> str:
    mark = "first failure: " if incident is first else ""
    return f"{time.strftime('%H:%M:%S', time.localtime(incident.at_s))}  {mark}{incident.text}"


def _kind_style(incident: Incident) -> str:
    return {"failed": "failed", "hung": "hung", "restart": "backoff", "suspended": "suspended"}.get(incident.kind, "")


# Pages


def _page(view: View, canvas: Canvas, start: int, end: int) -> None:
    """Draw a page of lines."""
    lines: list[tuple[str, str]]
    title = view.title
    if view.mode == "logs":
        lines = [(line, "") for line in view.lines]
    elif view.mode == "why":
        title, lines = _why_title(view), _why_lines(view, canvas.columns)
    else:
        head = "title" if view.mode == "help" else ""
        lines = [
            (part, "" if line.startswith(" ") else head)
            for line in view.lines
            for part in _wrapped(line, canvas.columns)
        ]
    if canvas.rows >= _LEAST_FOR_HEAD:
        canvas.write(start, 0, title.ljust(canvas.columns), "head")
        start += 1
    view.page_rows, view.line_count = max(1, end - start), len(lines)
    last = max(0, len(lines) - view.page_rows)
    first = view.top_line = last if view.offset is None else min(view.offset, last)
    shift = view.shift if view.mode == "logs" else 0
    for number, (text, style) in enumerate(lines[first : first + view.page_rows]):
        canvas.write(start + number, 0, _from_column(text, shift), style)


def _why_title(view: View) -> str:
    if view.why_rank is None:
        return "what went wrong"
    count = len(view.failed)
    place = f" ({view.failed.index(view.why_rank) + 1} of {count} failed ranks)" if count > 1 else ""
    return f"why rank {view.why_rank} failed{place}"


def _why_lines(view: View, columns: int) -> list[tuple[str, str]]:
    """Return why a rank has failed, and all that went wrong."""
    told = [
        (part, _kind_style(each))
        for each in view.incidents
        for part in _wrapped(_line(each, view.first_failure), columns)
    ]
    if view.why_rank is None:
        return told or [("nothing went wrong so far", "")]
    why = view.lines or ["..."]
    text = [(part, "" if number else "failed") for number, line in enumerate(why) for part in _wrapped(line, columns)]
    return [*text, ("", ""), ("All that went wrong, the newest last:", "title"), *told]


def _from_column(text: str, column: int) -> str:
    if text.isascii() or not column:
        return text[column:]
    skipped = 0
    for index, character in enumerate(text):
        if skipped >= column:
            return text[index:]
        skipped += width_of(character)
    return ""


def _wrapped(text: str, columns: int) -> list[str]:
    """Return a line in parts that fit; parts after the first are indented."""
    parts, indent = [], ""
    while width_of(indent + text) > columns:
        length = columns - len(indent)
        while length > 1 and width_of(indent + text[:length]) > columns:
            length -= 1
        space = text.rfind(" ", length // 2, length + 1)
        cut = space if space > 0 else max(1, length)
        parts.append(indent + text[:cut])
        text = text[cut:].lstrip(" ")
        indent = "    " if columns > 12 else ""
    return [*parts, indent + text]
