"""The resource usage of ranks over time: the samples of a run, and the rates between samples."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_MOST_SAMPLES = 2_000
_MOST_VALUES = 400_000
_MOST_TOTALS = 10_000


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
    """The resource usage of a rank between two samples of one life."""

    from_s: float
    to_s: float
    cpu: float
    """Processors that were busy, such as 1.5."""
    rss_bytes: int
    """Resident memory at the end of the interval."""
    output_bytes_per_s: float
    step: int | None


class Total(NamedTuple):
    """The resource usage of all ranks together between two samples."""

    from_s: float
    to_s: float
    cpu: float
    rss_bytes: int
    output_bytes_per_s: float
    steps: tuple[int, int] | None
    """The lowest and the highest step of a rank; None if no rank reports any."""


class Totals:
    """Sums over all ranks at each sample. The samples that `read_series` drops count here, too."""

    def __init__(self, starts: Mapping[tuple[int, int], float]) -> None:
        """Begin without samples.

        Args:
            starts: Rank and process ID of a life to the time of its start, when its usage is zero.
        """
        self.found: list[Total] = []
        """The totals, in the order of the file."""
        self._starts = starts
        self._before: dict[int, Point] = {}

    def add(self, points: Mapping[int, Point]) -> None:
        """Add a sample: rank to its point."""
        pairs = []
        for rank, point in points.items():
            before = self._before.get(rank)
            if before is None or before.pid != point.pid:
                begin_s = self._starts.get((rank, point.pid), point.at_s)
                before = Point(begin_s, point.pid, 0.0, 0, 0, None)
            pairs.append((before, point))
        self._before = dict(points)
        if used := [rate for pair in pairs for rate in rates(pair)]:
            steps = [rate.step for rate in used if rate.step is not None]
            self.found.append(
                Total(
                    from_s=min(rate.from_s for rate in used),
                    to_s=used[0].to_s,
                    cpu=sum(rate.cpu for rate in used),
                    rss_bytes=sum(rate.rss_bytes for rate in used),
                    output_bytes_per_s=sum(rate.output_bytes_per_s for rate in used),
                    steps=(min(steps), max(steps)) if steps else None,
                )
            )
        if len(self.found) > _MOST_TOTALS:
            self.found = [highest(self.found[index : index + 2]) for index in range(0, len(self.found), 2)]


def highest(totals: Sequence[Total]) -> Total:
    """Return one total in place of adjacent ones, with the highest value of each quantity."""
    steps = [total.steps for total in totals if total.steps is not None]
    return Total(
        from_s=totals[0].from_s,
        to_s=totals[-1].to_s,
        cpu=max(total.cpu for total in totals),
        rss_bytes=max(total.rss_bytes for total in totals),
        output_bytes_per_s=max(total.output_bytes_per_s for total in totals),
        steps=(min(low for low, _ in steps), max(high for _, high in steps)) if steps else None,
    )


def read_series(samples: Iterable[dict[str, Any]], totals: Totals) -> dict[int, list[Point]]:
    """Return local rank to its points in the order of time; add all samples to `totals`.

    Drop every second sample of a long run, repeatedly if necessary. Leave out values that are not valid.
    """
    kept: list[tuple[float, dict[int, Point]]] = []
    stride, number, values = 1, 0, 0
    for sample in samples:
        at_s = sample.get("time")
        if not isinstance(at_s, (int, float)) or not _is_number(at_s):
            continue
        points = {
            int(word): point
            for word, row in sample["ranks"].items()
            if word.isascii() and word.isdigit() and len(word) < 10 and (point := _point(float(at_s), row)) is not None
        }
        totals.add(points)
        if number % stride == 0:
            kept.append((float(at_s), points))
            values += len(points)
        number += 1
        if len(kept) > _MOST_SAMPLES or (values > _MOST_VALUES and len(kept) > 1):
            kept = kept[::2]
            stride *= 2
            values = sum(len(points) for _, points in kept)
    found: dict[int, list[Point]] = {}
    for _, points in sorted(kept, key=lambda each: each[0]):
        for rank, point in points.items():
            found.setdefault(rank, []).append(point)
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
    """Return the rates between each two points of one life. If the processor time falls, its rate is 0."""
    found = []
    for before, after in pairwise(points):
        span_s = after.at_s - before.at_s
        if before.pid == after.pid and span_s > 0:
            cpu = max(0.0, after.cpu_s - before.cpu_s) / span_s
            output = max(0, after.output_bytes - before.output_bytes) / span_s
            found.append(Rate(before.at_s, after.at_s, cpu, after.rss_bytes, output, after.step))
    return found
