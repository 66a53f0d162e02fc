"""A client of the control socket that says what the test wants, and nothing else."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from supervise._control.server import ControlServer
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    import pykka


class Raw:
    """A connection, for a ``with`` block."""

    def __init__(self, path: Path) -> None:
        self.end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.end.settimeout(PATIENCE_S)
        try:
            folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
            try:
                self.end.connect(f"/proc/self/fd/{folder}/{path.name}")
            finally:
                os.close(folder)
        except BaseException:
            self.end.close()
            raise
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end.close()

    def send(self, data: bytes) -> None:
        self.end.sendall(data)

    def ask(self, request: str, **more: Any) -> None:
        self.send(json.dumps({"version": 1, "request": request, **more}).encode() + b"\n")

    def line(self) -> bytes:
        """Return the next line, b"" at the end."""
        while b"\n" not in self._rest:
            try:
                data = self.end.recv(65536)
            except ConnectionResetError:  # the server has closed with our last words unread
                data = b""
            if not data:
                return b""
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def hear(self) -> dict[str, Any]:
        """Return the next reply, whole."""
        return json.loads(self.line())

    def result(self) -> dict[str, Any]:
        """Return the result of the next reply, which is no error."""
        reply = self.hear()
        assert reply["ok"] is True, reply
        return reply["result"]

    def error(self) -> str:
        """Return the code of the next reply, which is an error that explains itself."""
        reply = self.hear()
        assert (reply["version"], reply["ok"]) == (1, False), reply
        assert reply["error"]["message"]
        return reply["error"]["code"]


@contextmanager
def served(gang: "pykka.ActorRef[Any]", path: Path, **more: Any) -> Iterator[ControlServer]:
    """Run a server for a gang; its thread is gone afterwards, and so is its file."""
    server = ControlServer(str(path), gang, name="fake", **more)
    server.start()
    try:
        yield server
    finally:
        server.close()
        assert server.join(PATIENCE_S)
        assert not path.exists()
