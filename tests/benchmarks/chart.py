"""The figures as one picture: how many times the floor each contender takes, on a logarithmic scale."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from tests.benchmarks.targets import MORE_IS_BETTER

if TYPE_CHECKING:
    from tests.benchmarks.report import Cases
    from tests.benchmarks.runner import Taken
    from tests.benchmarks.scenarios import Case

_LABELS, _WIDTH, _RIGHT = 236, 630, 34
"""Pixels for the names of the rows, the plot, and what is right of it."""
_ROW, _HEADING, _TOP, _BOTTOM = 21, 27, 62, 46
_OURS, _FACADE, _DEFAULT, _TUNED, _OTHER, _TARGET = "#1a5fd0", "#7fb0ff", "#c9302c", "#ef9a1a", "#9aa3ad", "#1a7f37"
_SHOWN = {
    "supervise": ("supervise", _OURS),
    "supervise-facade": ("its façade", _FACADE),
    "pytorch": ("PyTorch, default", _DEFAULT),
    "pytorch-tuned": ("PyTorch, tuned", _TUNED),
}
_FONT = 'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"'


@dataclass(frozen=True, slots=True)
class _Row:
    label: str
    ratios: dict[str, float]
    target: float | None


def draw(figures: dict[str, Cases]) -> str:
    """Return an SVG: a row for each case of which the floor has a figure, a dot for each contender."""
    groups = {name: rows for name, cases in figures.items() if (rows := [row for row in map(_row, cases) if row])}
    ratios = [ratio for rows in groups.values() for row in rows for ratio in (*row.ratios.values(), row.target or 1)]
    low, high = math.floor(math.log10(min(ratios, default=1)) * 2) / 2, math.ceil(math.log10(max(ratios, default=10)))
    count = sum(map(len, groups.values()))
    height = _TOP + len(groups) * _HEADING + count * _ROW + _BOTTOM
    scale = _Scale(low, max(high, low + 1))
    parts = [*_legend(), *_grid(scale, height)]
    y = _TOP
    for name, rows in groups.items():
        parts.append(f'<text x="12" y="{y + 19}" class="h">{escape(name)}</text>')
        y += _HEADING
        for row in rows:
            parts += _dots(row, scale, y + _ROW // 2)
            y += _ROW
    width = _LABELS + _WIDTH + _RIGHT
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'{_FONT} role="img" aria-label="How many times the floor each contender takes">'
    )
    style = (
        "<style>text{font-size:12px;fill:#24292f}.h{font-weight:600}.a{fill:#57606a}.r{text-anchor:end}"
        ".m{text-anchor:middle}</style>"
    )
    return "\n".join([head, style, f'<rect width="{width}" height="{height}" fill="#fff"/>', *parts, "</svg>", ""])


def _row(entry: tuple[Case, dict[str, Taken]]) -> _Row | None:
    """Return the ratios of a case's first metric, so that less is always better."""
    case, taken = entry
    metric = case.metrics[0]
    middles = {name: median(values) for name, what in taken.items() if (values := what.values(metric))}
    floor = middles.get("floor", 0.0)
    if floor <= 0:
        return None
    shown = {name: value for name, value in middles.items() if value > 0 and not name.startswith("floor")}
    limits = {target: target.bound * (middles.get(target.to, 0.0) if target.to else 1.0) for target in case.targets}
    limit = next((limits[own] for own in limits if own.metric == metric and not own.case and limits[own] > 0), None)

    def worse(value: float) -> float:
        return floor / value if metric in MORE_IS_BETTER else value / floor

    ratios = {name: worse(value) for name, value in shown.items()}
    return _Row(f"{case.label}, {_what(metric)}", ratios, None if limit is None else worse(limit)) if ratios else None


def _what(metric: str) -> str:
    """Return a metric's unit, and before it what it is where the scenario does not say it."""
    words = metric.split("_")
    return {"mb_per_s": "MB/s", "shown_p50_ms": "p50"}.get(metric, "KB" if "kb" in words else "ms")


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float

    def x(self, ratio: float) -> float:
        """Return where a ratio lies."""
        return round(_LABELS + _WIDTH * (math.log10(ratio) - self.low) / (self.high - self.low), 1)


def _legend() -> list[str]:
    parts, x = [], 12
    entries = [*_SHOWN.values(), ("others", _OTHER)]
    for text, color in entries:
        parts += [
            f'<circle cx="{x + 6}" cy="20" r="5" fill="{color}"/>',
            f'<text x="{x + 17}" y="24">{escape(text)}</text>',
        ]
        x += 38 + 7 * len(text)
    parts += [
        f'<path d="M{x + 6} 13V27" stroke="{_TARGET}" stroke-width="2.5"/>',
        f'<text x="{x + 15}" y="24">our target</text>',
    ]
    return parts


def _grid(scale: _Scale, height: int) -> list[str]:
    bottom = height - _BOTTOM + 6
    parts = []
    powers = range(math.ceil(scale.low), math.floor(scale.high) + 1)
    for power in powers:
        x = scale.x(10**power)
        color, width = ("#57606a", 1.5) if power == 0 else ("#d8dee4", 1)
        parts.append(f'<path d="M{x} {_TOP - 8}V{bottom}" stroke="{color}" stroke-width="{width}"/>')
        label = "floor" if power == 0 else f"{10**power:,} x".replace(",", " ") if power > 0 else f"{10**power:g} x"
        parts += [f'<text x="{x}" y="{at}" class="a m">{label}</text>' for at in (_TOP - 14, bottom + 16)]
    for power, _ in pairwise(powers):
        parts += [
            f'<path d="M{scale.x(step * 10**power)} {_TOP - 2}V{bottom}" stroke="#f0f2f4"/>' for step in (2, 3, 5)
        ]
    middle = _LABELS + _WIDTH / 2
    caption = "times the floor, logarithmic: less is better"
    parts.append(f'<text x="{middle}" y="{height - 8}" class="a m">{caption}</text>')
    return parts


def _dots(row: _Row, scale: _Scale, y: int) -> list[str]:
    """Return a row; what matters most is drawn last."""
    ends = scale.x(min(row.ratios.values())), scale.x(max(row.ratios.values()))
    parts = [
        f'<text x="{_LABELS - 14}" y="{y + 4}" class="r">{escape(row.label)}</text>',
        f'<path d="M{ends[0]} {y}H{ends[1]}" stroke="#c8ced4"/>',
    ]
    if row.target is not None:
        parts.append(f'<path d="M{scale.x(row.target)} {y - 7}V{y + 7}" stroke="{_TARGET}" stroke-width="2.5"/>')
    order = [name for name in row.ratios if name not in _SHOWN] + [*reversed(_SHOWN)]
    for name in order:
        if name in row.ratios:
            text, color = _SHOWN.get(name, (name, _OTHER))
            parts.append(
                f'<circle cx="{scale.x(row.ratios[name])}" cy="{y}" r="{5 if name in _SHOWN else 4}" fill="{color}" '
                f'stroke="#fff" stroke-width="0.8"><title>{escape(text)}: {row.ratios[name]:.3g} x</title></circle>'
            )
    return parts
