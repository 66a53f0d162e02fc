"""A result or a running gang as HTML for a notebook: one picture, without styles or scripts of its own.

The colors are attributes, and text has the color of the page, so that the picture works in light and dark
notebooks, and in notebooks that remove style elements.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from supervise._views.report.markup import text
from supervise._views.wording import ending, seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MOST_ROWS = 32
_MOST_LIVES = 50
_WIDTH, _BAR_X, _BAR_WIDTH, _ROW_HEIGHT = 720, 80, 360, 22
_MOST_CHARS = 44
_COLORS = {"succeeded": "#2e7d4f", "failed": "#d43d3d", "stopped": "#7b828a", "running": "#5b86cf"}
_KINDS = {
    "root_cause": "failed",
    "concurrent_failure": "failed",
    "lost": "failed",
    "finished": "succeeded",
    "bystander": "stopped",
    "terminated": "stopped",
}
_WORDS = {
    "root_cause": "root cause: ",
    "concurrent_failure": "failed too: ",
    "bystander": "stopped, ",
    "lost": "survived SIGKILL, ",
    "terminated": "terminated, ",
}
_FIRST = ("root_cause", "concurrent_failure", "lost")
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
    rows = [_row(at, rank, _bars(lives[rank], begin_ns, span_ns), *_told(lives[rank])) for at, rank in _top(ranks)]
    took = f", {seconds(span_ns / 1e9)}" if span_ns > 0 else ""
    count = max(len(result.stdouts), len(result.ends))
    title, *more = report.split("\n") if report else [f"succeeded: {count} rank{'s' if count != 1 else ''}{took}"]
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
    for at, (rank, found) in _top(sorted(status.ranks.items())):
        pid = "" if found.pid is None else f"pid {found.pid}"
        again = f"{found.restarts} restart{'s' if found.restarts > 1 else ''}" if found.restarts else ""
        step = "" if found.step is None else f"step {found.step}"
        told = ", ".join(filter(None, (pid, again, step, found.status)))
        kind = _STATES.get(found.state, "running")
        rows.append(_row(at, rank, [_Bar(0.0, 1.0, kind, found.state)], f"{found.state}, {told}", kind))
    return _whole(f"{name}: {status.phase}", "running", rows, len(status.ranks))


def _top(ranks: Sequence[Any]) -> Iterable[tuple[int, Any]]:
    return enumerate(ranks[:_MOST_ROWS])


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
    return "finished" if how == "exit code 0" and end.role == "finished" else f"{_WORDS.get(end.role, '')}{how}"


def _told(ends: Sequence[Any]) -> tuple[str, str]:
    """Return how a rank ended, and the kind of that end."""
    count = len(ends) - 1
    again = f", {count} restart{'s' if count > 1 else ''}" if count else ""
    return f"{_how(ends[-1])}{again}", _KINDS.get(ends[-1].role, "stopped")


def _row(at: int, rank: int, bars: Iterable[_Bar], told: str, kind: str) -> str:
    y = at * _ROW_HEIGHT
    drawn = "".join(
        f'<rect x="{_BAR_X + _BAR_WIDTH * bar.begin:.1f}" y="{y + 4}" height="{_ROW_HEIGHT - 8}" rx="2"'
        f' width="{max(_BAR_WIDTH * (bar.end - bar.begin), 2):.1f}" fill="{_COLORS[bar.kind]}">'
        f"<title>{text(f'rank {rank}: {bar.told}')}</title></rect>"
        for bar in bars
    )
    short = told if len(told) <= _MOST_CHARS else f"{told[: _MOST_CHARS - 4]} ..."
    weight = ' font-weight="bold"' if kind == "failed" else ""
    x = _BAR_X + _BAR_WIDTH + 12
    return (
        f'<text x="0" y="{y + 15}" fill="currentColor">rank {rank}</text>{drawn}'
        f'<text x="{x}" y="{y + 15}" fill="currentColor"{weight}>{text(short)}</text>'
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
