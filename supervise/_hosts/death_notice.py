"""The driver's connection to the keeper of a host's lease.

On this connection, the keeper reports that the host and its ranks are dead.
"""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise._hosts.orders import HostAddress
    from supervise._runtime.loop import Loop

_MOST_BYTES = 200
_GONE = b"gone "


class DeathNotice:
    """Reader of one line from the keeper. Used on the driver's loop.

    Only the line of the keeper is a proof. If the connection ends without the line, or if there is no connection, the
    driver waits for the end of the lease.
    """

    def __init__(self, loop: Loop, address: HostAddress, then: Callable[[str], object]) -> None:
        """Connect. Call `then` with the keeper's reason when the host and its ranks are dead."""
        self._loop = loop
        self._then = then
        self.why = ""
        """The keeper's reason; "" until the reason has arrived."""
        self._socket = socket.socket(socket.AF_INET6 if ":" in address.ip else socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._socket.connect_ex((address.ip, address.keeper_port))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._watched = True
        loop.watch(self._socket.fileno(), self._read)

    def _read(self) -> None:
        said = b""
        with contextlib.suppress(OSError):
            said = self._socket.recv(_MOST_BYTES)
        self.close()
        if said.startswith(_GONE):
            self.why = said[len(_GONE) :].decode(errors="replace").strip()
            self._then(self.why)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        if self._watched:
            self._watched = False
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
