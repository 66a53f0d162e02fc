"""The timeline: a bar for each rank, with its lives, readiness, output, steps, signals, hangs and end.

The bars are stretched SVGs of 1000 by 100. Many ranks with the same history share one row, which a click opens.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from supervise._views.report.markup import axis, grid, hatched, text, unbroken
from supervise._views.report.series import rates
from supervise._views.wording import seconds, spans

if TYPE_CHECKING:
    from supervise._views.report.history import History, Life, RankHistory
    from supervise._views.report.series import Rate

MOST_SINGLE_ROWS = 40
"""With more ranks, those with the same history share a row."""
_MOST_GROUPS = 200
_MOST_LIVES = 100
_MOST_MARKS = 50
_MOST_CELLS = 300
_CELLS_OF_ALL = 20_000
_LIVES_OF_ALL = 6_000
_LEGEND = (
    ("starting", "starting"),
    ("running", "ready, or running"),
    ("output", "output, a stronger color with more"),
    ("hung", "hung"),
    ("succeeded", "succeeded"),
    ("stopped", "stopped by supervise"),
    ("failed", "failed"),
    ("unknown", "end unknown"),
)


class Timeline:
    """The timeline of a run as markup."""

    def __init__(self, history: History) -> None:
        """Prepare the drawing."""
        self._history = history
        self._span_s = history.end_s - history.begin_s
        shown = max(1, min(len(history.ranks), MOST_SINGLE_ROWS))
        self._most_cells = min(_MOST_CELLS, _CELLS_OF_ALL // shown)
        self._most_lives = max(1, min(_MOST_LIVES, _LIVES_OF_ALL // max(1, len(history.ranks))))
        steps = [point.step for rank in history.ranks.values() for point in rank.points if point.step is not None]
        self._step_range = min(steps, default=0), max(steps, default=0)
        restarts = [self._x(mark.at_s) for mark in history.marks if mark.kind == "restart"][-_MOST_MARKS:]
        self._unsampled = hatched(history.unsampled)
        self._grid = grid(self._span_s) + "".join(f'<path class="all" d="M{x:.1f} 0V100"/>' for x in restarts)

    def markup(self) -> str:
        """Return the legend, the axis and the rows."""
        swatch = '<svg viewBox="0 0 20 10" aria-hidden="true"><rect class="{}" width="20" height="10"/></svg>'
        legend = "".join(f"<li>{swatch.format(kind)} {text(label)}</li>" for kind, label in _LEGEND)
        if any(self._step_range):
            line = '<polyline class="steps" points="0,9 20,1"/>'
            legend += f'<li><svg viewBox="0 0 20 10" aria-hidden="true">{line}</svg> step</li>'
        if self._unsampled and any(_end_s(rank) == float("inf") for rank in self._history.ranks.values()):
            hatch = '<path class="unsampled" d="M1 10L6 0M7 10L12 0M13 10L18 0"/>'
            legend += f'<li><svg viewBox="0 0 20 10" aria-hidden="true">{hatch}</svg> not sampled yet</li>'
        ranks = self._history.ranks
        rows = self._rows() if len(ranks) > MOST_SINGLE_ROWS else map(self._row, ranks.values())
        head = f'<span class="label">rank</span>{axis(self._span_s)}<span class="end">end</span>'
        return (
            f'<ul class="legend">{legend}</ul><div class="rows"><div class="row head">{head}</div>{"".join(rows)}</div>'
        )

    def _rows(self) -> list[str]:
        """Return a row for each history that ranks share: the root cause first, then the failures, then the others."""
        groups: dict[tuple[object, ...], list[RankHistory]] = {}
        for rank in self._history.ranks.values():
            groups.setdefault(self._key(rank), []).append(rank)
        ordered = sorted(groups.values(), key=lambda group: (_weight(self._history, group[0]), group[0].rank))
        rows = [self._row(group[0]) if len(group) == 1 else self._folded(group) for group in ordered[:_MOST_GROUPS]]
        if rest := [rank for group in ordered[_MOST_GROUPS:] for rank in group]:
            rows.append(self._folded(rest))
        return rows

    def _key(self, rank: RankHistory) -> tuple[object, ...]:
        lives = tuple((life.ending, life.how, tuple(sorted({mark.kind for mark in life.marks}))) for life in rank.lives)
        return rank.title.rstrip("0123456789"), rank.count, lives, rank.rank == self._history.root_cause

    def _folded(self, group: list[RankHistory]) -> str:
        drawn = max(group, key=lambda rank: (_end_s(rank), -rank.rank))
        inner = "".join(self._row(rank, thin=True) for rank in group)
        who = spans(rank.rank for rank in group)
        whole = self._row(drawn, label=f"{len(group)} ranks", note=who)
        hint = f'<p class="note">{text(who)}; the row above shows rank {drawn.rank}.</p>'
        return f'<details class="fold"><summary>{whole}</summary>{hint}{inner}</details>'

    def _row(self, rank: RankHistory, *, label: str = "", note: str = "", thin: bool = False) -> str:
        cause = rank.rank == self._history.root_cause
        told = f"{note or f'rank {rank.rank}'}: {self._told(rank)}"
        name = text(label or rank.rank)
        title = text(rank.title) if self._history.several_roles and not note else ""
        badge = '<strong class="cause">root cause:</strong> ' if cause else ""
        lines = "" if thin else self._grid
        gap = self._unsampled if not thin and _end_s(rank) == float("inf") else ""
        end = "end failed" if _has_failed(rank) else "end"
        kinds = f"row{' is-cause' if cause else ''}{' thin' if thin else ''}"
        return (
            f'<div class="{kinds}"><span class="label"><b>{name}</b> <small>{title}</small></span>'
            f'<svg class="bar" role="img" aria-label="{text(told)}" viewBox="0 0 1000 100" preserveAspectRatio="none">'
            f"<title>{text(told)}</title>{lines}{self._lives(rank, thin=thin)}{gap}</svg>"
            f'<span class="{end}">{badge}{unbroken(self._ended(rank))}</span></div>'
        )

    def _lives(self, rank: RankHistory, *, thin: bool) -> str:
        lives = list(rank.lives)[-self._most_lives :]
        used = [] if thin else _thinned(rates(rank.points), self._most_cells)
        parts = [self._life(rank, life) for life in lives]
        parts += [self._backoff(before, after) for before, after in pairwise(lives)]
        if used:
            most = max(rate.output_bytes_per_s for rate in used) or 1.0
            parts += [self._output(rate, most) for rate in used if rate.output_bytes_per_s]
            parts.append(self._steps(used))
        if not thin:
            marks = [mark for life in lives for mark in life.marks][-_MOST_MARKS:]
            for mark in marks:
                x = self._x(mark.at_s)
                title = f"{mark.text}, after {seconds(mark.at_s - self._history.begin_s)}"
                line = f'<path class="mark {text(mark.kind)}" d="M{x:.1f} 0V100">'
                parts.append(f"{line}<title>{text(title)}</title></path>")
        parts += [self._end(life) for life in lives if life.ended_s is not None]
        return "".join(parts)

    def _x(self, at_s: float) -> float:
        return min(1000.0, max(0.0, (at_s - self._history.begin_s) / self._span_s * 1000))

    def _rect(self, kind: str, from_s: float, to_s: float, more: str = "") -> str:
        x = self._x(from_s)
        width = max(self._x(to_s) - x, 0.5)
        return f'<rect class="{kind}" x="{x:.1f}" width="{width:.1f}" y="12" height="76"{more}/>'

    def _life(self, rank: RankHistory, life: Life) -> str:
        to_s = self._history.end_s if life.ended_s is None else life.ended_s
        kind = "unknown" if life.ending == "unknown" else "running"
        parts = [self._rect(kind, life.started_s, to_s)]
        if life.ready_s is not None:
            parts.append(self._rect("starting", life.started_s, life.ready_s))
        for hang in life.hangs:
            went_on_s = rank.went_on_s(life, hang)
            parts.append(self._rect("hung", hang.from_s, to_s if went_on_s is None else went_on_s))
        return "".join(parts)

    def _backoff(self, before: Life, after: Life) -> str:
        if before.ended_s is None:
            return ""
        x, to = self._x(before.ended_s), self._x(after.started_s)
        return f'<path class="backoff" d="M{x:.1f} 50H{to:.1f}"/>'

    def _output(self, rate: Rate, most: float) -> str:
        shade = 0.1 + 0.6 * rate.output_bytes_per_s / most
        x, to = self._x(rate.from_s), self._x(rate.to_s)
        return f'<rect class="output" x="{x:.1f}" width="{to - x:.1f}" y="58" height="30" opacity="{shade:.2f}"/>'

    def _steps(self, used: list[Rate]) -> str:
        """Return a line for the steps of each life."""
        lines: list[list[tuple[float, int]]] = []
        before_s = -1.0
        for rate in used:
            if rate.from_s != before_s:
                lines.append([])
            before_s = rate.to_s
            if rate.step is not None:
                lines[-1].append((rate.to_s, rate.step))
        return "".join(self._line(line) for line in lines if line)

    def _line(self, steps: list[tuple[float, int]]) -> str:
        low, high = self._step_range
        height = 66 / max(1, high - low)
        points = " ".join(f"{self._x(at_s):.1f},{84 - height * (step - low):.1f}" for at_s, step in steps)
        return f'<polyline class="steps" points="{points}"/>'

    def _end(self, life: Life) -> str:
        assert life.ended_s is not None  # noqa: S101 - checked by the caller
        x = self._x(life.ended_s)
        return f'<rect class="{life.ending}" x="{max(0.0, x - 4):.1f}" width="4" y="4" height="92"/>'

    def _ended(self, rank: RankHistory) -> str:
        life = rank.life
        if life is None:
            return "not started"
        restarts = f", {rank.count - 1} restart{'s' if rank.count > 2 else ''}" if rank.count > 1 else ""
        return f"{shown_end(life, hangs=rank.hangs)}{restarts}"

    def _told(self, rank: RankHistory) -> str:
        """Return a description of a rank's bar."""
        life = rank.life
        if life is None:
            return "not started"
        begin_s = self._history.begin_s
        parts = [f"last life from {seconds(max(0.0, life.started_s - begin_s))}"]
        if life.ended_s is not None:
            parts.append(f"to {seconds(max(0.0, life.ended_s - begin_s))}")
        cause = " (root cause)" if rank.rank == self._history.root_cause else ""
        marks = f"; {'; '.join(mark.text for mark in life.marks[:3])}" if life.marks else ""
        return f"{' '.join(parts)}, {self._ended(rank)}{cause}{marks}"


def shown_end(life: Life, *, hangs: bool) -> str:
    """Return the end of a life as text that needs no color.

    Args:
        life: The life.
        hangs: Whether the life hangs, or hung until it was stopped.
    """
    if life.ending == "succeeded":
        return "succeeded" if life.how == "exit code 0" else f"succeeded, {life.how}"
    if life.ending == "stopped":
        return f"{'hung until ' if hangs else ''}stopped, {life.how}"
    if life.ending == "failed":
        return f"{'hung' if life.hangs else 'failed'}, {life.how}"
    return "end unknown" if life.ending == "unknown" else "running, hung" if hangs else "running"


def _has_failed(rank: RankHistory) -> bool:
    return rank.life is not None and rank.life.ending == "failed"


def _weight(history: History, rank: RankHistory) -> int:
    if rank.rank == history.root_cause:
        return 0
    if any(life.ending == "failed" for life in rank.lives):
        return 1
    return 2 if any(mark.kind == "hung" for life in rank.lives for mark in life.marks) else 3


def _end_s(rank: RankHistory) -> float:
    life = rank.life
    if life is None:
        return 0.0
    return float("inf") if life.ended_s is None else life.ended_s


def _thinned(used: list[Rate], most: int) -> list[Rate]:
    """Return at most about `most` rates. If there are more, join adjacent rates."""
    size = -(-len(used) // most) if used else 1
    if size <= 1:
        return used
    parts = [used[index : index + size] for index in range(0, len(used), size)]
    return [
        part[-1]._replace(from_s=part[0].from_s, output_bytes_per_s=max(rate.output_bytes_per_s for rate in part))
        for part in parts
    ]
