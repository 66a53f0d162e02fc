"""A rate limit on reads of changing files."""

from __future__ import annotations

PAUSE_NS = 2_000_000
"""The average interval between two reads: under a flood of changes, each read costs a wake-up."""
BURST = 8
"""The number of reads that may follow without a pause after an idle time."""


class Pace:
    """A token bucket: a single line is read at once, a flood of lines at a limited rate."""

    def __init__(self) -> None:
        """Start with a full burst."""
        self.due_ns = 0
        """The earliest time of the next read, monotonic."""

    def look(self, now_ns: int) -> None:
        """Record a read at `now_ns`."""
        allowance_ns = (BURST - 1) * PAUSE_NS
        self.due_ns = max(self.due_ns, now_ns - allowance_ns) + PAUSE_NS
