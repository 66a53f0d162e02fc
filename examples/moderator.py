"""A line server on a Unix socket, which answers each line with its rude words masked. `chat.py` runs it as a service.

    python examples/moderator.py SOCKET

It runs until a signal ends it.
"""

import re
import socketserver
import sys
from pathlib import Path

from supervise import notify

RUDE = re.compile(r"\b(darn|drat|heck)\b", re.IGNORECASE)


class Moderation(socketserver.StreamRequestHandler):
    """One connection."""

    def handle(self) -> None:
        """Answer every line until the client closes the connection."""
        for line in self.rfile:
            text = RUDE.sub(lambda rude: "*" * len(rude[0]), line.decode())
            self.wfile.write(text.encode())


def main() -> None:
    """Serve until a signal ends the process."""
    path = Path(sys.argv[1])
    path.unlink(missing_ok=True)  # of an earlier life, which SIGKILL has ended
    with socketserver.ThreadingUnixStreamServer(str(path), Moderation) as server:
        notify(ready=True)  # it listens: now the tree starts what needs it
        server.serve_forever()


if __name__ == "__main__":
    main()
