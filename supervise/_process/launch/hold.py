"""Hold of a rank whose function has returned: the rank's process exits only when the host releases it."""

from __future__ import annotations

import contextlib
import socket

from supervise._runtime.descriptors import clear_of_stdio, close


class Hold:
    """The host's side of the hold of one rank: a connected pair of sockets.

    The worker writes a byte when its function has returned, then reads until EOF. The release is a shutdown of the
    connection, not a close, because a process that the host has forked may have a copy of the host's end. The host
    closes its end only after the worker has exited, so that the write of the worker never causes a SIGPIPE.
    """

    def __init__(self) -> None:
        """Make the pair.

        Raises:
            OSError: There is no descriptor left.
        """
        self._host_end, rank_end = socket.socketpair()
        self.rank_end: int | None = clear_of_stdio(rank_end.detach())
        """The worker's end, until `launched`."""

    def fileno(self) -> int:
        """Return the host's end. It becomes readable when the function has returned or the process has exited."""
        return self._host_end.fileno()

    def launched(self) -> None:
        """Close the host's copy of the worker's end. Idempotent."""
        close(self.rank_end)
        self.rank_end = None

    def has_returned(self) -> bool:
        """Return whether the function has returned. Call this once, when the host's end is readable."""
        try:
            return self._host_end.recv(1) != b""
        except OSError:  # the process has died
            return False

    def release(self) -> None:
        """Let the worker exit, at once or as soon as its function returns. Idempotent."""
        with contextlib.suppress(OSError):  # the process has died
            self._host_end.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close both ends. Idempotent."""
        self.launched()
        self._host_end.close()
