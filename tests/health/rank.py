"""`python -m tests.health.rank HOW CULPRIT AT PATTERN FOLDER`: a rank that makes steps with others until one hangs.

It reports each step to the host when it has reached it, by a heartbeat and by a line. Then, with the pattern
``barrier``, it waits until all ranks have reached the step; with ``chain`` each step needs an item of the rank below;
with ``alone`` it waits for none. The rank CULPRIT hangs in the work of step AT.
"""

import os
import socket
import sys
import time
from pathlib import Path

from supervise.notifying import notify
from tests.health.hangs import HANGS

WORK_S = 0.02


class Alone:
    """Meets the other ranks at the start, and waits for none later."""

    def __init__(self, rank: int, world_size: int, folder: Path) -> None:
        self._end = socket.socket(socket.AF_UNIX)
        self._end.connect(str(folder / "meet"))
        self.meet()

    def before(self) -> None:
        """Begin a step at once."""

    def after(self) -> None:
        """End a step at once."""

    def meet(self) -> None:
        """Wait until each rank has come."""
        self._end.sendall(b".")
        assert self._end.recv(1) == b"."


class Barrier(Alone):
    """Waits at each step until all ranks have reached it."""

    def after(self) -> None:
        """End a step when all ranks have."""
        self.meet()


class Chain(Alone):
    """Waits in each step for an item of the rank below."""

    def __init__(self, rank: int, world_size: int, folder: Path) -> None:
        self._items = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._items.bind(str(folder / str(rank)))
        self._first = rank == 0
        self._next = str(folder / str(rank + 1)) if rank + 1 < world_size else None
        super().__init__(rank, world_size, folder)

    def before(self) -> None:
        """Take the item of the rank below."""
        if not self._first:
            self._items.recv(1)

    def after(self) -> None:
        """Give the item to the rank above, which may be busy: then this blocks."""
        if self._next is not None:
            self._items.sendto(b".", self._next)


def main(how: str, culprit: str, at: str, pattern: str, folder: str) -> None:
    """Make steps for ever."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    together = {"alone": Alone, "barrier": Barrier, "chain": Chain}[pattern](rank, world_size, Path(folder))
    step = 0
    while True:
        step += 1
        together.before()
        if (rank, step) == (int(culprit), int(at)):
            HANGS[how]()
        time.sleep(WORK_S)  # noqa: TID251 - the work
        notify(step=step)
        print("step", step, flush=True)
        together.after()


if __name__ == "__main__":
    main(*sys.argv[1:])
