"""Notify protocol of systemd: the variables of a rank's environment, and the content of a datagram."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

from supervise._printable import one_line
from supervise._record import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

SOCKET, PERIOD = "NOTIFY_SOCKET", "WATCHDOG_USEC"
HELD_BY_RANK = 1
"""Number of the host's descriptors for each open socket. The gang has one more descriptor for all sockets."""
_OF_THE_HOST = frozenset({SOCKET, PERIOD, "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"})
_MOST_DIGITS = 18
"""Limit on digits, so that every number fits into 64 bits. `supervise.notify` has the same limit."""
_CONTROLS = {**dict.fromkeys(range(0x80, 0xA0)), ord("\t"): " "}
"""Translation of characters before `one_line`. It removes those of C1.

On many characters of C1, a pattern of `one_line` would take quadratic time.
"""


class Message(NamedTuple):
    """The content of one datagram."""

    ready: bool = False
    reloading: bool = False
    stopping: bool = False
    beat: bool = False
    trigger: bool = False
    """Whether the rank asks to be treated as if its watchdog had expired."""
    status: str | None = None
    """One line without control characters; None if the datagram has no status."""
    step: int | None = None
    extend_usec: int | None = None


def without_host_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the host's environment without some variables.

    The variables that are left out concern the host itself: the sockets that its own supervisor has for it.
    """
    return {name: value for name, value in environ.items() if name not in _OF_THE_HOST}


def new_address() -> str:
    """Return an address for the socket of one life, in the abstract namespace.

    Every user of the machine can read the addresses that are in use (/proc/net/unix). So each life has an address of
    its own that no other process can guess, and bind, before the life begins.
    """
    return f"@supervise/{os.urandom(16).hex()}"


def variables(address: str, watchdog_s: float | None) -> dict[str, str]:
    """Return the variables for a rank.

    ``WATCHDOG_PID`` is not one of them, because the process that sends heartbeats may be a descendant of the rank.

    Args:
        address: The address of the rank's socket.
        watchdog_s: Seconds within which a heartbeat is due; None if no heartbeat is required.
    """
    return {SOCKET: address} | ({} if watchdog_s is None else {PERIOD: str(max(1, math.floor(watchdog_s * 1e6)))})


def parse(datagram: bytes) -> Message:
    """Return the content of a datagram of up to 4096 bytes.

    Assignments that are not known or not valid are ignored. As in systemd, the first assignment to a name counts. Every
    input has a result.
    """
    values: dict[bytes, bytes] = {}
    for line in datagram.rstrip(b"\0").replace(b"\r", b"\n").split(b"\n"):
        name, _, value = line.partition(b"=")
        values.setdefault(name, value)
    status = values.get(b"STATUS")
    return Message(
        ready=values.get(b"READY") == b"1",
        reloading=values.get(b"RELOADING") == b"1",
        stopping=values.get(b"STOPPING") == b"1",
        beat=values.get(b"WATCHDOG") == b"1",
        trigger=values.get(b"WATCHDOG") == b"trigger",
        status=None if status is None else one_line(status.decode("utf-8", "replace").translate(_CONTROLS)).strip(),
        step=_number(values.get(b"X_SUPERVISE_STEP")),
        extend_usec=_number(values.get(b"EXTEND_TIMEOUT_USEC")),
    )


def _number(value: bytes | None) -> int | None:
    return int(value) if value is not None and value.isdigit() and len(value) <= _MOST_DIGITS else None
