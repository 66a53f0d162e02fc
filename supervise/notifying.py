"""Notify protocol of systemd, the sender's side: a rank reports readiness, heartbeats, its step and its status.

It imports no other module of the package, and only built-in modules of Python, because every rank may import it.
"""

from __future__ import annotations

import _operator
import _socket
import atexit
import os

__all__ = ["notify"]

_PATIENCE_S = 1.0
"""How long READY and STOPPING wait for room in the host's queue."""
_REPORT_PATIENCE_S = 0.2
"""How long a step or a status waits. A host that is not suspended reads its queue at least every 0.1 s."""
_MOST_BYTES = 3072
"""Limit on a status. The whole datagram then stays below 4096 bytes. Systemd, too, drops a larger datagram."""
_TOO_LARGE = 10**18
_STEP, _STATUS = b"X_SUPERVISE_STEP", b"STATUS"
_unsent: dict[tuple[int, bytes], bytes] = {}
"""Pid and name to value: the newest step and status for which the host's queue had no room. A fork copies them."""


def notify(
    ready: bool = False,
    status: str | None = None,
    step: int | None = None,
    heartbeat: bool = False,
    stopping: bool = False,
) -> None:
    r"""Report to the host of this rank, or to systemd; do nothing if no host listens.

    The function sends one datagram to the socket that the environment variable ``NOTIFY_SOCKET`` names. It may be
    called from every thread and every descendant of the rank, and keeps no descriptor. If the host's
    queue is full, a call with `ready` or `stopping` waits at most 1 s for room, and one with `step` or `status` at most
    0.2 s, or not at all if the one before has waited in vain; every other call returns at once.
    What was not sent is lost, but for the newest step and status, which the next call sends, or the exit of the
    process, which waits for room in the same way. Errors of the operating system, such as a host that is gone, are
    ignored.

    Args:
        ready: The rank is ready for work.
        status: One line for people: ``\n`` and other control characters become spaces; at most 3072 bytes are sent.
        step: The number of the step that the rank has reached, from 0 to 10**18 - 1. A higher step is also a heartbeat.
        heartbeat: The rank makes progress.
        stopping: The rank is about to exit, so heartbeats end.

    Raises:
        TypeError: An argument does not have the type of its annotation. Raised even if no host listens.
        ValueError: `step` is out of range, even if no host listens.
    """
    message = _message(ready, status, step, heartbeat, stopping)
    if message:
        unsent = _own_unsent()
        patience_s = 0.0 if unsent or message.keys().isdisjoint((_STEP, _STATUS)) else _REPORT_PATIENCE_S
        _send({**unsent, **message}, _PATIENCE_S if ready or stopping else patience_s)


def _send(message: dict[bytes, bytes], patience_s: float) -> None:
    """Send a message; if the queue is full, keep its step and its status for the next one."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("@", "/")):
        return
    name = os.fsencode(address)
    if name.startswith(b"@"):
        name = b"\0" + name[1:]
    try:
        sender = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)  # close-on-exec
        try:
            sender.settimeout(patience_s)
            sender.connect(name)  # without it, poll reports room although the host's queue is full
            sender.send(b"\n".join([b"%s=%s" % item for item in message.items()]), _socket.MSG_NOSIGNAL)
        finally:
            sender.close()
    except (BlockingIOError, TimeoutError):
        atexit.unregister(send_unsent)
        atexit.register(send_unsent)
        _unsent.update({(os.getpid(), name): message[name] for name in (_STEP, _STATUS) if name in message})
    except OSError:  # the host is gone or in another network namespace; or no descriptor is left
        return
    else:
        _unsent.clear()


def send_unsent() -> None:
    """Send the step and the status that are left at the end of a process."""
    if own := _own_unsent():
        _send(own, _PATIENCE_S)


def _own_unsent() -> dict[bytes, bytes]:
    return {name: value for (pid, name), value in list(_unsent.items()) if pid == os.getpid()}


def _message(ready: bool, status: str | None, step: int | None, heartbeat: bool, stopping: bool) -> dict[bytes, bytes]:
    message = {}
    for name, flag, key in (
        ("heartbeat", heartbeat, b"WATCHDOG"),
        ("ready", ready, b"READY"),
        ("stopping", stopping, b"STOPPING"),
    ):
        if not isinstance(flag, bool):
            raise TypeError(f"{name} must be a bool, not {flag!r}")
        if flag:
            message[key] = b"1"
    if step is not None:
        message[_STEP] = b"%d" % _checked(step)
    if status is not None:
        if not isinstance(status, str):
            raise TypeError(f"status must be a str, not {status!r}")
        line = "".join([char if char >= " " and char != "\x7f" else " " for char in status[:_MOST_BYTES]])
        cut = line.encode("utf-8", "replace")[:_MOST_BYTES]
        message[_STATUS] = cut.decode("utf-8", "ignore").encode()
    return message


def _checked(step: int) -> int:
    """Return a step as an int; NumPy's and PyTorch's integers have a method for that."""
    if isinstance(step, bool):
        raise TypeError(f"step must be an integer, not {step!r}")
    try:
        number = _operator.index(step)
    except TypeError:
        raise TypeError(f"step must be an integer, not {step!r}") from None
    if not 0 <= number < _TOO_LARGE:
        raise ValueError(f"step must be from 0 to 10**18 - 1, not {number}")
    return number
