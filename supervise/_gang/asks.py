"""The asks that every gang accepts, on one host or several: their dispatch, and the checks of their arguments.

The module also has the reports of the actors of a gang that are not events of the core.
"""

from __future__ import annotations

import signal
from operator import index
from typing import TYPE_CHECKING, Any

from supervise import messages as say
from supervise._record import NamedTuple
from supervise._runtime.shell import Subscribers, SupervisorShell, check_ref, check_timeout, refusing
from supervise.errors import PhaseError, SpecError, SuperviseError
from supervise.recording import repr_of

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from supervise._core.model import Gang
    from supervise._runtime.future import Reply
    from supervise.result import RunProcsResult


# Checks of the arguments of asks to a Supervisor


@refusing
def as_signal(what: str, value: Any) -> signal.Signals:
    """Return the signal for a `Signals` member or a number.

    Raises:
        SpecError: The value is not a signal; the text names the setting and the value.
    """
    try:
        return signal.Signals(-1 if isinstance(value, bool) else value)
    except ValueError:
        raise SpecError(f"{what} is {value!r}; give a signal, such as signal.SIGTERM") from None


@refusing
def checked_ranks(ranks: Any, nprocs: int) -> frozenset[int]:
    """Return a set of local ranks; None means all ranks.

    Raises:
        SpecError: The value is not a set, or one of its ranks is not in the gang.
    """
    every = frozenset(range(nprocs))
    try:
        wanted = every if ranks is None else frozenset(ranks)
    except TypeError:
        raise SpecError(f"ranks is {ranks!r}; give a set of local ranks, such as {{0}}") from None
    # 0.0 equals 0, but cannot be the number of a rank
    if unknown := sorted([rank for rank in wanted if rank not in every or not hasattr(rank, "__index__")], key=repr):
        raise SpecError(f"ranks {unknown} are not in this gang; its ranks are 0 to {nprocs - 1}")
    return frozenset(map(index, wanted))


@refusing
def requested_ranks(ranks: Any, gang: Gang, name: str) -> frozenset[int]:
    """Return the ranks of a request to restart or to terminate ranks.

    Raises:
        SpecError: The value is not a set, the set is empty, a rank is not in the gang, or the gang does not run.
    """
    wanted = checked_ranks(ranks if ranks is not None else (), gang.nprocs)
    if not wanted:
        raise SpecError(f"ranks is {ranks!r}; give the local ranks, such as {{0}}")
    if gang.phase in ("new", "finished") or gang.end_asked or (gang.phase == "stopping" and gang.policy is None):
        phase = "stopping" if gang.end_asked and gang.phase != "finished" else gang.phase
        raise PhaseError(f"{name}: the gang is {phase}; its ranks cannot be restarted, reloaded or terminated")
    return wanted


# The reports of Workers and Tails, except for those that are events of the core


class MemberStopRequested(say.Bare):
    """Other code requested the stop of a Worker or a Tail, so the gang must be closed. Worker, Tail -> Supervisor."""


class ActorDown(NamedTuple):
    """A handler of a Worker or a Tail raised, so the gang must be killed. Worker, Tail -> Supervisor."""

    who: str
    error: BaseException


# The dispatch


class GangShell(SupervisorShell["RunProcsResult"]):
    """The actor of a gang: the messages that a gang on one host and a gang over several hosts accept alike."""

    _mistakes = (SuperviseError, OSError, TypeError, ValueError, AttributeError)
    _title = "a Supervisor"
    """What errors call the actor."""
    _more_messages = ""
    """The messages that not every gang accepts, with commas, for the error about another one."""

    def __init__(self, name: str, *, own_thread: bool = True) -> None:
        """Prepare an actor without subscribers."""
        super().__init__(name, own_thread=own_thread)
        self._subscribers = Subscribers(keep=True)

    if TYPE_CHECKING:

        def launch(self) -> Reply[dict[int, int]]: ...
        def pids(self) -> dict[int, int]: ...
        def _status_reply(self) -> Reply[say.GangStatus]: ...
        def _close(self, death_sig: signal.Signals | None, timeout: float | None) -> None: ...
        def send_signal(
            self, sig: signal.Signals, ranks: AbstractSet[int] | None = None, *, group: bool = False
        ) -> frozenset[int]: ...

    def wait(self, timeout: float | None = None) -> Reply[RunProcsResult | None]:
        """Answer with the result once there is one, or with None after `timeout` seconds; see `Wait`.

        Raises:
            SpecError: `timeout` is not a number of seconds.
        """
        return self._replies.wait(timeout)

    def poll(self) -> RunProcsResult | None:
        """Answer at once: with the result, or with None; see `Poll`."""
        return self._replies.poll()

    def close(
        self, death_sig: signal.Signals | None = None, timeout: float | None = None
    ) -> Reply[RunProcsResult | None]:
        """Stop the gang; answer with the result when no process of the gang remains; see `Close`.

        Raises:
            SpecError: `death_sig` is not a signal, or `timeout` is not a number of seconds. Nothing was done.
            UnkillableError: In the reply: a process survived SIGKILL. All others are reaped.
        """
        check_timeout(timeout)
        sig = None if death_sig is None else as_signal("death_sig", death_sig)
        reply = self._replies.begin("close")
        self._close(sig, timeout)
        return reply

    def on_receive(self, message: Any) -> Any:  # noqa: PLR0911 - one line a message
        """Answer asks."""
        match message:
            case say.Start():
                return self.launch()
            case say.Wait():
                return self.wait(message.timeout)
            case say.Poll():
                return self.poll()
            case say.Pids():
                return self.pids()
            case say.Status():
                return self._status_reply()
            case say.Close():
                return self.close(message.death_sig, message.timeout)
            case say.Signal():
                return self.send_signal(message.sig, message.ranks, group=message.group)
            case say.Subscribe():
                return self._subscribers.admit(message.ref)
            case say.Unsubscribe():
                check_ref(message.ref)
                return self._subscribers.dismiss(message.ref)
            case _:
                return self._refuse(message)

    def _refuse(self, message: Any) -> None:
        """Raise the error for a message that the actor does not accept. An ask raises the error; a tell logs it."""
        if isinstance(message, type):
            raise SpecError(f"the message is the class {message.__name__}; send an instance: {message.__name__}(...)")
        usual = f"Start(), Wait(), Poll(), Pids(), Status(), Close(), Signal(...), {self._more_messages}"
        accepted = f"{usual}Subscribe(...) or Unsubscribe(...)"
        raise SpecError(f"{self._title} does not accept {repr_of(message)}; send it {accepted}")
