"""Free ports of 127.0.0.1 for servers of tests."""

import itertools
import socket
from contextlib import suppress

_EACH = 100
_BLOCKS = range(20_000, 32_000, _EACH)
"""Below the range from which the kernel gives ports to programs that do not choose.

In that range, another program may get the port before the server does; even the client that polls for the server may,
and is then connected to itself.
"""


def _reserved() -> int:
    """Reserve a block of ports for this process by the name of a socket, which stays open; return the first port.

    A port that a test has found is free until its server binds it, and the test of another process may find it, too.
    """
    socket_of_name = socket.socket(socket.AF_UNIX)
    for first in _BLOCKS:
        with suppress(OSError):
            socket_of_name.bind(f"\0supervise-tests-{first}")
            socket_of_name.detach()
            return first
    raise AssertionError


_FIRST = _reserved()
_PORTS = itertools.cycle(range(_FIRST, _FIRST + _EACH))


def free_port() -> int:
    """Return a port on which no program listens."""
    for port in itertools.islice(_PORTS, _EACH):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError
