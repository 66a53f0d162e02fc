"""The fact that a rank hangs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from supervise.messages import WorkerHung


class Hung(NamedTuple):
    """A rank hangs."""

    message: WorkerHung
    waiting: tuple[int, ...]
    """Ranks that are silent because they wait for the rank that hangs."""
