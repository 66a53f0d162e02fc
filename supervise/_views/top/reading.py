"""One reading of a run: the state and the resource usage of each rank, as plain data and as JSON."""

from __future__ import annotations

from typing import Any, NamedTuple

SCHEMA_VERSION = 1


class Incident(NamedTuple):
    """Something that went wrong, or a restart."""

    at_s: float
    """Seconds since the epoch."""
    kind: str
    """``failed``, ``hung``, ``restart``, ``stopping``, ``suspended`` or ``lost``."""
    rank: int | None
    """Local rank; None: the whole gang."""
    text: str
    """One printable line."""


class RankReading(NamedTuple):
    """The state and the resource usage of one rank. None: not known, or not read yet."""

    rank: int
    role: str
    """Role and role rank, such as ``trainer3``; empty in a run with one role."""
    state: str
    """A `RankState`; ``hung`` from the watchdog's report of a hang until the next heartbeat or output."""
    end: str | None
    """The end of its present life, such as ``exit code 3`` or ``SIGKILL``, if that life has failed; otherwise None."""
    pid: int | None
    attempt: int
    restarts: int
    cpu: float | None
    """Processors that its process tree has used on average since the last reading: 1.0 is one processor."""
    rss_bytes: int | None
    """Resident memory of its process tree."""
    processes: int | None
    """Number of processes in its tree."""
    step: int | None
    beat_age_s: float | None
    """Seconds since its last heartbeat or higher step."""
    status: str | None
    """Its last status text, on one printable line."""
    output_bytes: int | None
    """Size of the logs of its present life."""
    output_bytes_per_s: float | None
    """Mean growth of these logs over the last 10 s, or since the first reading of this life."""
    last_line: str | None
    """The last line of its newest log, printable."""


class Reading(NamedTuple):
    """The state and the resource usage of a gang at one moment."""

    at_s: float
    """Seconds since the epoch."""
    phase: str
    attempt: int
    pid: int
    """Process ID of the process that supervises the gang."""
    ranks: dict[int, RankReading]
    """Local rank to its reading, in the order of ranks."""

    @property
    def restarts(self) -> int:
        """Restarts of all ranks together; a restart of the whole gang counts once."""
        return self.attempt + sum(max(0, rank.restarts - self.attempt) for rank in self.ranks.values())


def as_object(reading: Reading, incidents: list[Incident]) -> dict[str, Any]:
    """Return a reading as the JSON object of a line.

    Args:
        reading: The reading.
        incidents: The incidents since the previous line.
    """
    return {
        "time": round(reading.at_s, 3),
        "phase": reading.phase,
        "attempt": reading.attempt,
        "pid": reading.pid,
        "restarts": reading.restarts,
        "ranks": {rank: _rank(row) for rank, row in reading.ranks.items()},
        "incidents": [
            {"time": round(each.at_s, 3), "kind": each.kind, "rank": each.rank, "text": each.text} for each in incidents
        ],
    }


def _rank(row: RankReading) -> dict[str, Any]:
    found = row._asdict()
    del found["rank"]
    for name in ("cpu", "beat_age_s", "output_bytes_per_s"):
        if found[name] is not None:
            found[name] = round(found[name], 3)
    return found
