"""Parts of a `LogsDest`: the log paths of some ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervise.destinations import LogsDest

if TYPE_CHECKING:
    from collections.abc import Collection

_BY_RANK = ("stdouts", "stderrs", "tee_stdouts", "tee_stderrs", "error_files")


def of_ranks(dest: LogsDest, ranks: Collection[int]) -> LogsDest:
    """Return a `LogsDest` with the paths of only these ranks."""
    own = LogsDest()
    for name in _BY_RANK:
        getattr(own, name).update((rank, path) for rank, path in getattr(dest, name).items() if rank in ranks)
    return own


def replace(dest: LogsDest, rank: int, own: LogsDest) -> None:
    """Replace the paths of a rank by its paths in `own`."""
    for name in _BY_RANK:
        getattr(dest, name).pop(rank, None)
        getattr(dest, name).update(getattr(own, name))


def keep(dest: LogsDest, past: LogsDest, ranks: Collection[int]) -> None:
    """Give these ranks the paths of their past lives, whose logs are not shown any more."""
    for rank in ranks:
        old = of_ranks(past, (rank,))
        old.tee_stdouts, old.tee_stderrs = {}, {}
        replace(dest, rank, old)
    for name in _BY_RANK:
        setattr(dest, name, dict(sorted(getattr(dest, name).items())))
