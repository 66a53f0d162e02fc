"""The states in the order of severity, ranks whose heartbeat is late, and the orders of the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise._views.top.reading import RankReading, Reading

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


def worst(states: list[str]) -> str:
    """Return the worst of some states."""
    return min(states, key=severity)


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
