"""One host of a gang: an ordinary Supervisor, the lease, and the news for the driver. An engine wraps it."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from functools import partial
from signal import SIGKILL, Signals
from typing import TYPE_CHECKING, Any, Literal, cast

import pykka

from supervise import messages as say
from supervise._gang.attempt import first_attempt
from supervise._gang.supervisor import Supervisor
from supervise._hosts import keeper
from supervise._hosts.plan import HostAddress, HostEnd, HostOrder, News, NewsKind
from supervise._runtime.future import Reply
from supervise._runtime.shell import CallbackSubscriber
from supervise.errors import SuperviseError

if TYPE_CHECKING:
    from collections.abc import Mapping


# The lease of a host. The ranks of the host run only as long as the driver renews the lease


_NS_PER_S = 1_000_000_000
_BYE_MS = 5000
_FIRST_S = 120.0
"""Length of the lease before its first renewal.

In this time, the host has no ranks and waits until the engine has made all hosts.
"""


class LeaseLost(Exception):  # noqa: N818  says what happened, as SupervisorCrashed does
    """The keeper of the lease has ended, so nothing would kill the ranks of a host that the driver cannot reach."""


class Lease:
    """A lease and its keeper. Thread-safe.

    A token is a time of this host. The driver sends each token back with its next renewal. The lease then lasts from
    the time of the token on. So the lease is never longer than the driver assumes, even if a renewal was delayed on its
    way, or if this host was frozen and read it late.
    """

    def __init__(self, lease_s: float, ip: str = "127.0.0.1", first_s: float = _FIRST_S) -> None:
        """Start the keeper. The driver connects to it at `ip`.

        Args:
            lease_s: Seconds for which a renewal lasts.
            ip: The address at which the keeper listens.
            first_s: Seconds for which the host, which has no ranks yet, may live before the first renewal.

        Raises:
            OSError: The keeper cannot be started.
        """
        self._lease_ns = int(lease_s * _NS_PER_S)
        self._lock = threading.Lock()
        command = [sys.executable, "-I", "-S", keeper.__file__, str(os.getpid()), str(max(lease_s, first_s)), ip]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
        )
        assert self._process.stdout is not None  # noqa: S101 - a pipe
        port = self._process.stdout.readline()
        code = self._process.wait(_BYE_MS / 1000)  # the keeper is its child
        if not port:
            self._process.stdout.close()
            raise OSError(errno.ECHILD, f"the keeper of the lease did not start; exit code {code}")
        self.port = int(port)
        """The TCP port of the keeper."""

    def renew(self, token: int) -> int:
        """Extend the lease to `lease_s` after `token`; return the next token. A `token` of 0 extends nothing.

        Raises:
            LeaseLost: The keeper has ended.
        """
        if token:
            self._say(f"lease {token + self._lease_ns}")
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def add(self, pid: int) -> None:
        """Make the keeper responsible for the process group of a rank."""
        self._say(f"rank {pid} {keeper.start_time(pid)}")

    def remove(self, pid: int) -> None:
        """End the responsibility of the keeper for a group of which nothing is left."""
        with contextlib.suppress(LeaseLost):
            self._say(f"gone {pid}")

    def end(self) -> None:
        """End the keeper of a host that no longer has ranks. Idempotent."""
        with contextlib.suppress(LeaseLost):
            self._say("bye")
        with self._lock:
            if self._process.stdin is not None:
                self._process.stdin.close()
        if self._process.stdout is not None and not self._process.stdout.closed:
            poll = select.poll()
            poll.register(self._process.stdout, 0)  # the pipe closes when the keeper ends
            poll.poll(_BYE_MS)
            self._process.stdout.close()

    def _say(self, line: str) -> None:
        with self._lock:
            stdin = self._process.stdin
            try:
                if stdin is None or stdin.closed:
                    raise BrokenPipeError
                stdin.write(f"{line}\n".encode())
            except OSError as error:
                raise LeaseLost("the keeper of the lease has ended") from error


# The news of a host, as a queue of numbered items that the driver reads by long polls


_MOST_OUTPUT_BYTES = 4 << 20
"""Limit on the output that waits for the driver.

Further output stays in the log files until the driver has read this.
"""
_BATCH = 256


class NewsQueue:
    """Queue of the news that the driver has not confirmed. Thread-safe.

    A poll names the number of the last item that the driver has. The queue then forgets all items up to this one. So
    the driver can repeat a poll whose reply was lost, and loses no item.
    """

    def __init__(self) -> None:
        """Begin empty."""
        self._changed = threading.Condition()
        self._queue: deque[News] = deque()
        self._count = 0
        self._output_bytes = 0
        self._full = False
        self._poll: Reply[list[News]] | None = None
        self._closed = False

    def add(self, kind: NewsKind, what: Any) -> None:
        """Add one item. An item of output blocks the caller while the driver has too much unread or unshown output."""
        size = len(what) if kind in ("stdout", "stderr") else 0
        with self._changed:
            if size:
                self._changed.wait_for(self._has_room)
            self._count += 1
            self._queue.append(News(self._count, kind, what))
            self._output_bytes += size
            self._answer()

    def _has_room(self) -> bool:
        return self._closed or (self._output_bytes < _MOST_OUTPUT_BYTES and not self._full)

    def after(self, number: int, full: bool = False) -> Reply[list[News]]:
        """Return a reply with the news after `number`. The reply is set as soon as there is any.

        The poll replaces an earlier one. `full` means that the driver has too much unshown output until the next poll.
        """
        reply: Reply[list[News]] = Reply()
        with self._changed:
            while self._queue and self._queue[0].number <= number:
                read = self._queue.popleft()
                self._output_bytes -= len(read.what) if read.kind in ("stdout", "stderr") else 0
            self._full = full
            self._changed.notify_all()
            earlier, self._poll = self._poll, reply
            if earlier is not None:
                earlier.set([])
            self._answer()
        return reply

    def close(self) -> None:
        """Answer the present poll, and let output that waits continue."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._answer()

    def _answer(self) -> None:
        """Answer the present poll if there is any news, or if the queue is closed."""
        found = [each for each, _ in zip(self._queue, range(_BATCH), strict=False)] if self._poll is not None else []
        if self._poll is not None and (found or self._closed):
            poll, self._poll = self._poll, None
            poll.set(found)


class NewsSink:
    """A destination of shown output, which becomes news for the driver."""

    is_console = True
    interruptible = False

    def __init__(self, news: NewsQueue, stream: Literal["stdout", "stderr"]) -> None:
        """Write to `news`, as output of `stream`."""
        self._add = partial(news.add, stream)

    def write(self, data: bytes | memoryview, _stop: object) -> None:
        """Add `data`. Block while the driver has too much unread output."""
        self._add(bytes(data))

    def close(self) -> None:
        """Do nothing: the news go on after the output."""


_RECORD = "SUPERVISE_RECORD"
"""A variable whose first word is the pid of the ranks' parent; see `supervise run`."""


class Host:
    """One host in one attempt, with its ranks. Thread-safe."""

    def __init__(self, order: HostOrder, ip: str = "127.0.0.1") -> None:
        """Start the keeper of the lease, but no rank. The driver reaches this host at `ip`.

        Raises:
            OSError: The keeper of the lease cannot be started.
        """
        self._order = order
        self._news = NewsQueue()
        self._lease = Lease(order.lease_s, ip)
        self._lock = threading.Lock()
        self._gang: pykka.ActorRef[Supervisor] | None = None
        self._start: Reply[dict[int, int]] | None = None
        self._starting: Reply[dict[int, int]] | None = None
        """The reply of the host's Supervisor. A reply that waits for another one is not held by that one."""
        self._told_to_stop = False

    def address(self, *, node_id: str, ip: str) -> HostAddress:
        """Return where this host runs. The engine knows the node and the address."""
        with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("", 0))
            port: int = probe.getsockname()[1]
        return HostAddress(
            host_name=os.uname().nodename,
            node_id=node_id,
            ip=ip,
            port=port,
            pid=os.getpid(),
            keeper_port=self._lease.port,
        )

    def renew(self, token: int) -> int:
        """Extend the lease; return the token for the next renewal. A `token` of 0 extends nothing.

        If the keeper has ended, kill the ranks.
        """
        try:
            return self._lease.renew(token)
        except LeaseLost:
            self.stop(SIGKILL, 0.0)
            raise

    def launch(self, envs: Mapping[int, Mapping[str, str]]) -> Reply[dict[int, int]]:
        """Start the ranks, once, with further variables; answer with ``{local rank: pid}`` when all ranks are ready.

        If they will not be, the answer is empty, and the news of the end have the reason.

        Raises:
            SuperviseError: The host was asked to stop before. The driver repeats a launch that was lost, and the second
                one may arrive after a stop.
            SpecError: A setting is not valid on this host.
            OSError: A log folder cannot be used.
        """
        with self._lock:
            if self._start is None:
                if self._told_to_stop:
                    raise SuperviseError("the host was asked to stop before its launch")
                self._start = self._launch(envs)
            return self._start

    def _launch(self, envs: Mapping[int, Mapping[str, str]]) -> Reply[dict[int, int]]:
        given = self._order.settings
        of_host: Any = {
            "envs": {rank: self._environment(env, envs[rank]) for rank, env in given["envs"].items()},
            # Without a listener a sink that ignores events: the driver shows a failure, so this Supervisor must not
            "event_sink": partial(self._news.add, "event") if self._order.sends_events else lambda _: None,
            "gate": isinstance(given["entrypoint"], str),
            "consoles": (NewsSink(self._news, "stdout"), NewsSink(self._news, "stderr")),
        }
        attempt = first_attempt(**given | of_host)
        attempt.number = self._order.epoch  # a restart, unlike a start, has no error before all are ready
        self._news.add("logs", (dict(attempt.dest.stdouts), dict(attempt.dest.stderrs)))
        self._gang = gang = Supervisor.start_attempt(attempt)
        gang.tell(say.Subscribe(ref=cast("Any", CallbackSubscriber(f"{gang.actor_urn}-of-a-host", self.told))))
        self._starting = start = cast("Reply[dict[int, int]]", gang.ask(say.Start(), block=False))
        threading.Thread(target=self._end, args=(gang,), name="supervise-host", daemon=True).start()
        started: Reply[dict[int, int]] = Reply()
        start.add_done_callback(lambda: started.set({} if start.error() is not None else start.get(timeout=0)))
        return started

    def _environment(self, given: Mapping[str, str], common: Mapping[str, str]) -> dict[str, str]:
        merged = {**common, **given}
        if _RECORD in merged:  # the driver does not know the pid of the ranks' parent
            merged[_RECORD] = f"{os.getpid()} {merged[_RECORD].partition(' ')[2]}"
        return merged

    def _end(self, gang: pykka.ActorRef[Supervisor]) -> None:
        """Wait until nothing is left of the ranks, then report their end."""
        try:
            result: Any = gang.ask(say.Wait())
            status: Any = gang.ask(say.Status())
            gang.ask(say.Close())
            end = HostEnd(result=result, status=status)
        except BaseException as error:
            end = HostEnd(error=error)
        gang.stop()
        self._news.add("ended", end)

    def news_after(self, number: int, full: bool) -> Reply[list[News]]:
        """Return a reply with the news after `number`; see `NewsQueue.after`."""
        return self._news.after(number, full)

    def status(self) -> pykka.Future[say.GangStatus] | None:
        """Return a reply with the state of the ranks; None before the launch."""
        return None if self._gang is None else self._gang.ask(say.Status(), block=False)

    def stop(self, sig: int | None, timeout_s: float | None) -> None:
        """Stop the ranks: send `sig` now and SIGKILL after `timeout_s`.

        None stands for the gang's own value.
        """
        with self._lock:  # a launch on another thread comes before or after this block
            self._told_to_stop = True
        if self._gang is not None:
            with contextlib.suppress(pykka.ActorDeadError):
                self._gang.tell(say.Close(death_sig=None if sig is None else Signals(sig), timeout=timeout_s))

    def signal(self, sig: int, ranks: frozenset[int] | None, group: bool) -> None:
        """Send a signal to running ranks, or to their process groups."""
        if self._gang is not None:
            with contextlib.suppress(pykka.ActorDeadError):
                self._gang.tell(say.Signal(sig=Signals(sig), ranks=ranks, group=group))

    def leave(self) -> None:
        """End the lease of a host that has no ranks. Kill ranks that run nevertheless."""
        self._news.close()
        if self._gang is not None and self._gang.is_alive():
            self.stop(SIGKILL, 0.0)
            with contextlib.suppress(pykka.ActorDeadError):
                self._gang.stop()
        self._lease.end()

    def told(self, message: object) -> None:
        """Handle a lifecycle message, on the gang's thread: the keeper is responsible for the ranks that run.

        The news for the driver are the messages about ranks.
        """
        if isinstance(message, say.WorkerStarted):
            try:
                self._lease.add(message.pid)
            except LeaseLost:
                self.stop(SIGKILL, 0.0)
        elif isinstance(message, say.WorkerExited) and not message.group_left:
            self._lease.remove(message.pid)
        if hasattr(message, "local_rank"):  # the driver itself tells of the whole gang
            self._news.add("worker", message)
