"""HTML of a run: the picture that a notebook shows, and the pieces of markup that the page of the report shares."""

from __future__ import annotations

from collections import defaultdict
from html import escape
from typing import TYPE_CHECKING, Any

from supervise._printable import ending, one_line, printable
from supervise._record import NamedTuple
from supervise._story.wording import counted, seconds, shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_STEPS_S = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800),
    *(3600, 7200, 14400, 21600, 43200, 86400),
)
_MOST_TICKS = 8
_LAST_LABEL = 0.78
"""The part of an axis after which a label would meet the name of the axis on a narrow page."""
_LEAST_GAP = 0.02


class Row(NamedTuple):
    """A row of a table."""

    cells: Sequence[str]
    """Markup; the first is the head of the row."""
    kind: str = ""
    """The class of the row."""


def text(value: object) -> str:
    """Return one line of text without control characters, escaped for elements and attributes."""
    return escape(one_line(str(value)))


def unbroken(value: str) -> str:
    """Return text in which a line may break only after a comma."""
    return ", ".join(f'<span class="whole">{text(part)}</span>' for part in value.split(", "))


def block(value: str) -> str:
    """Return text of several lines without control characters, escaped."""
    return escape(printable(value))


def table(caption: str, heads: Sequence[str], rows: Iterable[Row], *, numeric: frozenset[str]) -> str:
    """Return a table.

    Args:
        caption: Its caption, as text.
        heads: The heads of its columns, as text.
        rows: Its rows.
        numeric: The heads of the columns with numbers.
    """
    marks = [' class="number"' if each in numeric else "" for each in heads]
    head = "".join(f'<th scope="col"{mark}>{text(each)}</th>' for each, mark in zip(heads, marks, strict=True))
    body = "".join(
        f'<tr class="{kind}"><th scope="row"{marks[0]}>{cells[0]}</th>'
        + "".join(f"<td{mark}>{cell}</td>" for cell, mark in zip(cells[1:], marks[1:], strict=True))
        + "</tr>"
        for cells, kind in rows
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{text(caption)}"><table><caption>{text(caption)}'
        f"</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def ticks(span_s: float) -> list[tuple[float, str]]:
    """Return the ticks of a time axis: the position as a part of the axis, and the label."""
    whole_days_s = 86400.0 * (int(span_s / 86400 / _MOST_TICKS) + 1)
    step_s = next((step for step in _STEPS_S if span_s / step <= _MOST_TICKS), whole_days_s)
    count = int(span_s / step_s)
    return [(index * step_s / span_s, _label(index * step_s)) for index in range(count + 1)]


def _label(at_s: float) -> str:
    return seconds(at_s).removesuffix(" 00 s").removesuffix(" 00 min") if at_s else "0"


def axis(span_s: float, *, last: float = _LAST_LABEL) -> str:
    """Return a time axis; the pictures below it have the same width. It is hidden from screen readers.

    Args:
        span_s: Its length in seconds.
        last: The part of the axis after which it has no labels, because its name follows.
    """
    marks = "".join(
        f'<span style="left:{place * 100:.3f}%">{text(label)}</span>' for place, label in ticks(span_s) if place < last
    )
    return f'<div class="axis" aria-hidden="true">{marks}<small>after the start</small></div>'


def grid(span_s: float) -> str:
    """Return the lines of the ticks, for an SVG that is 1000 wide and 100 high."""
    return "".join(
        f'<line class="grid" x1="{place * 1000:.1f}" x2="{place * 1000:.1f}" y1="0" y2="100"/>'
        for place, _ in ticks(span_s)
    )


def hatched(part: float) -> str:
    """Return the last part of a time axis, from 0 to 1, hatched, for an SVG that is 1000 wide and 100 high."""
    if part < _LEAST_GAP:
        return ""
    lines = "".join(f"M{x} 100L{x + 8} 0" for x in range(round(1000 * (1 - part)), 992, 12))
    return f'<path class="unsampled" d="{lines}"><title>not sampled</title></path>'


# A result or a running gang as HTML for a notebook: one picture, without styles or scripts of its own
#
# The colors are attributes, and text has the color of the page, so that the picture works in light and dark
# notebooks, and in notebooks that remove style elements.


_MOST_ROWS = 32
_MOST_LIVES = 50
_WIDTH, _BAR_X, _BAR_WIDTH, _ROW_HEIGHT = 720, 80, 360, 22
_MOST_CHARS = 44
_COLORS = {"succeeded": "#2e7d4f", "failed": "#d43d3d", "stopped": "#7b828a", "running": "#5b86cf"}
_KINDS = {
    "root_cause": "failed",
    "concurrent_failure": "failed",
    "lost": "failed",
    "unkillable": "failed",
    "finished": "succeeded",
    "bystander": "stopped",
    "terminated": "stopped",
}
_WORDS = {
    "root_cause": "root cause: ",
    "concurrent_failure": "failed too: ",
    "bystander": "stopped, ",
    "unkillable": "survived SIGKILL, ",
    "terminated": "terminated, ",
}
_FIRST = ("root_cause", "concurrent_failure", "lost", "unkillable")
_STATES = {"finished": "succeeded", "failed": "failed", "terminated": "stopped", "stopping": "stopped"}


class _Bar(NamedTuple):
    """A life of a rank."""

    begin: float
    """The part of the axis, from 0 to 1, at which the life begins. `end` is the part at which it ends."""
    end: float
    kind: str
    told: str


def of_result(result: Any, report: str) -> str:
    """Return a `RunProcsResult` as HTML: the outcome, and a bar for each rank with its lives.

    Args:
        result: The result. Its class imports this module.
        report: The text of its `GangFailed`; "" if the gang has succeeded.
    """
    lives: dict[int, list[Any]] = defaultdict(list)
    for restart in result.restarts:
        lives[restart.local_rank].append(restart.end)
    for rank, end in result.ends.items():
        lives[rank].append(end)
    every = [end for ends in lives.values() for end in ends if end.started_ns and not end.host]
    begin_ns = min((end.started_ns for end in every), default=0)
    span_ns = max((end.ended_ns for end in every), default=0) - begin_ns
    ranks = sorted(result.ends, key=lambda rank: (result.ends[rank].role not in _FIRST, rank))
    rows = [
        _row(at, rank, _bars(lives[rank], begin_ns, span_ns), *_told(lives[rank]))
        for at, rank in enumerate(ranks[:_MOST_ROWS])
    ]
    took = f", {seconds(span_ns / 1e9)}" if span_ns > 0 else ""
    count = max(len(result.stdouts), len(result.ends))
    title, *more = report.split("\n") if report else [f"succeeded: {counted(count, 'rank')}{took}"]
    kind = "stopped" if result.outcome == "stopped" else "failed" if report else "succeeded"
    logs = next((line.strip() for line in more if line.startswith("  logs: ")), "")
    return _whole(title, kind, rows, len(ranks), logs)


def of_gang(name: str, status: Any) -> str:
    """Return a running gang as HTML: its phase, and the state of each rank.

    Args:
        name: The name of the gang.
        status: Its `GangStatus`; None before its start, or after its end.
    """
    if status is None:
        return _whole(f"{name}: not running", "stopped", [], 0)
    rows = []
    for at, (rank, found) in enumerate(sorted(status.ranks.items())[:_MOST_ROWS]):
        pid = "" if found.pid is None else f"pid {found.pid}"
        again = counted(found.restarts, "restart") if found.restarts else ""
        step = "" if found.step is None else f"step {found.step}"
        told = ", ".join(filter(None, (pid, again, step, found.status)))
        kind = _STATES.get(found.state, "running")
        rows.append(_row(at, rank, [_Bar(0.0, 1.0, kind, found.state)], f"{found.state}, {told}", kind))
    return _whole(f"{name}: {status.phase}", "running", rows, len(status.ranks))


def _bars(ends: Sequence[Any], begin_ns: int, span_ns: int) -> list[_Bar]:
    return [
        _Bar(
            (end.started_ns - begin_ns) / span_ns,
            (end.ended_ns - begin_ns) / span_ns,
            _KINDS.get(end.role, "stopped"),
            f"{_how(end)}, after {seconds((end.ended_ns - end.started_ns) / 1e9)}",
        )
        for end in ends[-_MOST_LIVES:]
        if end.started_ns and not end.host and span_ns > 0
    ]


def _how(end: Any) -> str:
    how = ending(end.exitcode, core_dumped=end.core_dumped)
    if end.role == "lost":
        return "lost with its host"
    return "finished" if how == "exit code 0" and end.role == "finished" else f"{_WORDS.get(end.role, '')}{how}"


def _told(ends: Sequence[Any]) -> tuple[str, str]:
    """Return how a rank ended, and the kind of that end."""
    count = len(ends) - 1
    again = f", {counted(count, 'restart')}" if count else ""
    return f"{_how(ends[-1])}{again}", _KINDS.get(ends[-1].role, "stopped")


def _row(at: int, rank: int, bars: Iterable[_Bar], told: str, kind: str) -> str:
    y = at * _ROW_HEIGHT
    drawn = "".join(
        f'<rect x="{_BAR_X + _BAR_WIDTH * bar.begin:.1f}" y="{y + 4}" height="{_ROW_HEIGHT - 8}" rx="2"'
        f' width="{max(_BAR_WIDTH * (bar.end - bar.begin), 2):.1f}" fill="{_COLORS[bar.kind]}">'
        f"<title>{text(f'rank {rank}: {bar.told}')}</title></rect>"
        for bar in bars
    )
    weight = ' font-weight="bold"' if kind == "failed" else ""
    x = _BAR_X + _BAR_WIDTH + 12
    return (
        f'<text x="0" y="{y + 15}" fill="currentColor">rank {rank}</text>{drawn}'
        f'<text x="{x}" y="{y + 15}" fill="currentColor"{weight}>{text(shortened(told, _MOST_CHARS))}</text>'
    )


def _whole(title: str, kind: str, rows: Sequence[str], count: int, note: str = "") -> str:
    height = len(rows) * _ROW_HEIGHT
    picture = (
        f'<svg role="img" aria-label="{text(title)}" width="{_WIDTH}" height="{height}" style="max-width:100%"'
        f' viewBox="0 0 {_WIDTH} {height}" font-size="12" font-family="sans-serif">{"".join(rows)}</svg>'
    )
    more = f"and {count - len(rows)} more ranks" if count > len(rows) else ""
    notes = "".join(f"<div>{text(each)}</div>" for each in (more, note) if each)
    head = f'<div><span style="color:{_COLORS[kind]}">&#9632;</span> <b>{text(title)}</b></div>'
    return f"<div>{head}{picture if rows else ''}{notes}</div>"
