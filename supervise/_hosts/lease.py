"""The lease of a host. The ranks of the host run only as long as the driver renews the lease."""

from __future__ import annotations

import errno
import os
import select
import subprocess
import sys
import threading
import time
from contextlib import suppress

from supervise._hosts import keeper

_NS_PER_S = 1_000_000_000
_BYE_MS = 5000
_FIRST_S = 120.0
"""Length of the lease before its first renewal.

In this time, the host has no ranks and waits until the engine has made all hosts.
"""


class LeaseLost(Exception):  # noqa: N818  says what happened, as SupervisorCrashed does
    """The keeper of the lease has ended, so nothing would kill the ranks of a host that the driver cannot reach."""


class Lease:
    """A lease and its keeper. Thread-safe.

    A token is a time of this host. The driver sends each token back with its next renewal. The lease then lasts from
    the time of the token on. So the lease is never longer than the driver assumes, even if a renewal was delayed on its
    way, or if this host was frozen and read it late.
    """

    def __init__(self, lease_s: float, ip: str = "127.0.0.1", first_s: float = _FIRST_S) -> None:
        """Start the keeper. The driver connects to it at `ip`.

        Args:
            lease_s: Seconds for which a renewal lasts.
            ip: The address at which the keeper listens.
            first_s: Seconds for which the host, which has no ranks yet, may live before the first renewal.

        Raises:
            OSError: The keeper cannot be started.
        """
        self._lease_ns = int(lease_s * _NS_PER_S)
        self._lock = threading.Lock()
        command = [sys.executable, "-I", "-S", keeper.__file__, str(os.getpid()), str(max(lease_s, first_s)), ip]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
        )
        assert self._process.stdout is not None  # noqa: S101 - a pipe
        port = self._process.stdout.readline()
        code = self._process.wait(_BYE_MS / 1000)  # the keeper is its child
        if not port:
            self._process.stdout.close()
            raise OSError(errno.ECHILD, f"the keeper of the lease did not start; exit code {code}")
        self.port = int(port)
        """The TCP port of the keeper."""

    def token(self) -> int:
        """Return the token for the driver's next renewal."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def renew(self, token: int) -> int:
        """Extend the lease to `lease_s` after `token`; return the next token. A `token` of 0 extends nothing.

        Raises:
            LeaseLost: The keeper has ended.
        """
        if token:
            self._say(f"lease {token + self._lease_ns}")
        return self.token()

    def add(self, pid: int) -> None:
        """Make the keeper responsible for the process group of a rank."""
        self._say(f"rank {pid} {keeper.start_time(pid)}")

    def remove(self, pid: int) -> None:
        """End the responsibility of the keeper for a group of which nothing is left."""
        with suppress(LeaseLost):
            self._say(f"gone {pid}")

    def end(self) -> None:
        """End the keeper of a host that no longer has ranks. Idempotent."""
        with suppress(LeaseLost):
            self._say("bye")
        with self._lock:
            if self._process.stdin is not None:
                self._process.stdin.close()
        if self._process.stdout is not None and not self._process.stdout.closed:
            poll = select.poll()
            poll.register(self._process.stdout, 0)  # the pipe closes when the keeper ends
            poll.poll(_BYE_MS)
            self._process.stdout.close()

    def _say(self, line: str) -> None:
        with self._lock:
            stdin = self._process.stdin
            try:
                if stdin is None or stdin.closed:
                    raise BrokenPipeError
                stdin.write(f"{line}\n".encode())
            except OSError as error:
                raise LeaseLost("the keeper of the lease has ended") from error
