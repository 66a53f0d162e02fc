"""The columns of the table: their texts, their widths, and the choice of columns for the width of a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from supervise._views.wording import size

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise._views.top.reading import RankReading, Reading

_LEAST_LAST_LINE = 16
_DROPPED = ("PROCS", "OUTPUT/s", "RESTARTS", "MEMORY", "CPU", "BEAT", "ROLE", "STEP")
"""The columns that a narrow terminal lacks, in the order in which they are dropped."""


class Column(NamedTuple):
    """A column of fixed width."""

    head: str
    width: int
    left: bool
    """Whether its text is aligned to the left."""
    text: Callable[[RankReading], str | None]
    """None if the rank has no such value."""


def _percent(cpu: float | None) -> str | None:
    return None if cpu is None else f"{cpu * 100:.0f}%"


def _age(age_s: float | None) -> str | None:
    if age_s is None:
        return None
    if age_s < 2:
        return "<2 s"
    if age_s < 600:
        return f"{age_s:.0f} s"
    return f"{age_s / 60:.0f} min" if age_s < 36_000 else f"{age_s / 3600:.0f} h"


def _rate(bytes_per_s: float | None) -> str | None:
    if bytes_per_s is None:
        return None
    return size(bytes_per_s) if bytes_per_s else "0"


def _state(row: RankReading) -> str:
    """Return the state of a rank. If the rank has failed, return its exit code or signal, such as ``exit 3``."""
    if row.end is None:
        return row.state
    return row.end.replace("exit code ", "exit ").partition(",")[0].partition(" (")[0]


def _columns(reading: Reading) -> list[Column]:
    rank_width = max(4, len(str(max(reading.ranks, default=0))))
    role_width = min(16, max((len(row.role) for row in reading.ranks.values()), default=0))
    return [
        Column("RANK", rank_width, False, lambda row: str(row.rank)),
        Column("ROLE", max(4, role_width), True, lambda row: row.role or None),
        Column("STATE", 10, True, _state),
        Column("CPU", 5, False, lambda row: _percent(row.cpu)),
        Column("MEMORY", 8, False, lambda row: None if row.rss_bytes is None else size(row.rss_bytes)),
        Column("PROCS", 5, False, lambda row: None if row.processes is None else str(row.processes)),
        Column("STEP", 7, False, lambda row: None if row.step is None else str(row.step)),
        Column("BEAT", 6, False, lambda row: _age(row.beat_age_s)),
        Column("OUTPUT/s", 8, False, lambda row: _rate(row.output_bytes_per_s)),
        Column("RESTARTS", 8, False, lambda row: str(row.restarts) if row.restarts else None),
    ]


def columns_for(reading: Reading, columns: int, seen: set[str]) -> list[Column]:
    """Return the columns for which at least one rank has a value, as many as the terminal has room for.

    Args:
        reading: The reading.
        columns: Width of the terminal.
        seen: The heads of columns that were shown before. These columns stay; the heads of this reading are added.
    """
    found = []
    for column in _columns(reading):
        if column.head in seen or any(column.text(row) is not None for row in reading.ranks.values()):
            seen.add(column.head)
            found.append(column)
    for head in _DROPPED:
        if sum(column.width + 2 for column in found) + _LEAST_LAST_LINE <= columns:
            break
        found = [column for column in found if column.head != head]
    return found
