"""The option ``ranks_budget``: how many ranks run at once, over all workers of pytest-xdist.

A slot is a locked file in the base folder of the run. The host and its ranks hold the lock. The kernel releases it when
the last of them has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

from supervise.pytest_plugin._mark import MarkError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def slots(folder: Path, budget: int, wanted: int) -> Iterator[None]:
    """Hold `wanted` of `budget` slots in the block; wait for them.

    Args:
        folder: The folder of the slots, which all workers share.
        budget: How many slots there are; 0 for no limit.
        wanted: How many to hold.

    Raises:
        MarkError: The budget is smaller than `wanted`.
    """
    if not budget:
        yield
        return
    if wanted > budget:
        raise MarkError(f"ranks({wanted}) needs {wanted} processes, and the option ranks_budget allows {budget}")
    folder.mkdir(mode=0o700, exist_ok=True)
    held: dict[int, int] = {}
    try:
        # Only the worker that has the turn takes slots: two workers that each hold a part would wait for each other
        turn = _lock(folder / "turn", wait=True)
        try:
            for wait in (False, True):
                for number in range(budget):
                    if len(held) < wanted and number not in held:
                        fd = _lock(folder / f"slot-{number}", wait=wait)
                        if fd is not None:
                            held[number] = fd
        finally:
            if turn is not None:
                os.close(turn)
        yield
    finally:
        for fd in held.values():
            os.close(fd)


def _lock(path: Path, *, wait: bool) -> int | None:
    """Lock a file; return its descriptor, or None if another process has it and `wait` is False."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd
