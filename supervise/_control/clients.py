"""The clients of the control server. Their requests become messages to the gang; its replies become lines.

Loaded when the first client connects, so that a run without clients does not pay for it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import select
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from supervise import messages as say
from supervise._control.connection import Connection
from supervise._control.protocol import Refusal, answer_line, error_line, parse
from supervise._control.requests import message_of, refusal_of, result_of
from supervise._control.service import StopAsked
from supervise._control.socket_file import peer

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from supervise._control.service import Service
    from supervise._runtime.loop import Loop, Timer

log = logging.getLogger("supervise")

MOST_CLIENTS = 32
A_TURN = 32
"""How many requests of all clients are handled per `TURN_S`, so that a flood does not slow the gang down."""
TURN_S = 0.02
_AT_ONCE = 16
"""How many clients are served before the loop does other work."""
_LOOK_S = 2.0
IDLE_S = 30.0
"""A client is dropped if it sends no request for this time, and none of its requests waits for an answer."""
SLOW_S = 10.0
"""A client that reads nothing of its answer for this time is dropped."""
_MOST_UNSENT_BYTES = 64 << 20
"""The largest sum of unread answers of all clients."""


class Clients:
    """All connected clients of one server. Used on the server's thread; no method blocks."""

    def __init__(self, service: Service, loop: Loop, served: Callable[[], object]) -> None:
        """Begin without clients.

        Args:
            service: The gang, and the requests that it accepts.
            loop: Of the server.
            served: Called after `finish`, when all clients have all their answers.

        Raises:
            OSError: There is no descriptor.
        """
        self._service = service
        self._loop = loop
        self._served = served
        self._epoll: select.epoll | None = select.epoll()
        """The sockets of the clients. The loop watches only for input; this set can watch for output, too."""
        loop.watch(self._epoll.fileno(), self._serve)
        self._clients: dict[int, Connection] = {}
        """By descriptor."""
        self._numbers = itertools.count()
        self._left = A_TURN
        """How many requests may be handled in this turn."""
        self._turn: Timer | None = None
        self._look: Timer | None = None
        self._ending = False

    def admit(self, end: socket.socket) -> None:
        """Take over the socket of a new client, or refuse it with a reason."""
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

    def finish(self) -> None:
        """Take no more requests; call `served` once the answers to all open requests are sent."""
        self._ending = True
        self._check_served()

    def release(self) -> None:
        """Answer open requests with an error, and close every descriptor. Idempotent."""
        epoll, self._epoll = self._epoll, None
        if epoll is None:
            return
        clients, self._clients = self._clients, {}
        for client in clients.values():
            for _, ident, _ in client.pending.values():
                refusal = Refusal("ended", "the gang has ended")
                refusal.id = ident
                with contextlib.suppress(OSError):
                    client.send(error_line(refusal))
            epoll.unregister(client.end)
            client.close()
        self._loop.unwatch(epoll.fileno())
        epoll.close()

    def close_in_child(self) -> None:
        """Close the descriptors of a forked child."""
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None
        for client in self._clients.values():
            client.end.close()
        self._clients = {}

    def _check_served(self) -> None:
        if self._ending and all(client.is_served for client in self._clients.values()):
            self._served()

    def _serve(self) -> None:
        if self._epoll is None:
            return
        for fd, events in self._epoll.poll(0, _AT_ONCE):
            if (client := self._clients.get(fd)) is not None:
                self._guard(client, partial(self._attend, client, events))

    def _guard(self, client: Connection, act: Callable[[], object]) -> None:
        """Call `act`; drop the client if that fails."""
        try:
            act()
        except OSError:  # the client has disconnected
            self._drop(client)
        except Exception:  # an error of the server concerns this client only, and must not be repeated forever
            log.exception("control socket: a client is dropped")
            self._drop(client)

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
            self._turn = self._turn or self._loop.call_later(TURN_S, self._next_turn)
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
        """Handle requests that wait for a turn. A served client goes to the end of the queue."""
        self._turn, self._left = None, A_TURN
        for fd, client in list(self._clients.items()):
            if fd in self._clients and client.has_line and client.may_ask and self._left:
                self._clients[fd] = self._clients.pop(fd)
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
        """End a connection, and send the client the reason if its socket accepts it."""
        if reason is not None:
            with contextlib.suppress(OSError):
                client.send(error_line(reason))
        fd = client.end.fileno()
        if self._clients.pop(fd, None) is not None and self._epoll is not None:
            self._epoll.unregister(fd)  # before the close: a child between vfork and exec may hold a copy
        client.close()
        self._check_served()

    # Requests

    def _ask(self, client: Connection, line: bytes) -> None:
        request = None
        try:
            request = parse(line)
            message = message_of(request)
            if request.name in self._service.without:
                raise Refusal("unsupported", f"this kind of gang has no {request.name}")  # noqa: TRY301
        except Refusal as refusal:
            refusal.id = request.id if request is not None else refusal.id
            client.send(error_line(refusal))
            return
        if isinstance(message, say.Close) and self._service.on_stop is not None:
            self._service.on_stop(StopAsked(message.death_sig, client.pid))
        reply: Any = self._service.gang.ask(message, block=False)
        number = next(self._numbers)
        client.pending[number] = request.name, request.id, reply
        reply.add_done_callback(partial(self._loop.post, self._answered, client, number))

    def _answered(self, client: Connection, number: int) -> None:
        """Send the answer to a request after its reply was set, unless the client has disconnected."""
        if (found := client.pending.pop(number, None)) is not None:
            self._guard(client, partial(self._answer, client, *found))
        self._check_served()

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
