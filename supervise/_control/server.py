"""The server of the control socket: one thread that accepts clients for a gang and never waits for one."""

from __future__ import annotations

import contextlib
import errno
import socket
from typing import TYPE_CHECKING, Any

from supervise._control.protocol import SocketFile
from supervise._runtime import fork_hooks
from supervise._runtime.descriptors import clear_of_stdio
from supervise._runtime.loop import Loop
from supervise.events import log

if TYPE_CHECKING:
    from collections.abc import Callable

    import pykka

    from supervise._control.clients import Clients
    from supervise.messages import Close

_AT_ONCE = 16
"""How many connections are accepted before the loop does other work."""
_RETRY_S = 0.5
"""Delay until the next attempt to accept a client, if no descriptor was left for it."""
_LAST_WORDS_S = 1.0
"""How long the server waits at its end for clients to read their answers."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_alive = fork_hooks.instances("control")


class ControlServer:
    """Accepts clients at a socket file, for one gang, until `close`. `clients.Connection` answers their requests."""

    def __init__(
        self,
        path: str,
        gang: pykka.ActorRef[Any],
        *,
        name: str,
        on_stop: Callable[[Close], object] | None = None,
        without: frozenset[str] = frozenset(),
    ) -> None:
        """Describe a server; `start` starts it.

        Args:
            path: Path of the socket file.
            gang: Its Supervisor.
            name: Name of the gang, for the name of the thread.
            on_stop: Called on the server's thread before a stop is requested. Must not block.
            without: The requests that this kind of gang does not accept.
        """
        self._gang, self._on_stop, self._without = gang, on_stop, without
        self._file = SocketFile(path)
        self._loop = Loop(f"supervise-{name}-control", lost=self._lost)
        self._clients: Clients | None = None
        """None until the first client connects."""
        self._ending = False

    def start(self) -> None:
        """Make the socket file and start the thread.

        Raises:
            FileExistsError: A process listens there already, or the file is not a socket.
            OSError: The file cannot be made, or there is no descriptor or thread. `filename` is the path, or None.
        """
        _alive.add(self)  # first, so that a forked child closes its copies
        self._file.open()
        try:
            self._loop.start()
        except BaseException:
            self._file.remove()
            self._file.close()
            raise
        self._loop.post(self._watch_listener)

    def close(self) -> None:
        """Remove the socket file, let clients read the answers that exist, and end the thread.

        Idempotent; callable from any thread; does not wait.
        """
        self._file.remove()
        self._loop.post(self._finish)

    def join(self, timeout_s: float) -> bool:
        """Wait after `close` until the thread has ended; return whether that happened within `timeout_s` seconds."""
        return self._loop.join(timeout_s)

    def _watch_listener(self) -> None:
        if self._file.listener is not None and not self._ending:
            self._loop.watch(self._file.listener.fileno(), self._accept)

    def _accept(self) -> None:
        listener = self._file.listener
        for _ in range(_AT_ONCE if listener is not None else 0):
            assert listener is not None  # noqa: S101 - checked above
            try:
                end, _address = listener.accept()
                self._admit(socket.socket(fileno=clear_of_stdio(end.detach())))
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:  # the listener stays readable: try again later
                    self._pause(listener)
                    return
                log.debug("control socket %s: a client was not accepted: %s", self._file.path, error)

    def _pause(self, listener: socket.socket) -> None:
        self._loop.unwatch(listener.fileno())
        self._loop.call_later(_RETRY_S, self._watch_listener)

    def _admit(self, end: socket.socket) -> None:
        try:
            if self._clients is None:
                from supervise._control.clients import Clients  # lazy: a run without clients does not need it

                self._clients = Clients(self._gang, self._on_stop, self._without, self._loop, self._end)
            self._clients.admit(end)
        except BaseException:
            end.close()
            raise

    # The end

    def _finish(self) -> None:
        if self._ending:
            return
        self._ending = True
        if self._file.listener is not None:
            self._loop.unwatch(self._file.listener.fileno())
            with contextlib.suppress(OSError):
                self._file.listener.shutdown(socket.SHUT_RDWR)  # clients that were not accepted see the end
        if self._clients is None:
            self._end()
        else:
            self._loop.call_later(_LAST_WORDS_S, self._end)
            self._clients.finish()

    def _end(self) -> None:
        """Close every descriptor and end the thread. Idempotent."""
        if self._clients is not None:
            self._clients.release()
        self._file.close()
        self._loop.end()

    def _lost(self, error: BaseException) -> None:
        """End the server after the selector of its loop has failed."""
        log.error("control socket %s: the selector failed: %r", self._file.path, error)
        self._file.remove()
        self._end()

    def close_in_child(self) -> None:
        """Close the descriptors in a forked child. Its copies would keep the socket alive."""
        if self._clients is not None:
            self._clients.close_in_child()
        self._file.forget()
