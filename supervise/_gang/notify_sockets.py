"""Notify protocol of systemd, the host's side: one datagram socket for each life of a rank, read on the gang's loop.

Each rank has its own socket, because the queue of a socket holds few datagrams (11 by default). On a common socket, one
rank that floods it would displace the heartbeats of the others.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from typing import TYPE_CHECKING, Literal

from supervise._gang.notify_protocol import Message, parse
from supervise._platform import why_refused
from supervise._process.containment.procfs import is_of_rank
from supervise._runtime import fork_hooks
from supervise._runtime.descriptors import clear_of_stdio

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise._runtime.loop import Loop, Timer

_MOST_BYTES = 4096
_CREDENTIALS = struct.Struct("iII")
"""Pid, uid and gid of the sender, as the kernel reports them."""
_ROOM = socket.CMSG_SPACE(_CREDENTIALS.size)
"""Room for the credentials, and for nothing else.

So the kernel closes the descriptors that come with a datagram, and none can leak. A barrier of the protocol ends when
its datagram is read, hence after all earlier datagrams.
"""
_A_TURN = 64
"""Number of datagrams to read before the loop handles other callbacks."""
_PAUSE_S = 0.01
_CALM_S = 0.1
_FULL, _ENOUGH = 8, 6
"""Numbers of datagrams: a queue that holds `_FULL` of them may overflow, and a reading should find `_ENOUGH`."""
_WHOLE_QUEUE = 1024
"""Limit that is higher than the length of the queue on any usual machine.

systemd sets ``net.unix.max_dgram_qlen`` to 512.
"""

_alive = fork_hooks.instances("notify_sockets")


Report = Literal["ready", "extended", "trigger", "stopping", "reloading", "reloaded"]
"""A report of a rank to which the gang must react. A life makes the reports ``ready`` and ``stopping`` only once.

``reloaded``: the rank, which was ready, has reported again that it is ready.
"""


class RankNotes:
    """The reports of a rank's life so far. Later datagrams change the object."""

    __slots__ = ("beat_ns", "dropped", "ready", "status", "step", "stopping")

    def __init__(self) -> None:
        """Begin without reports."""
        self.status: str | None = None
        """One line without control characters."""
        self.step: int | None = None
        self.beat_ns: int | None = None
        """Monotonic time at which the last heartbeat, or the last higher step, was read."""
        self.ready = self.stopping = False
        self.dropped = 0
        """Number of dropped datagrams: they were too long, or their sender is not a process of the rank."""


class _Socket:
    """The socket of one life."""

    __slots__ = ("end", "notes", "pid", "rank")

    def __init__(self, rank: int, end: socket.socket, notes: RankNotes) -> None:
        self.rank, self.end, self.notes = rank, end, notes
        self.pid = 0
        """Pid of the rank; 0 until the rank is launched. The socket is not read before the launch."""


class NotifySockets:
    """The notify sockets of one gang. Used on the gang's loop.

    All sockets are read together, at most every 0.1 s, so the regular heartbeats of many ranks cost only one wake-up.
    They are read more often while the gang waits for a rank to become ready, and while the queue of one rank would
    overflow otherwise. A datagram after a pause is read at once.
    """

    def __init__(self, loop: Loop, told: Callable[[int, Report, int], object]) -> None:
        """Begin without sockets.

        Args:
            loop: The gang's loop.
            told: Function that is called on the loop, also by `read_now`, with a rank, its report, and microseconds
                from now if the report is ``extended``, otherwise 0. The function may call every method, also `close`.
        """
        self._loop = loop
        self._told = told
        self.heard = False
        """Whether a rank has sent a heartbeat or a step."""
        self._sockets: dict[int, _Socket] = {}
        """Rank to its open socket."""
        self._notes: dict[int, RankNotes] = {}
        """Rank to the reports of its newest life."""
        self._epoll: select.epoll | None = None
        self._by_fd: dict[int, _Socket] = {}
        """The sockets in the common epoll set."""
        self._next: Timer | None = None
        """The timer for the next reading of the sockets; None while the loop watches the epoll set."""
        self._calm_s = _CALM_S
        """Seconds from one reading of the sockets to the next."""
        self._awaited: set[int] = set()
        """The ranks that are not ready yet."""
        _alive.add(self)

    def open(self, rank: int, address: str) -> None:
        """Make the socket for the next life of a rank, before its launch. Close the socket of the earlier life.

        Args:
            rank: Local rank.
            address: The address, from `new_address`.

        Raises:
            OSError: No descriptor is left; the text names the rank.
        """
        self.close(rank)
        self._notes[rank] = RankNotes()
        try:
            if self._epoll is None:
                self._epoll = select.epoll()
                self._watch_all()
            made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            end = socket.socket(fileno=clear_of_stdio(made.detach()))
            self._sockets[rank] = _Socket(rank, end, self._notes[rank])  # before the bind: a forked child closes it
            end.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # before the bind: no datagram lacks credentials
            end.bind(f"\0{address[1:]}")
        except OSError as error:
            self.close(rank)
            self._close_if_unused()
            why = why_refused(error.errno or 0, os.strerror(error.errno or 0))
            raise OSError(error.errno, f"{why}: local rank {rank} gets no notify socket") from error

    def launched(self, rank: int, pid: int, *, awaits_ready: bool = True) -> None:
        """Begin to read the socket of a rank. Its earlier datagrams are in the queue. No effect after `close`.

        Args:
            rank: Local rank.
            pid: Pid of its process, which leads a session.
            awaits_ready: Whether the gang waits for ``READY=1``.
        """
        one = self._sockets.get(rank)
        if one is None:
            return
        if self._epoll is not None:
            self._epoll.register(one.end.fileno(), select.EPOLLIN)
        self._by_fd[one.end.fileno()], one.pid = one, pid
        if awaits_ready:
            self._awaited.add(rank)

    def read_now(self, *ranks: int) -> None:
        """Handle the datagrams in the queues of ranks.

        This is needed before a deadline is judged, and after a rank has exited.
        """
        for rank in ranks:
            one = self._sockets.get(rank)
            if one is not None and one.pid:
                self._read(one, _WHOLE_QUEUE)

    def read_waiting(self) -> None:
        """Handle the datagrams in all queues, so that a `GangStatus` has what the ranks have reported."""
        for fd, _ in self._epoll.poll(0) if self._epoll is not None else ():
            if (one := self._by_fd.get(fd)) is not None:
                self._read(one, _WHOLE_QUEUE)

    def state(self, rank: int) -> RankNotes:
        """Return the reports of the newest life of a rank, also after `close`."""
        return self._notes.get(rank) or RankNotes()

    def close(self, rank: int) -> None:
        """Close the socket of a rank without reading it. Idempotent."""
        one = self._sockets.pop(rank, None)
        if one is None:
            return
        self._awaited.discard(rank)
        if self._by_fd.pop(one.end.fileno(), None) is not None and self._epoll is not None:
            self._epoll.unregister(one.end.fileno())
        one.end.close()
        self._close_if_unused()

    def close_all(self) -> None:
        """Close every socket. Idempotent."""
        for rank in list(self._sockets):
            self.close(rank)

    def end(self) -> None:
        """Close every socket and drop the callback. Idempotent."""
        self.close_all()
        self._told = lambda *_: None

    # Reading

    def _watch_all(self) -> None:
        self._next = None
        if self._epoll is not None:
            self._loop.watch(self._epoll.fileno(), self._begin_ticks)

    def _begin_ticks(self) -> None:
        if self._epoll is not None:
            self._loop.unwatch(self._epoll.fileno())
            self._tick()

    def _tick(self) -> None:
        """Read the sockets that have a datagram, and set the time of the next reading.

        If no socket has a datagram, let the loop watch them all.
        """
        found = [] if self._epoll is None else self._epoll.poll(0)
        if not found:
            self._watch_all()
            return
        most = max([1, *(self._read(one, _A_TURN) for fd, _ in found if (one := self._by_fd.get(fd)) is not None)])
        least_s = most * _PAUSE_S / _A_TURN
        limit_s = _PAUSE_S if self._awaited else _CALM_S
        self._calm_s = least_s if most >= _FULL else max(least_s, min(limit_s, self._calm_s * _ENOUGH / most))
        self._next = self._loop.call_later(self._calm_s, self._tick)

    def _close_if_unused(self) -> None:
        if self._epoll is None or self._sockets:
            return
        if self._next is None:
            self._loop.unwatch(self._epoll.fileno())
        else:
            self._next.cancel()
            self._next = None
        self._epoll.close()
        self._epoll = None

    def _read(self, one: _Socket, at_most: int) -> int:
        """Handle up to `at_most` datagrams; return their number. If it is `at_most`, there may be more."""
        for number in range(at_most):
            if one.end.fileno() < 0:
                return number
            try:
                datagram, ancillary, flags, _ = one.end.recvmsg(_MOST_BYTES, _ROOM)
            except BlockingIOError:
                return number
            except OSError:  # the kernel has no memory left
                return at_most
            if flags & socket.MSG_TRUNC or not _is_from(one.pid, ancillary):
                one.notes.dropped += 1
            else:
                self._handle(one, parse(datagram))
        return at_most

    def _handle(self, one: _Socket, message: Message) -> None:
        notes = one.notes
        if message.status is not None:
            notes.status = message.status
        if message.beat or (message.step is not None and (notes.step is None or message.step > notes.step)):
            notes.beat_ns = time.monotonic_ns()
            self.heard = True
        if message.step is not None:
            notes.step = message.step
        if message.reloading:
            self._told(one.rank, "reloading", 0)
        if message.ready:
            self._awaited.discard(one.rank)
            was_ready, notes.ready = notes.ready, True
            self._told(one.rank, "reloaded" if was_ready else "ready", 0)
        if message.extend_usec is not None:
            self._told(one.rank, "extended", message.extend_usec)
        if message.stopping and not notes.stopping:
            notes.stopping = True
            self._told(one.rank, "stopping", 0)
        if message.trigger:
            self._told(one.rank, "trigger", 0)

    def close_in_child(self) -> None:
        """Close the descriptors in a forked child, so that they do not keep the addresses in use."""
        for one in self._sockets.values():
            one.end.close()
        if self._epoll is not None:
            self._epoll.close()


def _is_from(leader: int, ancillary: list[tuple[int, int, bytes]]) -> bool:
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(data) == _CREDENTIALS.size:
            pid, uid, _ = _CREDENTIALS.unpack(data)
            return is_of_rank(pid, uid, leader)
    return False
