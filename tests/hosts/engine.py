"""An engine whose hosts are processes of this machine. A test can cut their links, and knows their pids."""

import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from supervise._hosts.link import HostDead, HostUnavailable
from supervise._hosts.plan import HostAddress, HostOrder
from tests.hosts.host_process import LENGTH, frame

ROOT = Path(__file__).parents[2]
Done = Callable[[Any, BaseException | None], object]
LEAVE_S = 5.0


def lost_node() -> BaseException:
    """Return the error of a host whose node is gone for good."""
    return HostDead("its node does not answer")


class ProcessHost:
    """One host process, and the thread that reads its replies."""

    def __init__(self, order: HostOrder, *, has_notice: bool) -> None:
        """Start the process."""
        self.order = order
        self.calls: list[tuple[Any, ...]] = []
        """What the driver has called: method and arguments."""
        self._lock = threading.Lock()
        self.holds_launch = False
        """Whether a launch waits for `let_launch`, as if the network had delayed it."""
        self.loses_launch = False
        """Whether no launch comes to this host before a stop."""
        self._held: tuple[tuple[Any, ...], Done] | None = None
        self._down: BaseException | None = None
        self._dead = False
        self._count = 0
        self._pending: dict[int, Done] = {}
        self.reader: threading.Thread | None = None
        self._socket, there = socket.socketpair()
        words = [sys.executable, "-m", "tests.hosts.host_process", str(there.fileno())]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with there:
            self.process = subprocess.Popen(words, pass_fds=[there.fileno()], env=environment)
        self._source = self._socket.makefile("rb")
        self._has_notice = has_notice

    def send_order(self) -> None:
        """Make the host."""
        self._socket.sendall(frame(self.order))

    def begin(self) -> None:
        """Wait for the address; raise EOFError if the process has ended."""
        address: HostAddress = self._receive()
        self.keeper_port = address.keeper_port
        self.address = replace(
            address,
            host_name=f"h{self.order.number}",
            keeper_port=address.keeper_port if self._has_notice else 0,
        )
        self.reader = threading.Thread(target=self._read, name=f"test-host-{self.order.number}", daemon=True)
        self.reader.start()

    def call(self, method: str, *args: Any, done: Done) -> None:
        """Call a method; see `EngineHost.call`."""
        error: BaseException | None = None
        with self._lock:
            self.calls.append((method, *args))
            if method == "launch" and self.holds_launch:
                self._held = (args, done)
                return
            if method == "launch" and self.loses_launch and not any(call[0] == "stop" for call in self.calls):
                error = HostUnavailable("the launch was lost")
        if error is not None:
            done(None, error)
            return
        with self._lock:
            if self._down is not None:
                error = self._down
            elif self._dead:
                error = HostDead("its process has ended")
            else:
                self._count += 1
                self._pending[self._count] = done
                with suppress(OSError):  # the reader finds the end, and answers
                    self._socket.sendall(frame((self._count, method, args)))
        if error is not None:
            done(None, error)

    def let_launch(self) -> None:
        """Let the launch come that was held."""
        with self._lock:
            held, self._held, self.holds_launch = self._held, None, False
        if held is not None:
            self.call("launch", *held[0], done=held[1])

    def cut(self, error: BaseException | None = None) -> None:
        """Take the link down: calls fail with `error`, by default `HostUnavailable`, and their replies are lost."""
        with self._lock:
            self._down = down = error or HostUnavailable("the link is down")
            pending, self._pending = self._pending, {}
        for done in pending.values():
            done(None, down)

    def join(self) -> None:
        """Take the link up."""
        with self._lock:
            self._down = None

    @property
    def is_cut(self) -> bool:
        return self._down is not None

    def end(self) -> None:
        """Kill and reap the process. Idempotent."""
        self.kill()
        if self.reader is None:
            self._reap()
        else:
            self.reader.join()

    def kill(self, sig: int = 9) -> None:
        """Signal the process, unless it was reaped."""
        self.process.send_signal(sig)

    def _receive(self) -> Any:
        head = self._source.read(LENGTH.size)
        if len(head) < LENGTH.size:
            raise EOFError("the host process has ended")
        return pickle.loads(self._source.read(LENGTH.unpack(head)[0]))

    def _read(self) -> None:
        try:
            while True:
                number, value, error = self._receive()
                with self._lock:
                    done = self._pending.pop(number, None)
                if done is not None:
                    done(value, error)
        except (EOFError, OSError, pickle.UnpicklingError):
            self._reap()

    def _reap(self) -> None:
        self.process.kill()
        self.process.wait()
        with self._lock:
            self._dead = True
            pending, self._pending = self._pending, {}
            self._source.close()
            self._socket.close()
        for done in pending.values():
            done(None, HostDead("its process has ended"))


class ProcessEngine:
    """Places each host as a process. `hosts` are those of the last attempt, `attempts` those of each."""

    def __init__(
        self,
        *,
        has_notice: bool = True,
        attempts: int | None = None,
        slow: Collection[int] = (),
        loses_launch: Collection[int] = (),
        keeps_cut: bool = False,
        last_after_s: float = 0,
        change: Callable[[HostOrder], HostOrder] = lambda order: order,
    ) -> None:
        """Prepare.

        Args:
            has_notice: Whether the driver can connect to the keepers. Without it, a cut link cuts all.
            attempts: For how many attempts there is room.
            slow: Hosts to which a launch comes only by `ProcessHost.let_launch`.
            loses_launch: Hosts to which no launch comes before a stop; the driver repeats it.
            keeps_cut: Whether a release does not reach the hosts whose links are down, until the engine is closed.
            last_after_s: How much later than the others the last host is made.
            change: Changes the order of a host.
        """
        self._has_notice = has_notice
        self._attempts = attempts
        self._slow = slow
        self._loses_launch = loses_launch
        self._keeps_cut = keeps_cut
        self._last_after_s = last_after_s
        self._change = change
        self._threads: list[threading.Thread] = []
        self.attempts: dict[int, list[ProcessHost]] = {}
        self._released: set[int] = set()
        self._lock = threading.Lock()

    @property
    def hosts(self) -> list[ProcessHost]:
        return self.attempts[max(self.attempts)]

    def place(self, orders: Sequence[HostOrder], done: Done) -> None:
        """Start the processes, on a thread of its own."""
        self._begin(self._place, orders, done)

    def _place(self, orders: Sequence[HostOrder], done: Done) -> None:
        epoch = orders[0].epoch
        if self._attempts is not None and epoch >= self._attempts:
            done(None, OSError(28, "no room for the hosts"))
            return
        hosts = [ProcessHost(self._change(order), has_notice=self._has_notice) for order in orders]
        for host in hosts:
            host.holds_launch = host.order.number in self._slow
            host.loses_launch = host.order.number in self._loses_launch
        try:
            for host in hosts[: None if self._last_after_s == 0 else -1]:
                host.send_order()
            if self._last_after_s:
                threading.Event().wait(self._last_after_s)  # it lasts until the node of the last one has room
                hosts[-1].send_order()
            for host in hosts:
                host.begin()
            self._keep(epoch, hosts)
        except BaseException as error:
            for host in hosts:
                host.end()
            done(None, error)
            return
        done(hosts, None)

    def _keep(self, epoch: int, hosts: list[ProcessHost]) -> None:
        with self._lock:
            if epoch in self._released:
                raise OSError(125, "the attempt was released meanwhile")
            self.attempts[epoch] = hosts

    def release(self, epoch: int) -> None:
        """End the processes of an attempt; the driver has asked them to leave."""
        with self._lock:
            if epoch in self._released:
                return
            self._released.add(epoch)
        self._begin(self._release, self.attempts.get(epoch, []))

    def _release(self, hosts: Sequence[ProcessHost]) -> None:
        for host in hosts:
            left = threading.Event()
            host.call("leave", done=lambda _value, _error, left=left: left.set())
            left.wait(LEAVE_S)
            if not self._keeps_cut or not host.is_cut:
                host.end()

    def close(self, done: Callable[[], object]) -> None:
        """Release all, and call `done` behind it."""
        self._keeps_cut = False
        for hosts in self.attempts.values():
            self._begin(self._release, hosts)
        with self._lock:
            self._released.update(range(1000))
            threads = list(self._threads)

        def finish() -> None:
            for thread in threads:
                thread.join()
            done()

        self._begin(finish)

    def _begin(self, target: Callable[..., object], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, name="test-engine", daemon=True)
        self._threads.append(thread)
        thread.start()
