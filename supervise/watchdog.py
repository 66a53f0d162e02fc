"""The watchdog of a gang: when a rank counts as hung, and what happens then."""

from __future__ import annotations

from typing import Literal

from supervise._record import record
from supervise._settings import WATCHDOG, HangAction as HangAction

HangTier = Literal["heartbeat", "output", "answer"]
"""What was missing: heartbeats and steps of `supervise.notify`, output in the rank's logs, or answers to its probe."""


@record(kw_only=False)
class Watchdog:
    """When a rank counts as hung, and what happens then. A gang without an `alive` probe needs one of the timeouts.

    A rank has no deadline before it is ready, after it has reported that it is stopping, or while supervise stops it.
    With ``ready="exec"``, the deadline for heartbeats begins with the first heartbeat, and the one for output with the
    first output.

    Raises:
        SpecError: A value is not valid; the text names the field.
    """

    heartbeat_timeout_s: float | None = None
    """Seconds without a heartbeat or a higher step of `supervise.notify` after which a rank counts as hung."""
    output_timeout_s: float | None = None
    """Seconds without output after which a rank counts as hung, for ranks whose output is redirected or teed."""
    action: HangAction = "report"
    """``report`` informs subscribers and listeners of events. ``fail`` also makes the hang a failure of the rank, which
    supervise stops; the strategy and the restart policy decide what follows."""
    stacks: bool = True
    """Whether the report has the stacks of all ranks; with ``fail``, they are collected first, for at most 2 s."""

    def __post_init__(self) -> None:
        for row in WATCHDOG.values():
            row.checked(getattr(self, row.name))
