"""The place of this process in a gang: which rank of which test it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from supervise.pytest_plugin._gather import RankGather


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The facts that a rank knows about its gang."""

    rank: int
    world_size: int
    shared: Path
    gather: RankGather


here: Place | None = None
"""The place of this process; None in the host, which is pytest itself."""
