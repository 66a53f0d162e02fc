"""The page: one HTML document that needs no other file. Its policy forbids scripts and requests."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from supervise._files import last_lines, read_regular
from supervise._printable import one_line
from supervise._story.failure_report import WHY_LINES, end_of_output
from supervise._story.small_timeline import Row, axis, block, grid, hatched, table, text, unbroken
from supervise._story.wording import counted, seconds, shortened, size
from supervise._views.incidents import why_failed
from supervise._views.report.history import (
    History,
    RankHistory,
    Rate,
    combined,
    how,
    joined,
    marks_of,
    rates,
    stacks_of,
)
from supervise._views.top.reader import log_end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from supervise._views.recorded_run import RecordedRun
    from supervise._views.run_state import Ending, Life


# Curves of all ranks together: used processors, used memory, output, and the spread of the steps


_PARTS = 240
_TOP, _HEIGHT = 4, 92
_LEAST_BYTES = 64 << 20
_LEAST_RATE = 1024
_LEAST_STEPS = 10
_LAST_LABEL = 0.6
_Band = tuple[float, float] | None
"""The lowest and the highest value of an interval; None without a value."""


def _used(history: History) -> str:
    """Return a figure for each quantity; "" without samples."""
    if not history.totals:
        return ""
    drawn = Curves(history)
    figures = "".join(
        (
            drawn.sum(
                "Processors in use, all ranks", lambda total: total.cpu, lambda value: f"{round(value, 2):g}", 1, 10
            ),
            drawn.sum("Memory, all ranks", lambda total: total.rss_bytes, size, _LEAST_BYTES, 1024),
            drawn.sum(
                "Output, all ranks",
                lambda total: total.output_bytes_per_s,
                lambda value: f"{size(value)}/s",
                _LEAST_RATE,
                1024,
            ),
            drawn.steps(),
        )
    )
    note = '<p class="note">Hatched: the time after the last sample.</p>' if hatched(history.unsampled) else ""
    return f'<div class="curves">{figures}</div>{note}'


class Curves:
    """Figures on the time axis of a run."""

    def __init__(self, history: History) -> None:
        """Put the samples into the columns of the figures. A column has the highest values of its samples."""
        self._history = history
        self._span_s = history.end_s - history.begin_s
        self._totals = sorted(history.totals, key=lambda total: total.to_s)
        columns: list[list[Rate]] = [[] for _ in range(_PARTS)]
        for total in self._totals:
            for index in range(self._column(total.from_s), self._column(total.to_s) + 1):
                columns[index].append(total)
        self._columns = [combined(column, max) if column else None for column in columns]

    def _column(self, at_s: float) -> int:
        return max(0, min(_PARTS - 1, int((at_s - self._history.begin_s) / self._span_s * _PARTS)))

    def sum(
        self, title: str, value: Callable[[Rate], float], shown: Callable[[float], str], least: float, base: int
    ) -> str:
        """Return a figure of a sum over all ranks.

        Args:
            title: Title of the figure.
            value: Returns the sum at a sample.
            shown: Formats a value.
            least: The least value at the top of the scale, so that noise near zero stays near zero.
            base: 10 if the scale ends at 1, 2 or 5 times a power of 10; otherwise it ends at a power of 2.
        """
        bands: list[_Band] = [None if total is None else (0.0, value(total)) for total in self._columns]
        span_s = sum(total.to_s - total.from_s for total in self._totals)
        mean = sum(value(total) * (total.to_s - total.from_s) for total in self._totals) / span_s
        most = max(map(value, self._totals))
        facts = f"mean {shown(mean)}, highest {shown(most)}, last {shown(value(self._totals[-1]))}"
        top = _round(max(most, least), base)
        return self._figure(title, bands, facts, top, shown(top))

    def steps(self) -> str:
        """Return a figure of the steps of the slowest and the fastest rank; "" if no rank reports steps."""
        bands: list[_Band] = [None if total is None else total.steps for total in self._columns]
        known = [total.steps for total in self._totals if total.steps is not None]
        if not known:
            return ""
        low, high = known[-1]
        last = f"all at {high}" if low == high else f"{low} to {high}"
        widest = max(high - low for low, high in known)
        facts = f"last {last}" + (f", at most {widest} apart" if widest else "")
        top = _round(max(_LEAST_STEPS, *(high for _, high in known)), 10)
        return self._figure("Steps, from the slowest to the fastest rank", bands, facts, top, f"{top:.0f}")

    def _figure(self, title: str, bands: Sequence[_Band], facts: str, top: float, label: str) -> str:
        told = f"{title}: {facts}"
        return (
            f'<figure><figcaption><b>{text(title)}</b> <span class="facts">{text(facts)}</span></figcaption>'
            f'<div class="scaled"><div class="scale" aria-hidden="true"><span>{text(label)}</span>'
            "<span>0</span></div>"
            f'<svg class="curve" role="img" aria-label="{text(told)}" viewBox="0 0 1000 100" '
            f'preserveAspectRatio="none"><title>{text(told)}</title>{grid(self._span_s)}'
            f"{''.join(_areas(bands, top))}{hatched(self._history.unsampled)}</svg>"
            f"<span></span>{axis(self._span_s, last=_LAST_LABEL)}</div></figure>"
        )


def _round(value: float, base: int) -> float:
    """Return the next value that is easy to read."""
    top = 1.0
    while top < value:
        if base != 10:
            top *= 2
        else:
            top = next((top * factor for factor in (1, 2, 5) if top * factor >= value), top * 10)
    return top


def _areas(bands: Sequence[_Band], most: float) -> Iterator[str]:
    """Yield the shapes of each stretch of values without a gap."""
    width = 1000 / len(bands)
    bottom = _TOP + _HEIGHT
    for _, group in groupby(enumerate(bands), key=lambda each: each[1] is None):
        stretch = [(index * width, band) for index, band in group if band is not None]
        if stretch:
            upper = [f"{x:.1f},{bottom - _HEIGHT * band[1] / most:.1f}" for x, band in stretch]
            lower = [f"{x:.1f},{bottom - _HEIGHT * band[0] / most:.1f}" for x, band in reversed(stretch)]
            right = stretch[-1][0] + width
            upper.append(f"{right:.1f},{upper[-1].partition(',')[2]}")
            lower.insert(0, f"{right:.1f},{lower[0].partition(',')[2]}")
            yield f'<polygon class="area" points="{" ".join([*upper, *lower])}"/>'
            yield f'<polyline class="line" points="{" ".join(upper)}"/>'


# The timeline: a bar for each rank, with its lives, readiness, output, steps, signals, hangs and end
#
# The bars are stretched SVGs of 1000 by 100. Many ranks with the same history share one row, which a click opens.


MOST_SINGLE_ROWS = 40
"""With more ranks, those with the same history share a row."""
_MOST_GROUPS = 200
_MOST_LIVES = 100
_MOST_MARKS = 50
_MOST_HANGS = 50
_MOST_CELLS = 300
_CELLS_OF_ALL = 20_000
_LIVES_OF_ALL = 6_000
_AREA, _LINE = '<rect class="{}" width="20" height="10"/>', '<path class="{}" d="M10 0V10"/>'
_LEGEND = (
    ("starting", "starting", _AREA),
    ("running", "ready, or running", _AREA),
    ("output", "output, a stronger color with more", _AREA),
    ("steps", "step", '<polyline class="{}" points="0,9 20,1"/>'),
    ("hung", "hung", _AREA),
    ("mark signal", "signal from supervise", _LINE),
    ("mark suspended", "suspended", _LINE),
    ("mark hung", "hang reported", _LINE),
    ("succeeded", "succeeded", _AREA),
    ("stopped", "stopped by supervise", _AREA),
    ("failed", "failed", _AREA),
    ("unknown", "end unknown", _AREA),
    ("all", "restart of all ranks", _LINE),
    ("backoff", "wait for a restart", '<path class="{}" d="M1 5H19"/>'),
    ("unsampled", "not sampled yet", '<path class="{}" d="M1 10L6 0M7 10L12 0M13 10L18 0"/>'),
)
"""Class of a mark, its meaning, and its shape in the legend."""


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
        """Return the legend of the marks that the rows have, the axis and the rows."""
        ranks = self._history.ranks
        rows = "".join(self._rows() if len(ranks) > MOST_SINGLE_ROWS else map(self._row, ranks.values()))
        legend = "".join(
            f'<li><svg viewBox="0 0 20 10" aria-hidden="true">{shape.format(kind)}</svg> {text(label)}</li>'
            for kind, label, shape in _LEGEND
            if f'class="{kind}"' in rows
        )
        head = f'<span class="label">rank</span>{axis(self._span_s)}<span class="end">end</span>'
        return f'<ul class="legend">{legend}</ul><div class="rows"><div class="row head">{head}</div>{rows}</div>'

    def _rows(self) -> list[str]:
        """Return a row for each history that ranks share: the root cause first, then the failures, then the others."""
        groups: dict[tuple[object, ...], list[RankHistory]] = {}
        for rank in self._history.ranks.values():
            groups.setdefault(self._key(rank), []).append(rank)
        ordered = sorted(
            groups.values(), key=lambda group: (_weight(self._history, group[0], group[0].lives), group[0].rank)
        )
        rows = [self._row(group[0]) if len(group) == 1 else self._folded(group) for group in ordered[:_MOST_GROUPS]]
        if rest := [rank for group in ordered[_MOST_GROUPS:] for rank in group]:
            rows.append(self._folded(rest))
        return rows

    def _key(self, rank: RankHistory) -> tuple[object, ...]:
        lives = tuple((life.ending, how(life), frozenset(it.name for it in life.occurrences)) for life in rank.lives)
        return rank.title.rstrip("0123456789"), rank.known.count, lives, rank.rank == self._history.root_cause

    def _folded(self, group: list[RankHistory]) -> str:
        drawn = max(group, key=lambda rank: (_end_s(rank), -rank.rank))
        inner = "".join(self._row(rank, thin=True) for rank in group)
        who = self._history.run.spans(rank.rank for rank in group)
        whole = self._row(drawn, label=f"{len(group)} ranks", note=who)
        hint = f'<p class="note">{text(who)}; the row above shows rank {drawn.rank}.</p>'
        return f'<details class="fold"><summary>{whole}</summary>{hint}{inner}</details>'

    def _row(self, rank: RankHistory, *, label: str = "", note: str = "", thin: bool = False) -> str:
        cause = rank.rank == self._history.root_cause
        told = f"{note or self._history.run.spans([rank.rank])}: {self._told(rank)}"
        name = text(label or rank.rank)
        title = text(rank.title) if self._history.several_roles and not note else ""
        badge = '<strong class="cause">root cause:</strong> ' if cause else ""
        lines = "" if thin else self._grid
        gap = self._unsampled if not thin and _end_s(rank) == float("inf") else ""
        end = "end failed" if rank.life is not None and rank.life.ending == "failed" else "end"
        kinds = f"row{' is-cause' if cause else ''}{' thin' if thin else ''}"
        return (
            f'<div class="{kinds}"><span class="label"><b>{name}</b> <small>{title}</small></span>'
            f'<svg class="bar" role="img" aria-label="{text(told)}" viewBox="0 0 1000 100" preserveAspectRatio="none">'
            f"<title>{text(told)}</title>{lines}{self._lives(rank, thin=thin)}{gap}</svg>"
            f'<span class="{end}">{badge}{unbroken(self._ended(rank))}</span></div>'
        )

    def _lives(self, rank: RankHistory, *, thin: bool) -> str:
        lives = list(rank.lives)[-self._most_lives :]
        used = [] if thin else joined(rates(rank.points), self._most_cells)
        parts = [self._life(rank, life) for life in lives]
        parts += [self._backoff(before, after) for before, after in pairwise(lives)]
        if used:
            most = max(rate.output_bytes_per_s for rate in used) or 1.0
            parts += [self._output(rate, most) for rate in used if rate.output_bytes_per_s]
            parts.append(self._steps(used))
        if not thin:
            marks = [mark for life in lives for mark in marks_of(life)][-_MOST_MARKS:]
            for mark in marks:
                x = self._x(mark.at_s)
                title = f"{mark.text}, after {seconds(mark.at_s - self._history.begin_s)}"
                line = f'<path class="mark {text(mark.kind)}" d="M{x:.1f} 0V100">'
                parts.append(f"{line}<title>{text(title)}</title></path>")
        for life in lives:
            if life.ended_s is not None:
                x = max(0.0, self._x(life.ended_s) - 4)
                parts.append(f'<rect class="{life.ending}" x="{x:.1f}" width="4" y="4" height="92"/>')
        return "".join(parts)

    def _x(self, at_s: float) -> float:
        return min(1000.0, max(0.0, (at_s - self._history.begin_s) / self._span_s * 1000))

    def _rect(self, kind: str, from_s: float, to_s: float) -> str:
        x = self._x(from_s)
        width = max(self._x(to_s) - x, 0.5)
        return f'<rect class="{kind}" x="{x:.1f}" width="{width:.1f}" y="12" height="76"/>'

    def _life(self, rank: RankHistory, life: Life) -> str:
        to_s = self._history.end_s if life.ended_s is None else life.ended_s
        kind = "unknown" if life.ending == "unknown" else "running"
        parts = [self._rect(kind, life.started_s, to_s)]
        if life.ready_s is not None:
            parts.append(self._rect("starting", life.started_s, life.ready_s))
        for hang in life.all_of("hung")[:_MOST_HANGS]:
            went_on_s = rank.went_on_s(life, hang)
            silent_s = min(max(0.0, hang.fields["age_s"]), max(0.0, hang.at_s - life.started_s))
            parts.append(self._rect("hung", hang.at_s - silent_s, to_s if went_on_s is None else went_on_s))
        return "".join(parts)

    def _backoff(self, before: Life, after: Life) -> str:
        if before.ended_s is None or before.backoff is None:
            return ""
        x, to = self._x(max(before.ended_s, before.backoff.at_s)), self._x(after.started_s)
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
            if rate.steps is not None:
                lines[-1].append((rate.to_s, rate.steps[1]))
        return "".join(self._line(line) for line in lines if line)

    def _line(self, steps: list[tuple[float, int]]) -> str:
        low, high = self._step_range
        height = 66 / max(1, high - low)
        points = " ".join(f"{self._x(at_s):.1f},{84 - height * (step - low):.1f}" for at_s, step in steps)
        return f'<polyline class="steps" points="{points}"/>'

    def _ended(self, rank: RankHistory) -> str:
        life = rank.life
        if life is None:
            return "not started"
        restarts = f", {counted(rank.known.count - 1, 'restart')}" if rank.known.count > 1 else ""
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
        marks = f"; {'; '.join(mark.text for mark in marks_of(life)[:3])}" if life.occurrences else ""
        return f"{' '.join(parts)}, {self._ended(rank)}{cause}{marks}"


def shown_end(life: Life, *, hangs: bool) -> str:
    """Return the end of a life as text that needs no color.

    Args:
        life: The life.
        hangs: Whether the life hangs, or hung until its end.
    """
    end = how(life)
    told: dict[Ending, str] = {
        "succeeded": "succeeded" if end == "exit code 0" else f"succeeded, {end}",
        "stopped": f"{'hung until ' if hangs else ''}stopped, {end}",
        "failed": f"{'hung' if hangs else 'failed'}, {end}",
        "unknown": "end unknown",
        "running": "running, hung" if hangs else "running",
    }
    return told[life.ending]


def _weight(history: History, rank: RankHistory, lives: Sequence[Life]) -> int:
    """Return the place of a rank: 0 for the root cause, 1 if one of these lives has failed, 2 if one hung, or 3."""
    if rank.rank == history.root_cause:
        return 0
    if any(life.ending == "failed" for life in lives):
        return 1
    return 2 if any(life.hang is not None for life in lives) else 3


def _worst_first(history: History) -> list[RankHistory]:
    """Return the ranks in the order of the weights of their last lives."""
    return sorted(history.ranks.values(), key=lambda rank: (_weight(history, rank, rank.lives[-1:]), rank.rank))


def _end_s(rank: RankHistory) -> float:
    life = rank.life
    if life is None:
        return 0.0
    return float("inf") if life.ended_s is None else life.ended_s


_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_MOST_LOGS = 12
_MOST_INCIDENTS = 500
_STACKS_BYTES = 256 << 10
_LONGEST_LINE = 160
_MOST_LAST_LINES = 2_000
_MOST_ROWS = 5_000
_GOES_ON = ("running", "unknown", "killed")
"""The states of runs without a result."""


def page(run: RecordedRun, history: History, *, program: str, version: str) -> str:
    """Return the page.

    Args:
        run: The run.
        history: Its history.
        program: What it ran, as text.
        version: Version of supervise.
    """
    sections = [
        ("What happened", _story(run, history)),
        ("Timeline", Timeline(history).markup()),
        ("What the ranks used", _used(history)),
        ("Restarts, hangs and losses", _incidents(history)),
        ("Stacks", "".join(_stacks(run, history))),
        ("Last lines", "".join(_logs(run, history))),
        ("All ranks", _table(run, history)),
    ]
    body = "".join(
        f'<section aria-labelledby="s{index}"><h2 id="s{index}">{title}</h2>{content}</section>'
        for index, (title, content) in enumerate(sections)
        if content
    )
    title = f"{one_line(run.name)}: {run.shown_state}"
    with open(os.path.join(os.path.dirname(__file__), "page.css"), encoding="utf-8") as file:
        style = file.read()
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{text(title)}</title><style>{style}</style></head><body>"
        f"{_head(run, history, program)}<main>{body}</main>"
        f"<footer>Written by supervise {text(version)} at {now}, from the files in "
        f"<code>{text(run.path)}</code></footer>"
        "</body></html>\n"
    )


def _head(run: RecordedRun, history: History, program: str) -> str:
    state = run.state if run.state.isascii() and run.state.replace("_", "").isalpha() else "unknown"
    code = run.result.get("exit_code")
    known = run.duration if run.result else None
    duration_s = history.end_s - history.begin_s if known is None else known.total_seconds()
    duration = seconds(duration_s) + (" until now" if run.state == "running" else "")
    restarts = sum(max(0, rank.known.count - 1) for rank in history.ranks.values())
    facts = [
        ("ranks", f"{len(history.ranks)}{f' ({run.counts})' if run.counts else ''} on {run.place}"),
        ("started", "-" if run.started is None else shown_time(run.started)),
        ("duration", duration),
        ("exit code", "-" if code is None else str(code)),
        ("restarted processes", str(restarts)),
    ]
    cells = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in facts)
    failed = len(history.state.failed) if run.state in _GOES_ON else 0
    badge = f' <span class="state failed">{counted(failed, "rank")} failed</span>' if failed else ""
    badges = f'<span class="state {state}">{text(run.shown_state.replace("_", " "))}</span>{badge}'
    return (
        f"<header><h1>{text(run.name)} {badges}</h1>"
        '<dl class="facts"><div class="wide-fact"><dt>program</dt>'
        f"<dd><code>{text(program)}</code></dd></div>{cells}</dl></header>"
    )


def _story(run: RecordedRun, history: History) -> str:
    report = run.result.get("report")
    if isinstance(report, list) and report:
        return f"{_stop(history)}{_lines(map(str, report))}"
    told = {
        "killed": f"<p>supervise was killed before it could write a result.{text(_unknown_ends(run, history))}</p>",
        "unknown": "<p>supervise may still run on another host. This is what its files say until now.</p>",
    }
    return told.get(run.state, "") + _stop(history) + _failed(run, history)


def _unknown_ends(run: RecordedRun, history: History) -> str:
    """Return a sentence that names the ranks whose last life has no known end; "" if there is no such rank."""
    found = [rank for rank, each in history.ranks.items() if each.life is not None and each.life.ending == "unknown"]
    verb = "end of {} is" if len(found) == 1 else "ends of {} are"
    return f" The {verb.format(run.spans(found))} not known." if found else ""


def _stop(history: History) -> str:
    """Return when the run was stopped; "" if it was not stopped, or was stopped only because a rank had failed."""
    stop = history.state.stop
    whys = {"close": "Stopped on request", "timeout": "Stopped at its timeout"}
    why = None if stop is None else whys.get(stop.fields["reason"])
    return "" if stop is None or why is None else _moment(history, why, stop.at_s)


def _moment(history: History, what: str, at_s: float, more: str = "") -> str:
    at = shown_time(datetime.fromtimestamp(at_s, UTC))
    after = seconds(max(0.0, at_s - history.begin_s))
    return f"<p><b>{text(what)}</b> at {text(at)}, {text(after)} after the start{text(more)}.</p>"


def _failed(run: RecordedRun, history: History) -> str:
    """Return why a rank of a run without a result has failed; "" if no rank has."""
    failures = history.state.failed
    if not failures:
        return ""
    first, *others = failures
    lines = why_failed(run, first, failures[first])
    goes_on = "; the run goes on" if run.state == "running" else ""
    told = _moment(history, f"{_begun(run.spans([first]))} failed", failures[first].at_s, goes_on)
    return told + _lines([*lines, "", f"{run.spans(others)} failed later"] if others else lines)


def _begun(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _lines(lines: Iterable[str]) -> str:
    return f'<pre class="story" tabindex="0">{block(chr(10).join(lines))}</pre>'


def shown_time(at: datetime) -> str:
    """Return a time in the zone of this machine."""
    local = at.astimezone()
    return f"{local:%Y-%m-%d %H:%M:%S} {'UTC' if not local.utcoffset() else f'{local:%z}'}"


def _incidents(history: History) -> str:
    shown = history.incidents[:_MOST_INCIDENTS]
    rows = [Row((text(seconds(max(0.0, mark.at_s - history.begin_s))), text(mark.text))) for mark in shown]
    more = len(history.incidents) - len(shown) + history.more_incidents
    note = f'<p class="note">{more} later ones are left out.</p>' if more else ""
    return table("Time since the start", ("after", "what"), rows, numeric=frozenset({"after"})) + note if rows else ""


def _stacks(run: RecordedRun, history: History) -> Iterator[str]:
    for path, places in stacks_of(history):
        yield f'<pre tabindex="0">{block(chr(10).join(places))}</pre>'
        name = os.path.basename(path)
        try:
            content = read_regular(os.path.join(run.path, name), _STACKS_BYTES)[0].decode(errors="replace")
        except (OSError, ValueError) as error:
            why = text(getattr(error, "strerror", None) or error)
            yield f'<p class="note"><code>{text(name)}</code> cannot be shown: {why}</p>'
            continue
        yield f"<details><summary>All threads, from <code>{text(name)}</code></summary>"
        yield f'<pre tabindex="0">{block(content)}</pre></details>'


def _logs(run: RecordedRun, history: History) -> Iterator[str]:
    """Yield the last lines of the logs of some ranks: those that failed first, or the first ranks if none failed."""
    logs = run.logs()
    order = _worst_first(history)
    failed = [rank for rank in order if _weight(history, rank, rank.lives[-1:]) < 3]
    for rank in (failed or order)[:_MOST_LOGS]:
        for path in reversed(logs.get(rank.rank, [])):
            if lines := end_of_output(last_lines(path, WHY_LINES)):
                where = text(os.path.relpath(path, run.path))
                name = text(_begun(run.spans([rank.rank])))
                yield f'<h3>{name}, <code>{where}</code></h3><pre tabindex="0">{block(chr(10).join(lines))}</pre>'
    if len(failed) > _MOST_LOGS:
        yield f'<p class="note">{len(failed) - _MOST_LOGS} more ranks failed.</p>'


def _table(run: RecordedRun, history: History) -> str:
    """Return the table of all ranks. The failed ranks come first."""
    shown = _worst_first(history)[:_MOST_ROWS]
    told = any(_status(rank) for rank in shown)
    rows = [_rank_row(run, history, rank, told=told) for rank in shown]
    role, status = ("role",) if history.several_roles else (), ("status",) if told else ()
    heads = ("rank", *role, "pid", "lives", "end", "ran", "CPU", "peak memory", "step", *status, "last line")
    caption = "Times and processes of the last life of each rank; ranks that failed are first"
    left = len(history.ranks) - len(rows)
    note = f'<p class="note">{left} more ranks are left out.</p>' if left else ""
    numeric = frozenset({"rank", "pid", "lives", "ran", "CPU", "peak memory", "step"})
    return table(caption, heads, rows, numeric=numeric) + note


def _status(rank: RankHistory) -> str:
    """Return the status at the end of a rank; "" if it sent none, or has not ended."""
    return "" if rank.life is None else shortened(rank.life.facts.get("status") or "", _LONGEST_LINE)


def _rank_row(run: RecordedRun, history: History, rank: RankHistory, *, told: bool) -> Row:
    """Return the row of a rank, which has its status if `told`."""
    life = rank.life
    role = (text(rank.title),) if history.several_roles else ()
    status = (text(_status(rank)),) if told else ()
    if life is None:
        return Row((str(rank.rank), *role, "-", "-", "not started", "-", "-", "-", "-", *status, ""))
    to_s = history.end_s if life.ended_s is None else life.ended_s
    ran_s = life.facts.get("uptime_s", to_s - life.started_s)
    cause = ", root cause" if rank.rank == history.root_cause else ""
    peak = max([life.facts.get("max_rss_bytes", 0), *(point.rss_bytes for point in rank.points)])
    sampled = next((point.step for point in reversed(rank.points) if point.step is not None), None)
    step = life.facts.get("step", sampled)
    sampled_s = rank.points[-1].cpu_s if rank.points and rank.points[-1].pid == life.pid else None
    cpu_s = life.facts.get("cpu_time_s", sampled_s)
    end = log_end(run.path, rank.rank, life.attempt) if rank.rank < _MOST_LAST_LINES else None
    line = "" if end is None else shortened(last_lines(end.newest, 1), _LONGEST_LINE)
    cells = (
        str(rank.rank),
        *role,
        str(life.pid),
        str(rank.known.count),
        unbroken(shown_end(life, hangs=rank.hangs) + cause),
        text(seconds(max(0.0, ran_s))),
        "-" if cpu_s is None else text(seconds(cpu_s)),
        text(size(peak)) if peak else "-",
        "-" if step is None else str(step),
        *status,
        f"<code>{text(line)}</code>" if line else "",
    )
    return Row(cells, f"end-{life.ending}")
