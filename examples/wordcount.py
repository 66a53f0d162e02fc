"""Count the words of a text on several ranks, and add the counts over a tree of sockets.

Four ranks, with their output prefixed, their logs kept, and the whole gang stopped if one of them fails:

    supervise run -n 4 examples/wordcount.py
    supervise run -n 4 examples/wordcount.py --corpus ~/books
    supervise run -n 4 examples/wordcount.py --fail-rank 2

Or one rank, with Python only:

    python examples/wordcount.py

The program is independent of its launcher. It reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, like programs for
torchrun. Each rank counts its share of the bytes; then every rank except the first sends its sum to its parent:

    ranks 1, 3, 5, 7 to 0, 2, 4, 6;  then 2 and 6 to 0 and 4;  then 4 to 0
"""

import argparse
import json
import os
import re
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEADLINE_S = 30.0
WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")
Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class World:
    """The rank of this process, the number of ranks, and the address of rank 0."""

    rank: int
    size: int
    master: Address

    @classmethod
    def from_environment(cls) -> "World":
        """Read the launcher's variables; without them, this process is the only rank."""
        env = os.environ
        master = (env.get("MASTER_ADDR", "127.0.0.1"), int(env.get("MASTER_PORT", "0")))
        return cls(int(env.get("RANK", "0")), int(env.get("WORLD_SIZE", "1")), master)

    @property
    def parent(self) -> int:
        """The rank that receives this rank's sum: the number without its lowest set bit."""
        return self.rank & (self.rank - 1)

    @property
    def children(self) -> list[int]:
        """The ranks that send their sums to this rank."""
        lowest = self.rank & -self.rank or self.size
        steps = (1 << bit for bit in range(self.size.bit_length()))
        return [self.rank + step for step in steps if step < lowest and self.rank + step < self.size]


def shard(files: list[Path], rank: int, size: int) -> Iterator[tuple[Path, int, int]]:
    """Yield this rank's ``(file, first byte, end byte)``: an equal share of the bytes of all files."""
    total = sum(file.stat().st_size for file in files)
    first, end = total * rank // size, total * (rank + 1) // size
    offset = 0
    for file in files:
        length = file.stat().st_size
        low, high = max(first - offset, 0), min(end - offset, length)
        if low < high:
            yield file, low, high
        offset += length


def count(file: Path, first: int, end: int) -> Counter[str]:
    """Count the words of all lines whose first byte is in ``[first, end)``, so that each line is counted once."""
    words: Counter[str] = Counter()
    with file.open("rb") as lines:
        if first:
            lines.seek(first - 1)
            lines.readline()  # the rest of a line that belongs to the previous rank
        while lines.tell() < end and (line := lines.readline()):
            words.update(WORD.findall(line.decode("utf-8", "replace").lower()))
    return words


def connect(address: Address) -> socket.socket:
    """Connect to a rank; retry while it does not listen yet."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            return socket.create_connection(address, timeout=DEADLINE_S)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def listen(address: Address) -> socket.socket:
    """Listen for other ranks, with the deadline as timeout."""
    server = socket.create_server(address, backlog=128)
    server.settimeout(DEADLINE_S)
    return server


def send(link: socket.socket, value: object) -> None:
    """Send one line of JSON."""
    link.sendall(json.dumps(value).encode() + b"\n")


def receive(link: socket.socket) -> Any:
    """Receive one line of JSON."""
    link.settimeout(DEADLINE_S)
    with link.makefile("rb") as stream:
        if line := stream.readline():
            return json.loads(line)
    message = "the other rank hung up"
    raise ConnectionError(message)


def rendezvous(world: World) -> tuple[socket.socket, list[Address]]:
    """Start to listen, and get the addresses of all ranks from rank 0."""
    if world.rank > 0:
        with connect(world.master) as link:
            server = listen((link.getsockname()[0], 0))
            send(link, [world.rank, server.getsockname()[:2]])
            return server, [(host, port) for host, port in receive(link)]
    server = listen(world.master)
    addresses = [world.master] * world.size
    with ExitStack() as links:
        for link in (others := [links.enter_context(server.accept()[0]) for _ in range(1, world.size)]):
            rank, address = receive(link)
            addresses[rank] = address
        for link in others:
            send(link, addresses)
    return server, addresses


def reduce(world: World, words: Counter[str]) -> None:
    """Add the sums of the children to `words`, then send `words` to the parent."""
    server, addresses = rendezvous(world)
    with server:
        for _ in world.children:
            with server.accept()[0] as link:
                words.update(receive(link))
    if world.rank > 0:
        with connect(addresses[world.parent]) as link:
            send(link, words)


def main() -> None:
    """Count the shard of this rank; on rank 0 also print the result."""
    parser = argparse.ArgumentParser(description="Count the words of a text on several ranks.")
    parser.add_argument("--corpus", type=Path, default=Path(__file__).with_name("corpus"), help="a directory of *.txt")
    parser.add_argument("--fail-rank", type=int, metavar="R", help="rank R raises an exception halfway")
    options = parser.parse_args()
    world = World.from_environment()
    files = sorted(options.corpus.glob("*.txt"))
    if not files:
        sys.exit(f"no *.txt in {options.corpus}")

    words: Counter[str] = Counter()
    parts = list(shard(files, world.rank, world.size))
    for number, (file, first, end) in enumerate(parts):
        if world.rank == options.fail_rank and number == len(parts) // 2:
            message = f"rank {world.rank} was told to fail at byte {first:,} of {file.name}"
            raise RuntimeError(message)
        words += count(file, first, end)
    noun = "file" if len(parts) == 1 else "files"
    print(f"rank {world.rank}: {words.total():,} words in {len(parts)} {noun}", flush=True)  # at once, to be seen live

    if world.size > 1:
        reduce(world, words)
    if world.rank == 0:
        whole = sum((count(file, 0, file.stat().st_size) for file in files), Counter[str]())
        if words != whole:
            sys.exit(f"the ranks counted {words.total():,} words, but the text has {whole.total():,}")
        print(f"\n{words.total():,} words, {len(words):,} of them different; the shards add up to the whole text")
        for word, times in sorted(words.items(), key=lambda item: (-item[1], item[0]))[:10]:
            print(f"{times:7,}  {word}")


if __name__ == "__main__":
    main()
