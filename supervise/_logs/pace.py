"""How often files that change are looked at."""

from __future__ import annotations

PAUSE_NS = 2_000_000
"""What there is between two looks on average: under a flood, each costs a wake-up."""
BURST = 8
"""So many looks may follow each other at once after a rest."""


class Pace:
    """Lets looks through as they come until there are many: a line that comes alone is not held up."""

    def __init__(self) -> None:
        """Let the first looks through."""
        self.due_ns = 0
        """When the next look may be, monotonic."""

    def look(self, now_ns: int) -> None:
        """Note that there is a look now."""
        allowance_ns = (BURST - 1) * PAUSE_NS
        self.due_ns = max(self.due_ns, now_ns - allowance_ns) + PAUSE_NS
