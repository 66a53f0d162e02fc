"""A queue of numbers, of which each worker takes one after the other. `gang.toml` runs it as a service.

Its address is in the abstract namespace of Unix sockets, with the identifier of the run in its name.
"""

import argparse
import itertools
import os
import socketserver

from supervise import notify

FIRST = 1_000_000


def main() -> None:
    """Serve until a signal ends the process: supervise sends it when all workers have ended."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--tasks", type=int, default=12, help="how many numbers")
    given = parser.parse_args()
    numbers = itertools.count(FIRST)

    class Handler(socketserver.StreamRequestHandler):
        """One worker: each line that it sends is answered with a number, or with an empty line at the end."""

        def handle(self) -> None:
            for _ in self.rfile:
                number = next(numbers)
                self.wfile.write(b"%d\n" % number if number < FIRST + given.tasks else b"\n")

    address = f"\0queue-{os.environ['TORCHELASTIC_RUN_ID']}"
    with socketserver.ThreadingUnixStreamServer(address, Handler) as server:
        notify(ready=True)  # it listens: now supervise launches the workers
        server.serve_forever()


if __name__ == "__main__":
    main()
