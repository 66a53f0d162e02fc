"""A client of the Debug Adapter Protocol, which attaches to each process that the debugger announces."""

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_S


class Client:
    """One connection to the adapter of debugpy; `attached` gets the configuration of each announced process."""

    def __init__(self, host: str, port: int, attached: "list[dict[str, Any]]") -> None:
        self._attached = attached
        self._socket = _connected(host, port)
        self._file = self._socket.makefile("rb")
        self._number = 0
        self._children: list[Client] = []
        self._thread = threading.Thread(target=self._read, name="dap")

    def attach(self, **config: Any) -> "Client":
        """Begin the session; the debugged process goes on."""
        self._send("initialize", clientID="tests", adapterID="debugpy", supportsStartDebuggingRequest=False)
        self._send("attach", **config)
        self._thread.start()
        return self

    def join(self) -> None:
        """Wait until the process and all that it has started have ended."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        for child in self._children:
            child.join()
        self._file.close()
        self._socket.close()

    def _send(self, command: str, **arguments: Any) -> None:
        self._number += 1
        message = {"seq": self._number, "type": "request", "command": command, "arguments": arguments}
        content = json.dumps(message).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(content), content))

    def _read(self) -> None:
        while (message := self._message()) is not None:
            if message.get("event") == "initialized":
                self._send("configurationDone")
            elif message.get("event") == "terminated":
                self._send("disconnect")
            elif message.get("event") == "debugpyAttach":
                config = message["body"]
                self._attached.append(config)
                at = config["connect"]
                self._children.append(Client(at["host"], at["port"], self._attached).attach(**config))

    def _message(self) -> "dict[str, Any] | None":
        try:
            header = self._file.readline()
            if not header:
                return None
            self._file.readline()
            return json.loads(self._file.read(int(header.split(b":")[1])))
        except ConnectionResetError:
            return None


def await_adapter(endpoints: Path) -> None:
    """Wait until the adapter has written its endpoints to this file, the value of ``DEBUGPY_ADAPTER_ENDPOINTS``.

    The adapter listens for clients before it listens for debugged processes. The request of a client that comes in
    between makes it listen twice, and the adapter then accepts no further client.
    """
    deadline_s = time.monotonic() + PATIENCE_S
    while not endpoints.exists():
        assert time.monotonic() < deadline_s
        threading.Event().wait(0.02)


def _connected(host: str, port: int) -> socket.socket:
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return socket.create_connection((host, port), timeout=PATIENCE_S)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline_s
            threading.Event().wait(0.02)
