"""The driver's link to one host: renewals of the lease, news, and calls. Used on the driver's loop."""

from __future__ import annotations

import contextlib
import socket
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from supervise._hosts import decide
from supervise._runtime.loop import NO_TIMER, Loop
from supervise.recording import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from supervise._hosts.plan import HostAddress, HostOrder, News

    Done = Callable[[Any, BaseException | None], object]
    """Function that is called once, on any thread, with a value or an error."""


# The interface of an engine: it makes the hosts for one attempt, and transfers calls from the driver to them


class HostDead(Exception):  # noqa: N818  says what happened, as SupervisorCrashed does
    """The engine reports that a host has died."""


class HostUnavailable(Exception):  # noqa: N818  as above
    """A call has not reached its host, or its reply was lost. The host may be alive."""


class EngineHost(Protocol):
    """One host of an attempt, as the driver sees it."""

    address: HostAddress

    def call(self, method: str, *args: Any, done: Done) -> None:
        """Call a method of `supervise._hosts.host.Host`. An implementation must not block.

        Args:
            method: Name of the method.
            args: Arguments of the method.
            done: Gets the value, or an error. If the method returns an awaitable, the host awaits it. The error is
                `HostDead`, `HostUnavailable`, or the exception of the method.
        """


class Engine(Protocol):
    """Engine: it places hosts. Its methods must not block."""

    def place(self, orders: Sequence[HostOrder], done: Done) -> None:
        """Make a host for each order, or none at all.

        `done` gets the hosts in the order of `orders`, or the error.
        """

    def release(self, epoch: int) -> None:
        """Release the resources of an attempt, and kill the processes of its hosts. Idempotent.

        The caller may call this also while the attempt is being placed.
        """

    def close(self, done: Callable[[], object]) -> None:
        """Release everything. Call `done`, on any thread, when the engine does nothing more. This is the last call."""


# The driver's connection to the keeper of a host's lease
#
# On this connection, the keeper reports that the host and its ranks are dead.


_MOST_BYTES = 200
_GONE = b"gone "


class DeathNotice:
    """Reader of one line from the keeper. Used on the driver's loop.

    Only the line of the keeper is a proof. If the connection ends without the line, or if there is no connection, the
    driver waits for the end of the lease.
    """

    def __init__(self, loop: Loop, address: HostAddress, then: Callable[[str], object]) -> None:
        """Connect. Call `then` with the keeper's reason when the host and its ranks are dead."""
        self._loop = loop
        self._then = then
        self.why = ""
        """The keeper's reason; "" until the reason has arrived."""
        self._socket = socket.socket(socket.AF_INET6 if ":" in address.ip else socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._socket.connect_ex((address.ip, address.keeper_port))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        loop.watch(self._socket.fileno(), self._read)

    def _read(self) -> None:
        said = b""
        with contextlib.suppress(OSError):
            said = self._socket.recv(_MOST_BYTES)
        self.close()
        if said.startswith(_GONE):
            self.why = said[len(_GONE) :].decode(errors="replace").strip()
            self._then(self.why)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        if self._socket.fileno() >= 0:
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()


_RENEWALS_PER_LEASE = 10
_AGAIN_S = 0.2
_MARGIN_S = 1.0
"""Time after the end of the lease, in which the keeper kills the ranks and the ranks exit."""


class HostLink:
    """The link to one host of one attempt."""

    def __init__(
        self,
        loop: Loop,
        host: EngineHost,
        *,
        epoch: int,
        number: int,
        lease_s: float,
        step: Callable[[decide.Event], object],
        receive: Callable[[int, News], object],
        is_full: Callable[[], bool],
    ) -> None:
        """Make the link. `begin` starts it.

        Args:
            loop: The driver's loop.
            host: The host.
            epoch: Number of the attempt.
            number: Number of the host.
            lease_s: Length of the lease.
            step: Function that lets the core decide on an event.
            receive: Function that gets the number of the host, and each item of its news, in order.
            is_full: Function that returns whether the driver has so much output to show that hosts must send no more.
        """
        self._loop = loop
        self._host = host
        self._epoch = epoch
        self._number = number
        self._lease_s = lease_s
        self._step = step
        self._receive = receive
        self._is_full = is_full
        self._token = 0
        """The last token of the host; 0 until the host has sent one."""
        self._leased = False
        """Whether the host has got a renewal with its own token.

        From then on, the driver knows the end of the lease.
        """
        self._envs: dict[int, dict[str, str]] | None = None
        """The variables of a launch that waits for the lease."""
        self._read = 0
        """Number of the last item of news that was processed."""
        self._polls = 0
        self._holds = False
        """Whether the last poll has asked the host for no further output."""
        self.said = ""
        """What the engine has reported since the last reply of the host; "" if it has reported nothing."""
        self._heard_s = self._sent_s = time.monotonic()
        self._renewing = False
        self._over = False
        self._timer = NO_TIMER
        self._notice: DeathNotice | None = None
        self._awaiting: Callable[[], object] | None = None
        """The callback for the end of a lost host's lease."""

    def begin(self) -> None:
        """Renew the lease from now on, and read the news."""
        if self._host.address.keeper_port:
            with contextlib.suppress(OSError):  # such as EMFILE
                self._notice = DeathNotice(self._loop, self._host.address, self._died)
        self._renew()
        self._poll()

    def end(self) -> None:
        """Stop the renewals; ignore later replies and news. Idempotent."""
        self._over = True
        self._timer.cancel()
        if self._notice is not None:
            self._notice.close()

    def await_lease(self, then: Callable[[], object]) -> None:
        """Stop the renewals.

        Call `then` when the lease is over, or earlier if the keeper reports that the ranks are dead.
        """
        self._over, self._awaiting = True, then
        if self._notice is not None and self._notice.why:
            self._gone()
        else:
            self._loop.call_at(self._sent_s + self._lease_s + _MARGIN_S, self._gone)

    def _gone(self) -> None:
        then, self._awaiting = self._awaiting, None
        self.end()
        if then is not None:
            then()

    def _died(self, why: str) -> None:
        """Process the keeper's report that the host and its ranks are dead."""
        if self._awaiting is not None:
            self._gone()
        elif not self._over:
            self._lose(f"the keeper of its lease reports: {why}")

    def launch(self, envs: dict[int, dict[str, str]]) -> None:
        """Start the ranks of the host as soon as it has a lease; report the result.

        The first renewal only fetches a token, because the engine may have made this host long before the others.
        """
        if self._leased:
            here = self._epoch, self._number
            self._repeat(
                "launch",
                envs,
                done=lambda pids: pids and self._step(decide.HostStarted(*here, pids)),
                refused=lambda error: self._step(decide.HostNotStarted(*here, error)),
            )
        else:
            self._envs = envs

    def tell(self, method: str, *args: Any) -> None:
        """Call an idempotent method whose value and whose exception have no effect, until the call reaches the host."""
        self._repeat(method, *args, done=lambda _: None, refused=lambda _: None)

    def _repeat(
        self,
        method: str,
        *args: Any,
        done: Callable[[Any], object],
        refused: Callable[[BaseException], object] | None = None,
    ) -> None:
        """Call an idempotent method until it answers; then call `done` with its value, or `refused` with its exception.

        If the host is dead, or there is no `refused`, an exception means that the host is lost.
        """

        def again() -> None:
            if not self._over:
                self._repeat(method, *args, done=done, refused=refused)

        def answered(value: Any, error: BaseException | None) -> None:
            if isinstance(error, HostUnavailable):
                self._loop.call_later(_AGAIN_S, again)
            elif error is None:
                done(value)
            elif refused is None or isinstance(error, HostDead):
                self._lose(text_of(error) or type(error).__name__)
            else:
                refused(error)

        self.call(method, *args, done=answered)

    # The lease and the news

    def _renew(self) -> None:
        if self._over:
            return
        now_s = time.monotonic()
        silent_s = now_s - self._heard_s
        if silent_s > self._lease_s:
            self._lose(f"no contact for {silent_s:.1f} s; its ranks end with its lease")
            return
        self._timer = self._loop.call_later(self._lease_s / _RENEWALS_PER_LEASE, self._renew)
        if not self._renewing:
            self._send_renewal()

    def _send_renewal(self) -> None:
        self._renewing, self._sent_s = True, time.monotonic()
        self.call("renew", self._token, done=partial(self._renewed, self._token))

    def _renewed(self, sent: int, token: Any, error: BaseException | None) -> None:
        self._renewing = False
        if error is None:
            self._token, self._heard_s = token, time.monotonic()
            if sent and not self._leased:
                self._leased, envs = True, self._envs
                if envs is not None:
                    self.launch(envs)
            elif not sent:
                self._send_renewal()
        elif not isinstance(error, HostUnavailable):
            self._lose(text_of(error) or type(error).__name__)

    def _poll(self) -> None:
        if not self._over:
            self._polls += 1
            self._holds = self._is_full()
            self._repeat("news_after", self._read, self._holds, done=partial(self._got, self._polls))

    def resume(self) -> None:
        """Ask the host for further output, if the last poll has not."""
        if self._holds:
            self._poll()

    def _got(self, poll: int, news: list[News]) -> None:
        self._heard_s = time.monotonic()
        for each in news:
            if each.number > self._read and not self._over:
                self._read = each.number
                self._receive(self._number, each)
        if poll == self._polls:  # otherwise `resume` has replaced it
            self._poll()

    def _lose(self, why: str) -> None:
        if not self._over:
            self._step(decide.HostLost(self._epoch, self._number, why))

    def call(self, method: str, *args: Any, done: Callable[[Any, BaseException | None], object]) -> None:
        """Call a method once.

        `done` gets its value or its error on the loop, or is not called if the link ends before.
        """
        self._host.call(method, *args, done=lambda value, error: self._loop.post(self._reply, done, value, error))

    def _reply(self, done: Callable[..., object], value: Any, error: BaseException | None) -> None:
        if error is None:
            self.said = ""
        elif isinstance(error, (HostDead, HostUnavailable)):
            self.said = text_of(error)
        if not self._over:
            done(value, error)
