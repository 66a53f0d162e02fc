"""Curves of what all ranks used together: processors, memory, output, and the spread of their steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervise._views.report.markup import axis, grid, text
from supervise._views.report.series import rates, resample
from supervise._views.wording import size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from supervise._views.report.history import History
    from supervise._views.report.series import Rate

_PARTS = 240
_Band = tuple[float, float] | None
"""The lowest and the highest value of an interval; None without a value."""


def curves(history: History) -> str:
    """Return a figure for each quantity; "" without samples."""
    series = [found for rank in history.ranks.values() if (found := rates(rank.points))]
    if not series:
        return ""
    span_s = history.end_s - history.begin_s
    columns = list(zip(*resample(series, history.begin_s, history.end_s, _PARTS), strict=True))
    cpu = _sums(columns, lambda rate: rate.cpu)
    memory = _sums(columns, lambda rate: rate.rss_bytes)
    output = _sums(columns, lambda rate: rate.output_bytes_per_s)
    figures = [
        _figure("Processors in use, all ranks", cpu, _facts(cpu, lambda value: f"{value:.2f}"), span_s),
        _figure("Memory, all ranks", memory, _facts(memory, size), span_s),
        _figure("Output, all ranks", output, _facts(output, lambda value: f"{size(value)}/s"), span_s),
    ]
    steps = [
        _spread([rate.step for rate in column if rate is not None and rate.step is not None]) for column in columns
    ]
    if any(steps):
        figures.append(_figure("Steps, from the slowest to the fastest rank", steps, _step_facts(steps), span_s))
    return "".join(figures)


def _sums(columns: Sequence[Sequence[Rate | None]], value: Callable[[Rate], float]) -> list[_Band]:
    """Return bands from 0 to the sum over all ranks."""
    found: list[_Band] = []
    for column in columns:
        values = [value(rate) for rate in column if rate is not None]
        found.append((0.0, sum(values)) if values else None)
    return found


def _spread(steps: list[int]) -> _Band:
    return (min(steps), max(steps)) if steps else None


def _facts(bands: Sequence[_Band], shown: Callable[[float], str]) -> str:
    highs = [band[1] for band in bands if band is not None]
    return f"mean {shown(sum(highs) / len(highs))}, highest {shown(max(highs))}, last {shown(highs[-1])}"


def _step_facts(steps: Sequence[_Band]) -> str:
    """Return how far apart the ranks are: at the end, and at most."""
    known = [band for band in steps if band is not None]
    low, high = known[-1]
    last = f"all at {high:.0f}" if low == high else f"{low:.0f} to {high:.0f}"
    widest = max(high - low for low, high in known)
    return f"last {last}" + (f", at most {widest:.0f} apart" if widest else "")


def _figure(title: str, bands: Sequence[_Band], facts: str, span_s: float) -> str:
    most = max(band[1] for band in bands if band is not None)
    told = f"{title}: {facts}"
    return (
        f'<figure><figcaption><b>{text(title)}</b> <span class="facts">{text(facts)}</span>'
        f'</figcaption><svg class="curve" role="img" aria-label="{text(told)}" viewBox="0 0 1000 100" '
        f'preserveAspectRatio="none"><title>{text(told)}</title>{grid(span_s)}{_areas(bands, most or 1.0)}</svg>'
        f"{axis(span_s)}</figure>"
    )


def _areas(bands: Sequence[_Band], most: float) -> str:
    """Return a shape for each stretch of values without a gap."""
    width = 1000 / len(bands)
    parts: list[str] = []
    start = 0
    while start < len(bands):
        end = start
        while end < len(bands) and bands[end] is not None:
            end += 1
        if end > start:
            stretch = [(index * width, band) for index, band in enumerate(bands[start:end], start) if band is not None]
            upper = [f"{x:.1f},{96 - 92 * band[1] / most:.1f}" for x, band in stretch]
            lower = [f"{x:.1f},{96 - 92 * band[0] / most:.1f}" for x, band in reversed(stretch)]
            right = stretch[-1][0] + width
            upper.append(f"{right:.1f},{upper[-1].partition(',')[2]}")
            lower.insert(0, f"{right:.1f},{lower[0].partition(',')[2]}")
            parts.append(f'<polygon class="area" points="{" ".join([*upper, *lower])}"/>')
            parts.append(f'<polyline class="line" points="{" ".join(upper)}"/>')
        start = end + 1
    return "".join(parts)
