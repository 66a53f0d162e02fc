"""The server of the control socket: one thread that passes the requests of clients to a gang and never waits."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import select
import socket
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from supervise import messages as say
from supervise._control.connection import Connection
from supervise._control.protocol import Refusal, answer_line, error_line, parse
from supervise._control.requests import message_of, refusal_of, result_of
from supervise._control.socket_file import SocketFile, clear_of_streams, peer
from supervise._runtime import fork_hooks
from supervise._runtime.loop import Loop

if TYPE_CHECKING:
    from collections.abc import Callable
    from signal import Signals

    import pykka

    from supervise._runtime.loop import Timer

log = logging.getLogger("supervise")

MOST_CLIENTS = 32
_A_TURN = 32
"""How many requests are handled per `_TURN_S`, of all clients together: a flood must not slow the gang down."""
_TURN_S = 0.02
_AT_ONCE = 16
"""How many connections are accepted, or clients served, before the loop does other work."""
_LOOK_S = 2.0
IDLE_S = 30.0
"""A client without a request that waits for its answer is dropped after this time."""
SLOW_S = 10.0
"""A client that reads nothing of its answer for this time is dropped."""
_MOST_UNSENT_BYTES = 64 << 20
"""The largest sum of unread answers of all clients."""
_LAST_WORDS_S = 1.0
"""How long the end waits for clients to read their answers."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_alive: weakref.WeakSet[ControlServer] = weakref.WeakSet()


class StopAsked(NamedTuple):
    """A client asks for a stop of the gang."""

    sig: Signals | None
    """The first signal; None: the gang's."""
    pid: int
    """Process ID of the client."""


class ControlServer:
    """Answers the requests that arrive at a socket file, for one gang, until `close`."""

    def __init__(
        self,
        path: str,
        gang: pykka.ActorRef[Any],
        *,
        name: str,
        on_stop: Callable[[StopAsked], object] | None = None,
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
        self._gang = gang
        self._on_stop = on_stop
        self._without = without
        self._file = SocketFile(path)
        self._loop = Loop(f"supervise-{name}-control", lost=self._lost)
        self._epoll: select.epoll | None = None
        """The sockets. The loop watches this set, which can watch for output, too."""
        self._clients: dict[int, Connection] = {}
        """By descriptor."""
        self._numbers = itertools.count()
        self._left = _A_TURN
        """How many requests may be handled in this turn."""
        self._turn: Timer | None = None
        self._look: Timer | None = None
        self._ending = False

    def start(self) -> None:
        """Make the socket file and start the thread.

        Raises:
            FileExistsError: A process listens there already, or the file is not a socket.
            OSError: The file cannot be made, or there is no descriptor or thread. `filename` is the path.
        """
        _alive.add(self)  # first: a forked child closes what it has copied
        self._file.open()
        try:
            self._epoll = select.epoll()
            assert self._file.listener is not None  # noqa: S101 - open
            self._epoll.register(self._file.listener, select.EPOLLIN)
            self._loop.start()
        except BaseException:
            self._file.remove()
            self._release()
            raise
        self._loop.post(self._begin)

    def _begin(self) -> None:
        if self._epoll is not None:
            self._loop.watch(self._epoll.fileno(), self._serve)

    def close(self) -> None:
        """Remove the socket file, let clients read the answers that exist, and end the thread.

        Idempotent; callable from any thread; does not wait.
        """
        self._file.remove()
        self._loop.post(self._finish)

    def join(self, timeout_s: float) -> bool:
        """Wait after `close` until the thread has ended; return whether it has within `timeout_s` seconds."""
        return self._loop.join(timeout_s)

    # Clients

    def _serve(self) -> None:
        if self._epoll is None:
            return
        listener = self._file.listener
        for fd, events in self._epoll.poll(0, _AT_ONCE):
            if listener is not None and fd == listener.fileno():
                self._accept(listener)
            elif (client := self._clients.get(fd)) is not None:
                self._guard(client, partial(self._attend, client, events))

    def _guard(self, client: Connection, act: Callable[[], object]) -> None:
        """Call `act`; drop the client if that fails."""
        try:
            act()
        except OSError:  # the client has gone
            self._drop(client)
        except Exception:  # an error of the server concerns this client only, and must not be repeated forever
            log.exception("control socket: a client is dropped")
            self._drop(client)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                end, _ = listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:  # the socket stays readable: look again later
                    self._watch_listener(on=False)
                    self._loop.call_later(_LOOK_S, partial(self._watch_listener, on=True))
                    return
                continue
            self._admit(socket.socket(fileno=clear_of_streams(end.detach())))

    def _watch_listener(self, *, on: bool) -> None:
        if self._epoll is not None and self._file.listener is not None:
            self._epoll.modify(self._file.listener, select.EPOLLIN if on else 0)

    def _admit(self, end: socket.socket) -> None:
        pid, uid = peer(end)
        client = Connection(end, pid)
        refusal = None
        if uid not in (0, os.geteuid()):
            refusal = Refusal("refused", f"this run belongs to user {os.geteuid()}, and you are user {uid}")
        elif len(self._clients) >= MOST_CLIENTS:
            refusal = Refusal("too-many", f"{MOST_CLIENTS} clients are connected already; try again later")
        if refusal is not None or self._epoll is None:
            with contextlib.suppress(OSError):
                client.send(error_line(refusal or Refusal("ended", "the gang has ended")))
            client.close()
            return
        self._epoll.register(end, client.events)
        self._clients[end.fileno()] = client
        self._look = self._look or self._loop.call_later(_LOOK_S, self._look_at_clients)

    def _attend(self, client: Connection, events: int) -> None:
        if events & select.EPOLLOUT:
            client.flush()
        if events & select.EPOLLIN:
            client.receive()
        self._take(client)
        if events & (select.EPOLLHUP | select.EPOLLERR):
            self._drop(client)

    def _take(self, client: Connection) -> None:
        """Handle the requests of a client that have arrived, as far as the limits permit."""
        while client.may_ask and self._left > 0 and not self._ending:
            try:
                line = client.next_line()
            except Refusal as refusal:
                self._drop(client, refusal)
                return
            if line is None:
                break
            self._left -= 1
            self._turn = self._turn or self._loop.call_later(_TURN_S, self._next_turn)
            self._ask(client, line)
        self._watch(client)

    def _watch(self, client: Connection) -> None:
        if client.is_over:
            self._drop(client)
            return
        wanted = client.wanted_events()
        if wanted != client.events and self._epoll is not None and client.end.fileno() in self._clients:
            client.events = wanted
            self._epoll.modify(client.end, wanted)

    def _next_turn(self) -> None:
        self._turn, self._left = None, _A_TURN
        for client in list(self._clients.values()):
            if client.has_line:
                self._guard(client, partial(self._take, client))

    def _look_at_clients(self) -> None:
        """Drop the clients that have done nothing for too long."""
        now_s = time.monotonic()
        for client in list(self._clients.values()):
            idle_s = now_s - client.progress_s
            if client.unsent_bytes and idle_s > SLOW_S:
                self._drop(client)
            elif client.is_served and idle_s > IDLE_S:
                self._drop(client, Refusal("idle", f"no request in {IDLE_S:.0f} s"))
        self._look = self._loop.call_later(_LOOK_S, self._look_at_clients) if self._clients else None

    def _drop(self, client: Connection, reason: Refusal | None = None) -> None:
        """End a connection, and tell the client why if its socket takes it."""
        if reason is not None:
            with contextlib.suppress(OSError):
                client.send(error_line(reason))
        fd = client.end.fileno()
        if self._clients.pop(fd, None) is not None and self._epoll is not None:
            self._epoll.unregister(fd)  # before the close: a child between vfork and exec may hold a copy
        client.close()
        if self._ending:
            self._end_if_served()

    # Requests

    def _ask(self, client: Connection, line: bytes) -> None:
        request = None
        try:
            request = parse(line)
            message = message_of(request)
            if request.name in self._without:
                raise Refusal("unsupported", f"this kind of gang has no {request.name}")  # noqa: TRY301
        except Refusal as refusal:
            refusal.id = request.id if request is not None else refusal.id
            client.send(error_line(refusal))
            return
        if isinstance(message, say.Close) and self._on_stop is not None:
            self._on_stop(StopAsked(message.death_sig, client.pid))
        reply: Any = self._gang.ask(message, block=False)
        number = next(self._numbers)
        client.pending[number] = request.name, request.id, reply
        reply.add_done_callback(partial(self._loop.post, self._answered, client, number))

    def _answered(self, client: Connection, number: int) -> None:
        """Send the answer to a request, whose reply is set, unless the client has gone."""
        if (found := client.pending.pop(number, None)) is not None:
            self._guard(client, partial(self._answer, client, *found))
        if self._ending:
            self._end_if_served()

    def _answer(self, client: Connection, name: str, ident: str | int | None, reply: Any) -> None:
        try:
            line = answer_line(ident, result_of(name, reply.get(timeout=0)))
            if len(line) + sum(each.unsent_bytes for each in self._clients.values()) > _MOST_UNSENT_BYTES:
                raise Refusal("too-large", f"the answer has {len(line)} bytes; ask for fewer ranks")  # noqa: TRY301
        except BaseException as error:
            refusal = error if isinstance(error, Refusal) else refusal_of(error)
            refusal.id = ident
            line = error_line(refusal)
        client.progress_s = time.monotonic()
        client.send(line)
        self._take(client)

    # The end

    def _finish(self) -> None:
        if self._ending:
            return
        self._ending = True
        if self._file.listener is not None and self._epoll is not None:
            self._epoll.unregister(self._file.listener)
            with contextlib.suppress(OSError):
                self._file.listener.shutdown(socket.SHUT_RDWR)  # clients that were not accepted see the end
        self._loop.call_later(_LAST_WORDS_S, self._end)
        self._end_if_served()

    def _end_if_served(self) -> None:
        if all(client.is_served for client in self._clients.values()):
            self._end()

    def _end(self) -> None:
        """Answer what is still open, close every descriptor and end the thread. Idempotent."""
        for client in list(self._clients.values()):
            for _, ident, _ in client.pending.values():
                refusal = Refusal("ended", "the gang has ended")
                refusal.id = ident
                with contextlib.suppress(OSError):
                    client.send(error_line(refusal))
        if self._epoll is not None:
            self._loop.unwatch(self._epoll.fileno())
        self._release()
        self._loop.end()

    def _release(self) -> None:
        clients, self._clients = self._clients, {}
        for client in clients.values():
            if self._epoll is not None:
                self._epoll.unregister(client.end)
            client.close()
        epoll, self._epoll = self._epoll, None
        if epoll is not None:
            epoll.close()
        self._file.close()

    def _lost(self, error: BaseException) -> None:
        """End without the loop: its selector has failed."""
        log.error("control socket %s: the selector failed: %r", self._file.path, error)
        self._file.remove()
        self._release()

    def close_in_child(self) -> None:
        """Close the descriptors in a forked child, which would otherwise keep the socket alive."""
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None
        for client in self._clients.values():
            client.end.close()
        self._clients = {}
        self._file.forget()


def _close_in_child() -> None:
    for each in list(_alive):
        each.close_in_child()


fork_hooks.register("control", in_child=_close_in_child)
