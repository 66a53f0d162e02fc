"""Curves of all ranks together: used processors, used memory, output, and the spread of the steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervise._views.report.markup import axis, grid, hatched, text
from supervise._views.report.series import highest
from supervise._views.wording import size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from supervise._views.report.history import History
    from supervise._views.report.series import Total

_PARTS = 240
_TOP, _HEIGHT = 4, 92
_LEAST_BYTES = 64 << 20
_LEAST_RATE = 1024
_LEAST_STEPS = 10
_LAST_LABEL = 0.6
_Band = tuple[float, float] | None
"""The lowest and the highest value of an interval; None without a value."""


def curves(history: History) -> str:
    """Return a figure for each quantity; "" without samples."""
    if not history.totals:
        return ""
    drawn = Curves(history)
    return "".join(
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


class Curves:
    """Figures on the time axis of a run."""

    def __init__(self, history: History) -> None:
        """Put the samples into the columns of the figures. A column has the highest values of its samples."""
        self._history = history
        self._span_s = history.end_s - history.begin_s
        self._totals = sorted(history.totals, key=lambda total: total.to_s)
        columns: list[list[Total]] = [[] for _ in range(_PARTS)]
        for total in self._totals:
            for index in range(self._column(total.from_s), self._column(total.to_s) + 1):
                columns[index].append(total)
        self._columns = [highest(column) if column else None for column in columns]

    def _column(self, at_s: float) -> int:
        return max(0, min(_PARTS - 1, int((at_s - self._history.begin_s) / self._span_s * _PARTS)))

    def sum(
        self, title: str, value: Callable[[Total], float], shown: Callable[[float], str], least: float, base: int
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
        return self._figure(title, bands, facts, (0.0, top), ("0", shown(top)))

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
        return self._figure(
            "Steps, from the slowest to the fastest rank", bands, facts, (0.0, top), ("0", f"{top:.0f}")
        )

    def _figure(
        self, title: str, bands: Sequence[_Band], facts: str, scale: tuple[float, float], labels: tuple[str, str]
    ) -> str:
        told = f"{title}: {facts}"
        return (
            f'<figure><figcaption><b>{text(title)}</b> <span class="facts">{text(facts)}</span></figcaption>'
            f'<div class="scaled"><div class="scale" aria-hidden="true"><span>{text(labels[1])}</span>'
            f"<span>{text(labels[0])}</span></div>"
            f'<svg class="curve" role="img" aria-label="{text(told)}" viewBox="0 0 1000 100" '
            f'preserveAspectRatio="none"><title>{text(told)}</title>{grid(self._span_s)}'
            f"{_areas(bands, scale[1])}{hatched(self._history.unsampled)}</svg>"
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
            bottom = _TOP + _HEIGHT
            upper = [f"{x:.1f},{bottom - _HEIGHT * band[1] / most:.1f}" for x, band in stretch]
            lower = [f"{x:.1f},{bottom - _HEIGHT * band[0] / most:.1f}" for x, band in reversed(stretch)]
            right = stretch[-1][0] + width
            upper.append(f"{right:.1f},{upper[-1].partition(',')[2]}")
            lower.insert(0, f"{right:.1f},{lower[0].partition(',')[2]}")
            parts.append(f'<polygon class="area" points="{" ".join([*upper, *lower])}"/>')
            parts.append(f'<polyline class="line" points="{" ".join(upper)}"/>')
        start = end + 1
    return "".join(parts)
