"""Add vectors over a ring of ranks, as programs for MPI do: each rank sends to the right and receives from the left.

    python examples/ring.py --ranks 4 --numbers 100000
    python examples/ring.py --ranks 4 --fail-rank 2

The ranks are functions, which return what they have computed. If a rank of a ring dies, all others wait for it, or fail
in their turn. supervise stops them at once, and says which rank was the first.

The sum needs 2 (n - 1) steps, in each of which a rank sends one n-th of its vector.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import struct
import sys
import tempfile
import time
from array import array
from pathlib import Path
from typing import Self

from supervise import start_processes

PATIENCE_S = 30.0


class Ring:
    """The connections of one rank to its neighbors."""

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        """Connect to the right neighbor, and accept the left one."""
        self.rank, self.size = rank, size
        with socket.socket(socket.AF_UNIX) as server:
            server.settimeout(PATIENCE_S)
            server.bind(str(folder / str(rank)))
            server.listen()
            self.right = connect(folder / str((rank + 1) % size))
            self.left, _ = server.accept()
        self.left.settimeout(None)  # a neighbor may compute for long; if it dies, supervise ends this rank

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.right.close()
        self.left.close()

    def exchange(self, part: array[float]) -> array[float]:
        """Send to the right, and return what comes from the left."""
        if self.rank % 2 == 0:
            self._send(part)
            return self._receive()
        received = self._receive()  # if all ranks sent first, full buffers would block them all
        self._send(part)
        return received

    def _send(self, part: array[float]) -> None:
        self.right.sendall(struct.pack("!I", len(part) * part.itemsize) + part.tobytes())

    def _receive(self) -> array[float]:
        (length,) = struct.unpack("!I", self._read(4))
        return array("d", self._read(length))

    def _read(self, length: int) -> bytes:
        found = bytearray()
        while len(found) < length:
            if not (more := self.left.recv(length - len(found))):
                raise ConnectionError("the left neighbor has closed the connection")
            found += more
        return bytes(found)

    def all_reduce(self, vector: array[float]) -> array[float]:
        """Return the sum of the vectors of all ranks."""
        size, rank = self.size, self.rank
        parts = [vector[len(vector) * n // size : len(vector) * (n + 1) // size] for n in range(size)]
        for step in range(size - 1):  # each part collects the sum on its way
            received = self.exchange(parts[(rank - step) % size])
            mine = parts[(rank - step - 1) % size]
            parts[(rank - step - 1) % size] = array("d", (a + b for a, b in zip(mine, received, strict=True)))
        for step in range(size - 1):  # the sums go round once more
            parts[(rank - step) % size] = self.exchange(parts[(rank - step + 1) % size])
        return array("d", (number for part in parts for number in part))


def connect(path: Path) -> socket.socket:
    """Connect to a rank; retry while it does not listen yet."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        link = socket.socket(socket.AF_UNIX)
        try:
            link.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            link.close()
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.01)
        else:
            return link


def work(folder: Path, rank: int, size: int, numbers: int, fails: bool) -> float:
    """Add the vectors of all ranks, and return the sum of the elements: what a rank runs."""
    with Ring(folder, rank, size) as ring:
        if fails:
            os.kill(os.getpid(), signal.SIGKILL)
        return sum(ring.all_reduce(array("d", (rank + 1.0 for _ in range(numbers)))))


def main() -> None:
    """Run the ring, and check that all ranks have the same sum."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--numbers", type=int, default=100_000, help="length of each rank's vector")
    parser.add_argument("--fail-rank", type=int, help="rank that dies in the middle")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ring-") as folder:
        args = {
            rank: (Path(folder), rank, given.ranks, given.numbers, rank == given.fail_rank)
            for rank in range(given.ranks)
        }
        with start_processes("ring", work, args, grace=5.0) as context:
            result = context.wait()
    if (first := result.root_cause) is not None:
        sys.exit(f"rank {first} failed first: {result.failures[first].message}")
    print(f"{given.ranks} ranks have the same sum:", *sorted(set(result.return_values.values())))


if __name__ == "__main__":
    main()
