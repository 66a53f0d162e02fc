"""`rank_gather`: the values of all ranks, in every rank."""

from __future__ import annotations

import contextlib
import os
import pickle
from time import monotonic
from typing import TYPE_CHECKING, Any

from supervise.recording import text_of

if TYPE_CHECKING:
    from supervise.pytest_plugin._folder import Folder


_DEFAULT_S = 30.0
_SHARE = 0.8
"""The part of the test's timeout after which a gather ends with an error that names the missing rank."""


class RankGatherError(Exception):
    """A rank did not give its value: it has ended, or it did not call in time."""


class RankGather:
    """A function that every rank calls the same number of times, in the same order; and the place of its rank."""

    def __init__(self, folder: Folder, rank: int, world_size: int, timeout_s: float | None) -> None:
        """Make it for one rank.

        Args:
            folder: The folder of the gang.
            rank: This rank.
            world_size: The number of ranks.
            timeout_s: The timeout of the test; None if it has none.
        """
        self.folder, self.rank, self.world_size = folder, rank, world_size
        self._timeout_s = _DEFAULT_S if timeout_s is None else timeout_s * _SHARE
        self._calls = 0

    def __call__(self, value: Any = None, *, timeout_s: float | None = None) -> list[Any]:
        """Return the values of all ranks, in the order of ranks. With None as the value, it is a barrier.

        Args:
            value: The value of this rank; it must be picklable.
            timeout_s: Seconds to wait for the others; None for 0.8 of the test's timeout, or 30 if it has none.

        Raises:
            RankGatherError: A rank has ended, or has not called in time; the text names it.
            TypeError: The value cannot be pickled.
        """
        __tracebackhide__ = True
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        deadline_s = monotonic() + timeout_s
        call, self._calls = self._calls, self._calls + 1
        self._give(call, value)
        bell = self.folder.bell(self.rank)
        try:
            while missing := self._missing(call):
                # Check the ends, then the values again: a rank gives its value before it ends
                gone = [rank for rank in missing if self.folder.ended(rank).exists()]
                gone = [rank for rank in gone if rank in self._missing(call)]
                if gone:
                    raise RankGatherError(f"rank_gather: {numbered(gone)} ended without the call number {call + 1}")
                if monotonic() >= deadline_s:
                    raise RankGatherError(
                        f"rank_gather: {numbered(missing)} did not make the call number {call + 1}"
                        f" within {timeout_s:g} s"
                    )
                bell.wait(deadline_s)
        finally:
            bell.close()
        values = [self.folder.value(call, rank).read_bytes() for rank in range(self.world_size)]
        return list(map(pickle.loads, values))

    def _give(self, call: int, value: Any) -> None:
        __tracebackhide__ = True
        try:
            data = pickle.dumps(value)
        except Exception as error:
            raise TypeError(f"rank_gather cannot pickle the value of rank {self.rank}: {text_of(error)}") from None
        path = self.folder.value(call, self.rank)
        new = path.with_suffix(".new")
        new.write_bytes(data)
        new.rename(path)
        for rank in range(self.world_size):
            if rank != self.rank:
                self.folder.ring(rank)
        if call > 1:  # every rank has read the values of call - 2, because it has begun call - 1
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.folder.value(call - 2, self.rank))

    def _missing(self, call: int) -> list[int]:
        return [rank for rank in range(self.world_size) if not self.folder.value(call, rank).exists()]


def numbered(ranks: list[int]) -> str:
    """Return ``rank 2`` or ``ranks 0, 2``."""
    numbers = sorted(set(ranks))
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {', '.join(map(str, numbers))}"


here: RankGather | None = None
"""The place of this process in a gang; None in the host, which is pytest itself."""
