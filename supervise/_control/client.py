"""A client of the control socket: one connection, one request at a time."""

from __future__ import annotations

import contextlib
import errno
import json
import select
import socket
import time
from typing import TYPE_CHECKING, Any

from supervise._control.protocol import VERSION, connected, peer
from supervise._process.containment.procfs import look
from supervise.errors import SuperviseError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_MOST_REPLY_BYTES = 80 << 20
_PIECE_BYTES = 1 << 20
_BUSY_S = 5.0
"""How long a connection is retried while too many clients are waiting."""
_RETRY_S = 0.05
_FIRST_LOOK_S = 2.0
"""How long a reply may take before the client checks whether the server is suspended. The intervals between further
checks double. The client has to check, since the kernel reports the suspension of a process only to its parent."""
_LAST_LOOK_S = 60.0


class ControlError(SuperviseError):
    """A request got an error as its reply, or no reply.

    Args:
        code: The kind of error, a word of the protocol; ``no-reply`` if the connection ended, ``not-a-reply`` if the
            server does not speak the protocol, ``timeout`` if no reply came in time.
        message: What is wrong.
    """

    code: str
    """The kind of error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ControlClient(contextlib.AbstractContextManager["ControlClient"]):
    """A connection to a control socket, for a ``with`` block. Used by one thread."""

    def __init__(self, path: str, on_suspended: Callable[[int], object] | None = None) -> None:
        """Connect.

        Args:
            path: Path of the socket file.
            on_suspended: Called once with the process ID of the server if the server is suspended while a reply is
                awaited.

        Raises:
            OSError: There is no such file, no process listens, or the permission is missing.
        """
        self._end = _patiently_connected(path)
        self._received = bytearray()
        self._count = 0
        self._on_suspended = on_suspended

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        self._end.close()

    @property
    def peer_pid(self) -> int:
        """Process ID of the server in the PID namespace of this process; 0 if it has none there."""
        return peer(self._end)[0]

    def request(self, name: str, *, timeout_s: float | None, **arguments: Any) -> dict[str, Any]:
        """Send a request and return its result.

        Args:
            name: The request.
            timeout_s: Seconds (monotonic) to wait for the reply; None waits while the connection exists.
            **arguments: Its arguments; None is the same as an omitted one.

        Raises:
            ControlError: The reply is an error, or there is none.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._count += 1
        given = {key: value for key, value in arguments.items() if value is not None}
        line = json.dumps({"version": VERSION, "id": self._count, "request": name, **given}).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the server may have sent the reason
            self._send(line, deadline_s)
        while True:
            reply = self._reply(deadline_s)
            if reply.get("version") != VERSION:
                raise ControlError("version", f"the server speaks version {reply.get('version')!r}, not {VERSION}")
            if reply.get("ok") is True and reply.get("id") == self._count and isinstance(reply.get("result"), dict):
                result: dict[str, Any] = reply["result"]
                return result
            error = reply.get("error")
            if reply.get("ok") is False and isinstance(error, dict):
                raise ControlError(str(error.get("code")), str(error.get("message") or "refused without a reason"))

    def until_closed(self, timeout_s: float | None) -> bool:
        """Wait until the server closes the connection; return whether that happened within `timeout_s` seconds."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            while True:
                self._line(deadline_s)
        except ControlError as error:
            return error.code != "timeout"

    def _send(self, data: bytes, deadline_s: float | None) -> None:
        rest = memoryview(data)
        while rest:
            self._await(select.POLLOUT, deadline_s)
            rest = rest[self._end.send(rest, socket.MSG_NOSIGNAL) :]

    def _reply(self, deadline_s: float | None) -> dict[str, Any]:
        line = self._line(deadline_s)
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ControlError("not-a-reply", "the reply is not a JSON object")
        return found

    def _line(self, deadline_s: float | None) -> bytes:
        searched = 0
        while (end := self._received.find(b"\n", searched)) < 0:
            searched = len(self._received)
            if searched > _MOST_REPLY_BYTES:
                raise ControlError("not-a-reply", "the reply is too long")
            self._await(select.POLLIN, deadline_s)
            try:
                data = self._end.recv(_PIECE_BYTES)
            except BlockingIOError:
                continue
            except ConnectionResetError:
                data = b""
            if not data:
                raise ControlError("no-reply", "the connection ended without a reply")
            self._received += data
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line

    def _await(self, events: int, deadline_s: float | None) -> None:
        poll = select.poll()
        poll.register(self._end, events)
        interval_s = _FIRST_LOOK_S
        while True:
            left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            looks = self._on_suspended is not None and (left_s is None or left_s > interval_s)
            wait_s = interval_s if looks else left_s
            if poll.poll(None if wait_s is None else wait_s * 1000):
                return
            if not looks:
                raise ControlError("timeout", "supervise did not reply in time; it may be suspended")
            self._look()
            interval_s = min(2 * interval_s, _LAST_LOOK_S)

    def _look(self) -> None:
        """Report a suspension of the server, but only once."""
        pid = self.peer_pid
        if self._on_suspended is not None and (seen := look(pid)) is not None and seen.state in ("T", "t"):
            report, self._on_suspended = self._on_suspended, None
            report(pid)


def _patiently_connected(path: str) -> socket.socket:
    """Connect; while the queue of the server is full, try again."""
    deadline_s = time.monotonic() + _BUSY_S
    while True:
        try:
            return connected(path)
        except OSError as error:
            if error.errno != errno.EAGAIN or time.monotonic() >= deadline_s:
                raise
        select.select([], [], [], _RETRY_S)
