"""Free ports of 127.0.0.1 for servers of tests."""

import itertools
import os
import socket
from contextlib import suppress

_PORTS = itertools.count(20_000 + os.getpid() % 10_000)
"""Below the range from which the kernel gives ports to programs that do not choose.

In that range, another program may get the port before the server does; even the client that polls for the server may,
and is then connected to itself.
"""


def free_port() -> int:
    """Return a port on which no program listens."""
    for port in _PORTS:
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError
