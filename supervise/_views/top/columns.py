"""The columns of the table: their texts, their widths, and the choice of columns for the width of a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervise._record import NamedTuple
from supervise._story.wording import size

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise._views.top.reader import RankReading, Reading


# The states in the order of severity, ranks whose heartbeat is late, and the orders of the table


STATES = {
    "failed": "x",
    "hung": "h",
    "suspended": "z",
    "backoff": "b",
    "late": "l",
    "stopping": "t",
    "starting": "s",
    "waiting": "w",
    "terminated": "-",
    "ready": ".",
    "finished": "+",
}
"""State to its sign on the map, the worst first. ``late`` is `late_ranks`."""

_LATE_S = 10.0
_LATE_PARTS = 4

ORDERS: dict[str, Callable[[RankReading], float]] = {
    "worst first": lambda _: 0.0,
    "by rank": lambda _: 0.0,
    "by processor": lambda row: -round(100 * (row.cpu or 0.0)),
    "by memory": lambda row: -_as_shown(row.rss_bytes),
    "by step, lowest first": lambda row: float("inf") if row.step is None else row.step,
    "by heartbeat, oldest first": lambda row: -round(max(2.0, row.beat_age_s or 0.0)),
    "by output": lambda row: -_as_shown(row.output_bytes_per_s),
}
"""Name of an order to its key. Ranks with equal keys are in the order of ranks; a key is rounded as in the
column, so that ranks with equal texts do not change places."""
MARKS = {
    "worst first": ("STATE", "v"),
    "by rank": ("RANK", "^"),
    "by processor": ("CPU", "v"),
    "by memory": ("MEMORY", "v"),
    "by step, lowest first": ("STEP", "^"),
    "by heartbeat, oldest first": ("BEAT", "v"),
    "by output": ("OUTPUT/s", "v"),
}
"""Name of an order to the head of its column, and the mark of its direction."""
BAD = ("failed", "hung", "suspended", "backoff")
"""The states of ranks that need a person."""


def _as_shown(size_bytes: float | None) -> float:
    """Return a size, rounded as in its text."""
    value, unit = float(size_bytes or 0), 1
    while value >= 1024:
        value, unit = value / 1024, unit * 1024
    return round(value) * unit


def late_ranks(reading: Reading) -> frozenset[int]:
    """Return the late ranks: ready ranks whose heartbeat is older than 10 s and than 4 times the median age."""
    ages = {rank: row.beat_age_s for rank, row in reading.ranks.items() if row.beat_age_s is not None}
    if not ages:
        return frozenset()
    median_s = sorted(ages.values())[len(ages) // 2]  # the module statistics takes 4 ms to import
    limit_s = max(_LATE_S, _LATE_PARTS * median_s)
    return frozenset(rank for rank, age_s in ages.items() if age_s > limit_s and reading.ranks[rank].state == "ready")


def shown_states(reading: Reading) -> dict[int, str]:
    """Return each rank's state as the table shows it, with ``late``."""
    late = late_ranks(reading)
    return {rank: "late" if rank in late else row.state for rank, row in reading.ranks.items()}


def ordered(reading: Reading, states: dict[int, str], order: str) -> list[int]:
    """Return the ranks in an order of `ORDERS`."""
    key = ORDERS[order]
    if order == "worst first":
        return sorted(reading.ranks, key=lambda rank: (severity(states[rank]), -reading.ranks[rank].restarts, rank))
    return sorted(reading.ranks, key=lambda rank: (key(reading.ranks[rank]), rank))


def severity(state: str) -> int:
    """Return the place of a state in `STATES`. An unknown state has the first place."""
    return _SEVERITIES.get(state, 0)


_SEVERITIES = {state: number for number, state in enumerate(STATES)}


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
        Column("CPU", 5, False, lambda row: None if row.cpu is None else f"{row.cpu * 100:.0f}%"),
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
