"""Escaped text, and the small pieces of markup that the parts of the page share."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, NamedTuple

from supervise._printable import one_line, printable
from supervise._views.wording import seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_STEPS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800)
_LONG_STEPS_S = (3600, 7200, 14400, 21600, 43200, 86400)
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
    steps = (*_STEPS_S, *_LONG_STEPS_S)
    step_s = next((step for step in steps if span_s / step <= _MOST_TICKS), None)
    if step_s is None:
        step_s = 86400.0 * (int(span_s / 86400 / _MOST_TICKS) + 1)
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
