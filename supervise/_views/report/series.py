"""What ranks used over time: the samples of a run, and rates between them."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MOST_SAMPLES = 2_000
_MOST_VALUES = 400_000


class Point(NamedTuple):
    """One sample of a rank's process tree."""

    at_s: float
    """Seconds since the epoch."""
    pid: int
    cpu_s: float
    rss_bytes: int
    output_bytes: int
    step: int | None


class Rate(NamedTuple):
    """What a rank used between two samples of one life."""

    from_s: float
    to_s: float
    cpu: float
    """Processors that were busy, such as 1.5."""
    rss_bytes: int
    """At the end of the interval."""
    output_bytes_per_s: float
    step: int | None


def read_series(samples: Iterable[dict[str, Any]]) -> dict[int, list[Point]]:
    """Return local rank to its points in the order of time.

    Of a long run every second sample is dropped, as often as necessary; values that are not valid are left out.
    """
    kept: list[tuple[float, dict[str, Any]]] = []
    stride, number, values = 1, 0, 0
    for sample in samples:
        at_s = sample.get("time")
        if not isinstance(at_s, (int, float)) or not _is_number(at_s):
            continue
        if number % stride == 0:
            kept.append((float(at_s), sample["ranks"]))
            values += len(sample["ranks"])
        number += 1
        if len(kept) > _MOST_SAMPLES or (values > _MOST_VALUES and len(kept) > 1):
            kept = kept[::2]
            stride *= 2
            values = sum(len(ranks) for _, ranks in kept)
    found: dict[int, list[Point]] = {}
    for at_s, ranks in sorted(kept, key=lambda each: each[0]):
        for word, row in ranks.items():
            point = _point(at_s, row)
            if point is not None and word.isascii() and word.isdigit() and len(word) < 10:
                found.setdefault(int(word), []).append(point)
    return found


def _point(at_s: float, row: Any) -> Point | None:
    if not isinstance(row, dict):
        return None
    numbers = [row.get(key) for key in ("pid", "cpu_s", "rss_bytes", "output_bytes")]
    if not all(map(_is_number, numbers)):
        return None
    pid, cpu_s, rss, output = numbers
    step = row.get("step")
    return Point(at_s, int(pid), float(cpu_s), int(rss), int(output), int(step) if _is_number(step) else None)  # type: ignore[arg-type]


def _is_number(value: object) -> bool:
    """Return whether a value is a number of reasonable size."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < 1e18 if isinstance(value, int) else math.isfinite(value) and abs(value) < 1e18


def rates(points: Sequence[Point]) -> list[Rate]:
    """Return what was used between each two points of one life; processor time that falls counts as none."""
    found = []
    for before, after in pairwise(points):
        span_s = after.at_s - before.at_s
        if before.pid == after.pid and span_s > 0:
            cpu = max(0.0, after.cpu_s - before.cpu_s) / span_s
            output = max(0, after.output_bytes - before.output_bytes) / span_s
            found.append(Rate(before.at_s, after.at_s, cpu, after.rss_bytes, output, after.step))
    return found


def resample(series: Iterable[Sequence[Rate]], begin_s: float, end_s: float, parts: int) -> list[list[Rate | None]]:
    """Return each series on a common grid of `parts` intervals; None where a rank has no value."""
    width_s = (end_s - begin_s) / parts
    found: list[list[Rate | None]] = []
    for each in series:
        cells: list[Rate | None] = [None] * parts
        for rate in each:
            first = max(0, int((rate.from_s - begin_s) / width_s))
            last = min(parts - 1, int((rate.to_s - begin_s) / width_s))
            for index in range(first, last + 1):
                cells[index] = rate
        found.append(cells)
    return found
