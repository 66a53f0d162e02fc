"""The control socket of a run: ``control.sock`` in its run directory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from supervise._control.server import ControlServer
from supervise._views.recorded_run import SOCKET
from supervise.cli.streams import complaint

if TYPE_CHECKING:
    import pykka

    from supervise.cli.run.console import Console
    from supervise.cli.run.signal_inbox import SignalInbox


_END_S = 2.0
_WITHOUT = {"ray": frozenset({"restart", "reload", "terminate", "stacks"})}
"""Engine to the requests that its gang does not accept."""


class RunControl:
    """The owner of a run's server. `open` starts the server."""

    def __init__(self) -> None:
        """Begin without a server."""
        self._server: ControlServer | None = None

    def open(
        self, directory: str, gang: pykka.ActorRef[Any], inbox: SignalInbox, console: Console, *, engine: str = "local"
    ) -> None:
        """Start the server. If that fails, show the error; the run continues without a server.

        Args:
            directory: The run directory.
            gang: The Supervisor of the run.
            inbox: Receives each `StopAsked`.
            console: Shows the error.
            engine: The engine of the run.
        """
        without = _WITHOUT.get(engine, frozenset[str]())
        server = ControlServer(
            os.path.join(directory, SOCKET),
            gang,
            name="run",
            on_stop=inbox.put,
            without=without,
        )
        try:
            server.start()
        except OSError as error:
            console.error(f"no control socket: {complaint(error)}")
        else:
            self._server = server

    def close(self) -> None:
        """Remove the socket, and let clients read their last answers for a moment. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            server.join(_END_S)
