"""A worker that takes numbers from `queue_server.py` and factors them, until there are none left. See `gang.toml`."""

import os
import socket
from collections.abc import Iterator


def tasks() -> Iterator[int]:
    """Yield the numbers that this worker takes."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(f"\0queue-{os.environ['TORCHELASTIC_RUN_ID']}")  # it listens, or this rank would not run
        with link.makefile("rw") as lines:
            while True:
                lines.write("next\n")
                lines.flush()
                if not (line := lines.readline().strip()):
                    return
                yield int(line)


def factors(number: int) -> list[int]:
    """Return the prime factors of a number."""
    found, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            found.append(divisor)
            number //= divisor
        divisor += 1
    return found


def main() -> None:
    """Work until the queue is empty."""
    name = f"{os.environ['ROLE_NAME']} {os.environ['ROLE_RANK']} of {os.environ['ROLE_WORLD_SIZE']}"
    for number in tasks():
        print(f"{name}: {number} =", *factors(number), flush=True)


if __name__ == "__main__":
    main()
