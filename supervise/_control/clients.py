"""The clients of the control server. Their requests become messages to the gang; its replies become lines.

Loaded when the first client connects, so that a run without clients does not pay for it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import time
from functools import partial
from signal import Signals
from typing import TYPE_CHECKING, Any

import pykka

from supervise import messages as say
from supervise._control.protocol import (
    MOST_LINE_BYTES,
    Refusal,
    Request,
    answer_line,
    error_line,
    parse,
    peer,
    shown,
)
from supervise._printable import printable
from supervise._record import NamedTuple, as_dict
from supervise._settings import check_seconds
from supervise.errors import PhaseError, SpecError
from supervise.events import log
from supervise.recording import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervise._runtime.future import Reply
    from supervise._runtime.loop import Loop, Timer
    from supervise.result import RunProcsResult
    from supervise.stacks import RankStacks


# One client of the control server: its buffers, with their bounds, and the requests that wait for an answer


MOST_PENDING = 8
"""How many requests of a client may wait for an answer. More stay in the socket, whose buffer is bounded."""
_CALM_BYTES = 256 << 10
"""A client with more unread answers than this is not read."""


class Connection:
    """A connected client. Used on the server's thread; no method blocks."""

    def __init__(self, end: socket.socket) -> None:
        """Take over a connected socket."""
        end.setblocking(False)
        self.end = end
        self.pending: dict[int, tuple[str, str | int | None, Reply[Any]]] = {}
        """Number to name, ``id`` and reply of each request that waits for its answer."""
        self.progress_s = time.monotonic()
        """When the client last sent a request, or read a part of an answer."""
        self.events = select.EPOLLIN
        """What the server's loop watches."""
        self.is_half_closed = False
        """Whether the client has closed its sending side."""
        self._received = bytearray()
        self.unsent = bytearray()

    def receive(self) -> None:
        """Read what has arrived, up to the length of a line.

        Raises:
            OSError: The connection is broken.
        """
        try:
            data = self.end.recv(MOST_LINE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        self._received += data
        self.is_half_closed = not data
        if not data and self._received and not self._received.endswith(b"\n"):
            self._received += b"\n"  # EOF also ends the last line

    @property
    def may_ask(self) -> bool:
        """Whether its next request may be handled."""
        return len(self.pending) < MOST_PENDING and len(self.unsent) < _CALM_BYTES

    @property
    def has_line(self) -> bool:
        """Whether a request has arrived and is not handled yet."""
        return b"\n" in self._received

    def next_line(self) -> bytes | None:
        """Return the next request; None until it is complete.

        Raises:
            Refusal: It is longer than allowed.
        """
        end = self._received.find(b"\n", 0, MOST_LINE_BYTES)
        if end < 0:
            if len(self._received) >= MOST_LINE_BYTES:
                raise Refusal("too-long", f"the line has more than {MOST_LINE_BYTES} bytes")
            return None
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        self.progress_s = time.monotonic()
        return line

    def send(self, line: bytes) -> None:
        """Send a line, now or when the client reads.

        Raises:
            OSError: The connection is broken.
        """
        if not self.unsent:
            self.progress_s = time.monotonic()
        self.unsent += line
        self.flush()

    def flush(self) -> None:
        """Send as much as the client's socket takes.

        Raises:
            OSError: The connection is broken.
        """
        while self.unsent:
            try:
                sent = self.end.send(self.unsent, socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                return
            del self.unsent[:sent]
            self.progress_s = time.monotonic()

    def wanted_events(self) -> int:
        """Return the events to watch: input unless a request is waiting, and output if an answer is waiting."""
        reads = self.may_ask and not self.is_half_closed and not self.has_line
        return (select.EPOLLIN if reads else 0) | (select.EPOLLOUT if self.unsent else 0)

    @property
    def is_served(self) -> bool:
        """Whether the client has received the answers to all its requests."""
        return not self.pending and not self.unsent

    @property
    def waits(self) -> bool:
        """Whether the client waits for the end of the gang."""
        return any(name == "wait" for name, _, _ in self.pending.values())

    def close(self) -> None:
        """Close the connection and abandon its requests."""
        self.pending.clear()
        self.unsent.clear()
        with contextlib.suppress(OSError):  # not connected any more
            self.end.shutdown(socket.SHUT_RDWR)  # a forked child may hold a copy of the descriptor
        self.end.close()


# The requests of the control protocol: their arguments become messages to a gang, and its replies become JSON


def _timeout(value: Any) -> float:
    try:
        check_seconds("timeout", value)
    except SpecError as error:
        raise Refusal("invalid", str(error)) from None
    return float(value)


def _signal(value: object) -> Signals:
    try:
        if isinstance(value, str):
            return Signals[f"SIG{value.upper().removeprefix('SIG')}"]
        if isinstance(value, int) and not isinstance(value, bool):
            return Signals(value)
    except (KeyError, ValueError):
        pass
    raise Refusal("invalid", f"'signal' is {shown(value)}; give a name, such as \"SIGTERM\", or a number")


def _group(value: object) -> bool:
    if not isinstance(value, bool):
        raise Refusal("invalid", f"'group' is {shown(value)}; give true or false")
    return value


def _ranks(value: object) -> frozenset[int]:
    if not isinstance(value, list) or not all(isinstance(each, int) and not isinstance(each, bool) for each in value):
        raise Refusal("invalid", f"'ranks' is {shown(value)}; give a list of local ranks, such as [0, 2]")
    return frozenset(value)


_ARGUMENTS: dict[str, Callable[[Any], object]] = {
    "timeout": _timeout,
    "signal": _signal,
    "ranks": _ranks,
    "group": _group,
}
"""Argument to the function that checks and converts its value."""


def _signal_message(given: Mapping[str, Any]) -> object:
    if "signal" not in given:
        raise Refusal("invalid", "'signal' is missing; give a name, such as \"SIGUSR1\", or a number")
    return say.Signal(sig=given["signal"], ranks=given.get("ranks"), group=given.get("group", False))


def _some_ranks(given: Mapping[str, Any]) -> frozenset[int]:
    ranks: frozenset[int] = given.get("ranks", frozenset())
    if not ranks:
        raise Refusal("invalid", "'ranks' is missing or empty; give a list of local ranks, such as [0, 2]")
    return ranks


# Answers


def refusal_of(error: BaseException, ident: str | int | None) -> Refusal:
    """Return the error reply for the exception with which a gang has replied."""
    if isinstance(error, pykka.ActorDeadError):
        return Refusal("ended", "the gang has ended", ident)
    text = printable(text_of(error)) or type(error).__name__
    is_invalid = isinstance(error, SpecError) and not isinstance(error, PhaseError)
    return Refusal("invalid" if is_invalid else "failed", text, ident)


def _status(status: say.GangStatus) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "phase": status.phase,
        "attempt": status.attempt,
        "running": sorted(status.running),
        "leftovers": sorted(status.leftovers),
        "waiters": status.waiters,
        "ranks": {rank: as_dict(row) for rank, row in sorted(status.ranks.items())},
    }


def _pids(pids: dict[int, int]) -> dict[str, Any]:
    return {"pids": dict(sorted(pids.items()))}


def _stacks(stacks: dict[int, RankStacks]) -> dict[str, Any]:
    from dataclasses import asdict  # lazy: few runs get this request

    from supervise.stacks import group_stacks

    return {"groups": group_stacks(stacks), "ranks": {rank: asdict(each) for rank, each in stacks.items()}}


def _end(result: RunProcsResult | None) -> dict[str, Any]:
    if result is None:
        return {"finished": False, "outcome": None, "root_cause": None, "exit_codes": {}}
    return {
        "finished": True,
        "outcome": result.outcome,
        "root_cause": result.root_cause,
        "exit_codes": {rank: end.exitcode for rank, end in sorted(result.ends.items())},
    }


class _Kind(NamedTuple):
    """A kind of request."""

    arguments: frozenset[str]
    message: Callable[[Mapping[str, Any]], object]
    """Returns the message to the gang for the arguments that are given, with the values that `_ARGUMENTS` returns."""
    result: Callable[[Any], dict[str, Any]]
    """Returns the JSON result for the gang's reply to the message."""


_RANKS = frozenset({"ranks"})
_KINDS = {
    "status": _Kind(frozenset(), lambda _: say.Status(), _status),
    "pids": _Kind(frozenset(), lambda _: say.Pids(), _pids),
    "stop": _Kind(
        frozenset({"signal", "timeout"}),
        lambda given: say.Close(death_sig=given.get("signal"), timeout=given.get("timeout")),
        _end,
    ),
    "restart": _Kind(_RANKS, lambda given: say.RestartRanks(_some_ranks(given)), _pids),
    "terminate": _Kind(_RANKS, lambda given: say.TerminateRanks(_some_ranks(given)), _pids),
    "reload": _Kind(_RANKS, lambda given: say.Reload(ranks=given.get("ranks")), lambda ranks: {"ranks": ranks}),
    "signal": _Kind(_RANKS | {"signal", "group"}, _signal_message, lambda ranks: {"ranks": sorted(ranks)}),
    "stacks": _Kind(_RANKS, lambda given: say.Stacks(ranks=given.get("ranks")), _stacks),
    "wait": _Kind(frozenset({"timeout"}), lambda given: say.Wait(timeout=given.get("timeout")), _end),
}
"""The kinds of requests by their names."""


def message_of(request: Request) -> object:
    """Return the message that a request sends to the gang.

    Raises:
        Refusal: The request does not exist, or an argument is not valid.
    """
    if request.name not in _KINDS:
        known = ", ".join(_KINDS)
        raise Refusal("bad-request", f"{shown(request.name)} is not a request; this server accepts {known}")
    if unknown := sorted(request.arguments.keys() - _KINDS[request.name].arguments):
        raise Refusal("bad-request", f"{request.name} has no argument {shown(unknown[0])}")
    given = {name: _ARGUMENTS[name](value) for name, value in request.arguments.items() if value is not None}
    return _KINDS[request.name].message(given)


MOST_CLIENTS = 64
MOST_WAITS = 48
"""How many clients may wait for the end of the gang. Others, such as ``supervise stop``, so have a place."""
A_TURN = 32
"""How many requests of all clients are handled per `TURN_S`, so that a flood does not slow the gang down."""
TURN_S = 0.02
_LOOK_S = 2.0
IDLE_S = 30.0
"""A client is dropped if it sends no request for this time, and none of its requests waits for an answer."""
SLOW_S = 10.0
"""A client that reads nothing of its answer for this time is dropped."""
_MOST_UNSENT_BYTES = 64 << 20
"""The largest sum of unread answers of all clients."""


class Clients:
    """All connected clients of one server. Used on the server's thread; no method blocks."""

    def __init__(
        self,
        gang: pykka.ActorRef[Any],
        on_stop: Callable[[say.Close], object] | None,
        without: frozenset[str],
        loop: Loop,
        served: Callable[[], object],
    ) -> None:
        """Begin without clients.

        Args:
            gang: The Supervisor.
            on_stop: Called on the server's thread before a stop is requested. Must not block.
            without: The requests that this kind of gang does not accept.
            loop: Of the server.
            served: Called after `finish`, when all clients have all their answers.
        """
        self._gang, self._on_stop, self._without = gang, on_stop, without
        self._loop = loop
        self._served = served
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
        _, uid = peer(end)
        client = Connection(end)
        if uid not in (0, os.geteuid()):
            self._drop(client, Refusal("refused", f"this run belongs to user {os.geteuid()}, and you are user {uid}"))
        elif len(self._clients) >= MOST_CLIENTS and not self._make_room():
            self._drop(client, Refusal("too-many", f"{MOST_CLIENTS} clients wait for answers already; try again later"))
        else:
            self._loop.watch(end.fileno(), partial(self._serve, client))
            self._clients[end.fileno()] = client
            self._look = self._look or self._loop.call_later(_LOOK_S, self._look_at_clients)

    def _make_room(self) -> bool:
        """Drop the client that has been idle for the longest time; return whether there was an idle one."""
        idle = [client for client in self._clients.values() if client.is_served and not client.has_line]
        if idle:
            self._drop(
                min(idle, key=lambda client: client.progress_s), Refusal("idle", "another client needs the connection")
            )
        return bool(idle)

    def finish(self) -> None:
        """Take no more requests; call `served` once the answers to all open requests are sent."""
        self._ending = True
        self._check_served()

    def release(self) -> None:
        """Answer open requests with an error, and close every descriptor. Idempotent."""
        clients, self._clients = self._clients, {}
        for fd, client in clients.items():
            for _, ident, _ in client.pending.values():
                with contextlib.suppress(OSError):
                    client.send(error_line(Refusal("ended", "the gang has ended", ident)))
            self._loop.unwatch(fd)
            client.close()

    def close_in_child(self) -> None:
        """Close the descriptors of a forked child."""
        for client in self._clients.values():
            client.end.close()
        self._clients = {}

    def _check_served(self) -> None:
        if self._ending and all(client.is_served for client in self._clients.values()):
            self._served()

    def _serve(self, client: Connection) -> None:
        self._guard(client, partial(self._attend, client, self._loop.events))

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
        if client.is_half_closed and client.is_served and not client.has_line:
            self._drop(client)
            return
        wanted = client.wanted_events()
        if wanted != client.events and client.end.fileno() in self._clients:
            client.events = wanted
            self._loop.watch_for(client.end.fileno(), wanted)

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
            if client.unsent and idle_s > SLOW_S:
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
        if self._clients.pop(fd, None) is not None:
            self._loop.unwatch(fd)
        client.close()
        self._check_served()

    # Requests

    def _ask(self, client: Connection, line: bytes) -> None:
        request = None
        try:
            request = parse(line)
            message = message_of(request)
            if request.name in self._without:
                raise Refusal("unsupported", f"this kind of gang has no {request.name}")  # noqa: TRY301
            if request.name == "wait" and sum(each.waits for each in self._clients.values()) >= MOST_WAITS:
                raise Refusal("too-many", f"{MOST_WAITS} clients wait for the end already; try again later")  # noqa: TRY301
        except Refusal as refusal:
            refusal.id = request.id if request is not None else refusal.id
            client.send(error_line(refusal))
            return
        if isinstance(message, say.Close) and self._on_stop is not None:
            self._on_stop(message)
        reply: Any = self._gang.ask(message, block=False)
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
            line = answer_line(ident, _KINDS[name].result(reply.get(timeout=0)))
            if len(line) + sum(len(each.unsent) for each in self._clients.values()) > _MOST_UNSENT_BYTES:
                line = error_line(Refusal("too-large", f"the answer has {len(line)} bytes; ask for fewer ranks", ident))
        except BaseException as error:
            line = error_line(refusal_of(error, ident))
        client.progress_s = time.monotonic()
        client.send(line)
        self._take(client)
