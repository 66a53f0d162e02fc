"""Fakes for tests of programs that embed a gang: a real Supervisor over fake processes, whose exits the test chooses.

No call starts a process, and no call waits without a timeout::

    with FakeGang(2) as gang, Recorder() as recorder:
        gang.supervisor.ask(Subscribe(ref=recorder.ref), timeout=5)
        gang.supervisor.ask(Start(), timeout=5)
        gang.processes[1].exit(3)
        assert gang.supervisor.ask(Wait(), timeout=5).root_cause == 1
        recorder.wait_for(GangFinished)
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

import pykka

from supervise._gang.attempt import Attempt
from supervise._gang.rank_spec import RankSpec
from supervise._gang.spec import GangSpec
from supervise._gang.supervisor import Supervisor, SupervisorRef
from supervise._process.exits.leader import Exit
from supervise._process.launch.fork_server import ServerStatus
from supervise._process.launch.program import Launched
from supervise._record import record
from supervise._settings import GANG, GRACE_S, is_whole, shown
from supervise.destinations import LogsDest
from supervise.errors import SpecError, SuperviseError
from supervise.messages import Close

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

    from supervise._process.containment.groups import Member
    from supervise._process.exits.leader import Process
    from supervise.events import Sink


# Items that one thread adds and another waits for. The fakes and recorders of `supervise.testing` use them


T = TypeVar("T")


class Collected(Generic[T]):
    """Thread-safe list of items, on which a thread can wait."""

    def __init__(self) -> None:
        """Create an empty list."""
        self._items: list[T] = []
        self._changed = threading.Condition()

    def add(self, item: T) -> None:
        """Add an item. Callable from any thread."""
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()

    def copy(self) -> list[T]:
        """Return the items so far."""
        with self._changed:
            return list(self._items)

    def wait_for(self, wanted: Callable[[T], bool], what: str, timeout: float) -> T:
        """Return the first item that is `wanted`.

        Raises:
            TimeoutError: No such item came within `timeout` seconds; the text names `what`.
        """

        def found() -> list[T]:
            return [item for item in self._items if wanted(item)][:1]

        with self._changed:
            if not self._changed.wait_for(found, timeout):
                raise TimeoutError(f"no {what} in {timeout} s; what came: {self._items}")
            return found()[0]


__all__ = ["EventRecorder", "FakeGang", "FakeLauncher", "FakeProcess", "Recorder"]

M = TypeVar("M")

_PATIENCE_S = 10.0
_PIDS = itertools.count(5_000_000)  # above Linux's largest pid, so that no process group has the number
_SURVIVED = {
    *(signal.SIGCONT, signal.SIGCHLD, signal.SIGWINCH, signal.SIGURG),
    *(signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
}


class FakeProcess:
    """A fake process that runs until the test or a signal ends it.

    A signal has its default effect: SIGTERM, SIGKILL and others end the process unless `ignored` has them.
    `ignored` may have SIGKILL as well, for a process that survives it.
    """

    noticed_ns: int | None = None
    """No thread waits for its end."""

    def __init__(self, *, ignored: Iterable[signal.Signals] = ()) -> None:
        """Create a running process that ignores some signals."""
        self.pid: int = next(_PIDS)
        self.ignored: set[signal.Signals] = set(ignored)
        """Signals without effect on it."""
        self._signals: list[signal.Signals] = []
        self._changed = threading.Condition()
        self._fd, self._life = os.pipe()  # `_fd` is readable once `_life` is closed
        self._code: int | None = None
        self._group_left = False

    @property
    def signals(self) -> list[signal.Signals]:
        """The signals sent to it so far, in order; a copy."""
        return list(self._signals)

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._code is not None

    def exit(self, code: int, *, group_left: bool = False) -> None:
        """End the process. Thread-safe and idempotent.

        Args:
            code: 0 to 255; ``-N`` for signal N.
            group_left: Whether other processes remain in its group. The next signal ends them.

        Raises:
            SpecError: `code` is not an exit code.
        """
        if not is_whole(code, -64, 255):
            raise SpecError(f"code is {shown(code)}; give an exit code: 0 to 255, or -N for signal N")
        with self._changed:
            if self._code is None:
                self._code = code
                self._group_left = group_left
                os.close(self._life)

    def wait_for_signal(self, sig: signal.Signals, timeout: float = _PATIENCE_S) -> None:
        """Wait until the process has been sent `sig`.

        Raises:
            TimeoutError: The signal was not sent within `timeout` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: sig in self._signals, timeout):
                raise TimeoutError(f"no {signal.Signals(sig).name} in {timeout} s; it was sent {self._signals}")

    def fileno(self) -> int:
        """Return the descriptor that becomes readable at its end; -1 after `close`."""
        return self._fd

    def ring_if_dead(self) -> None:
        """Do nothing: its end makes the descriptor readable at once."""

    def reap(self) -> Exit | None:
        """Return its exit; None while it runs."""
        return None if self._code is None else Exit(code=self._code)

    give_up = reap

    def signal_group(self, sig: signal.Signals, *, since_s: float | None = None) -> bool:  # noqa: ARG002 - a fake
        """Record the signal, and end the process and its group if the signal is fatal."""
        if sig not in self.ignored and sig not in _SURVIVED:
            self._group_left = False
        return self.signal_process(sig)

    def signal_process(self, sig: signal.Signals) -> bool:
        """Record the signal, and end the process if the signal is fatal."""
        with self._changed:
            self._signals.append(sig)
            self._changed.notify_all()
        if sig not in self.ignored and sig not in _SURVIVED:
            self.exit(-sig)
        return True

    def group_alive(self) -> bool:
        """Return whether other processes remain in its group."""
        return self._group_left

    @property
    def holds_members(self) -> bool:
        """Always False: the group of a fake process has no real processes."""
        return False

    def members(self, *, since_s: float | None = None) -> list[Member]:  # noqa: ARG002
        """Return no members: the group of a fake process has no real processes."""
        return []

    def stopped_by(self) -> signal.Signals | None:
        """Return None: it is never stopped."""
        return None

    def kernel_state(self) -> str:
        """Return ``S``, or ``Z`` after the end."""
        return "Z" if self.ended else "S"

    def survivor(self) -> tuple[int, str] | None:
        """Return the pid and the state; None after the end."""
        return None if self.ended else (self.pid, "S")

    def close(self) -> None:
        """Close the descriptor and end the process. Idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
        self.exit(-signal.SIGKILL)


class FakeLauncher:
    """A launcher of one `FakeProcess`. The launch succeeds at once, waits until the test releases it, or fails."""

    process: FakeProcess
    """The process; missing before the launch."""

    def __init__(
        self, *, error: Exception | None = None, held: bool = False, ignored: Iterable[signal.Signals] = ()
    ) -> None:
        """Prepare a process.

        Args:
            error: Raised instead of launching.
            held: Whether the launch stays pending until `release` is called.
            ignored: Signals without effect on the process.
        """
        self._error = error
        self._ignored = tuple(ignored)
        self._lock = threading.Lock()
        self._gate: int | None = None
        self._held = held
        self.asked: threading.Event = threading.Event()
        """Set when the Worker has called `launch`."""

    def launch(self) -> Launched:
        """Launch, or return a pending launch if held. The Supervisor's Worker calls it."""
        try:
            with self._lock:
                if not self._held:
                    return self._begin()
                read, self._gate = os.pipe()
            return _Promise(status=ServerStatus(read), launcher=self)
        finally:
            self.asked.set()

    def release(self, error: Exception | None = None) -> None:
        """Complete a held launch; with `error` it fails."""
        with self._lock:
            self._held = False
            self._error = error or self._error
            gate, self._gate = self._gate, None
        if gate is not None:
            os.close(gate)

    def _begin(self) -> Launched:
        if self._error is not None:
            raise self._error
        self.process = FakeProcess(ignored=self._ignored)
        return Launched(process=cast("Process", self.process))  # it has the same methods


@record(frozen=False, eq=False)
class _Promise(Launched):
    """A pending launch. Its status becomes readable when the launch is released."""

    launcher: FakeLauncher

    def arrived(self) -> Launched:
        launched = self.launcher._begin()  # noqa: SLF001 - a class of this module
        assert self.status is not None  # noqa: S101
        self.status.close()
        return launched


class _FakeAttempt(Attempt):
    """An attempt whose later lives are further fake processes of the same launchers."""

    def renew(self, rank: int, life: int) -> None:
        """Note the number of the life, for its events. The rank's launcher makes another process."""
        self.envs[rank] = {"TORCHELASTIC_RESTART_COUNT": str(life)}


class FakeGang:
    """A real Supervisor over fake processes, for a ``with`` block that stops it at its end.

    A rank that is restarted by a request, `RestartRanks`, gets a new `FakeProcess` of its launcher.
    """

    supervisor: SupervisorRef
    """Accepts `Start`, `Wait`, `Close` and so on."""
    launchers: dict[int, FakeLauncher]
    """Local rank to launcher."""
    events: EventRecorder
    """Records every event of the gang."""

    def __init__(
        self,
        nprocs: int = 1,
        *,
        name: str = "fake",
        launchers: Mapping[int, FakeLauncher] | None = None,
        window: int = 1,
        grace: float = GRACE_S,
        timeout: float | None = None,
        dest: LogsDest | None = None,
        event_sink: Sink | None = None,
    ) -> None:
        """Describe a gang. Entering the block starts its Supervisor; `Start` starts its processes.

        Args:
            nprocs: Number of ranks.
            name: Name of the gang.
            launchers: Local rank to launcher; a missing rank gets a `FakeLauncher()`.
            window: Largest number of pending launches.
            grace: Seconds from the first signal to SIGKILL.
            timeout: Seconds from the start after which the gang is stopped.
            dest: Log files; None: no files.
            event_sink: Also called with every event.

        Raises:
            SpecError: A value is not valid, or `launchers` has a rank that does not exist, or a launcher twice.
        """
        GANG["name"].checked(name)
        GANG["event_sink"].checked(event_sink)
        for what, number in (("nprocs", nprocs), ("window", window)):
            if not is_whole(number, 1):
                raise SpecError(f"{what} is {shown(number)}; give a whole number, 1 or more")
        given = launchers or {}
        if not (hasattr(given, "values") and all(isinstance(each, FakeLauncher) for each in given.values())):
            raise SpecError(f"launchers is {shown(given)}; give a mapping of local rank to FakeLauncher")
        if unknown := sorted(given.keys() - range(nprocs), key=repr):
            raise SpecError(f"launchers has the ranks {unknown}; the ranks are 0 to {nprocs - 1}")
        if len({id(each) for each in given.values()}) < len(given):
            raise SpecError("launchers has one launcher for two ranks; give each rank its own")
        self.launchers = {rank: given.get(rank) or FakeLauncher() for rank in range(nprocs)}
        self.events = EventRecorder(event_sink)
        self._spec = GangSpec(
            name=name,
            args=dict.fromkeys(self.launchers, ()),
            parts=(RankSpec("fake", range(nprocs), start_method=None),),
            grace_s=grace,
            timeout_s=timeout,
            event_sink=self.events,
        )
        self._window = window
        self._dest = dest or LogsDest(
            stdouts=dict.fromkeys(range(nprocs), ""), stderrs=dict.fromkeys(range(nprocs), "")
        )

    @property
    def processes(self) -> dict[int, FakeProcess]:
        """Local rank to its newest process, for the ranks that were launched."""
        return {rank: one.process for rank, one in self.launchers.items() if hasattr(one, "process")}

    def __enter__(self) -> Self:
        """Start the Supervisor. Possible once.

        Raises:
            SpecError: `grace` or `timeout` is not valid, or this gang was entered before.
        """
        if hasattr(self, "supervisor"):
            raise SpecError("this gang was entered before; make a new one")
        GANG["grace"].checked(self._spec.grace_s)
        GANG["timeout"].checked(self._spec.timeout_s)
        ranks = self.launchers
        plan = _FakeAttempt(
            spec=self._spec,
            envs={rank: {} for rank in ranks},
            dest=self._dest,
            launchers=[launcher.launch for launcher in ranks.values()],
            window=self._window,
        )
        try:
            self.supervisor = Supervisor.start_attempt(plan)
        except BaseException:
            plan.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End all processes, even those that ignore SIGKILL, and stop the Supervisor."""
        closed = self.supervisor.ask(Close(death_sig=signal.SIGKILL), block=False)
        for launcher in self.launchers.values():
            launcher.release(SuperviseError("the FakeGang of its launcher has ended; make a new FakeLauncher"))
        for process in self.processes.values():
            process.ignored.clear()
            if signal.SIGKILL in process.signals:
                process.exit(-signal.SIGKILL)
        try:
            with contextlib.suppress(SuperviseError, OSError, pykka.ActorDeadError):  # the test has seen the error
                closed.get(timeout=_PATIENCE_S)
        finally:
            self.supervisor.stop(timeout=_PATIENCE_S)
            for process in self.processes.values():
                process.close()


class Recorder:
    """An actor that records the messages it receives, for a ``with`` block; subscribe its `ref` to a gang."""

    ref: pykka.ActorRef[Any]
    """The reference of the actor."""

    def __init__(self) -> None:
        """Create a recorder; entering the block starts the actor."""
        self._kept: Collected[Any] = Collected()

    def __enter__(self) -> Self:
        """Start the actor."""
        self.ref = _Ear.start(self._kept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the actor."""
        self.ref.stop(timeout=_PATIENCE_S)

    @property
    def messages(self) -> list[Any]:
        """The messages so far, in order; a copy."""
        return self._kept.copy()

    def wait_for(self, kind: type[M], timeout: float = _PATIENCE_S) -> M:
        """Return the first message of class `kind`; wait for it if necessary.

        Raises:
            TimeoutError: None arrived within `timeout` seconds; the text lists the messages that did.
        """
        found: M = self._kept.wait_for(lambda item: isinstance(item, kind), kind.__name__, timeout)
        return found


class _Ear(pykka.ThreadingActor):
    ends_with_its_thread = True  # see `LoopActor`

    def __init__(self, kept: Collected[Any]) -> None:
        super().__init__()
        self._kept = kept

    def on_receive(self, message: Any) -> None:
        self._kept.add(message)


class EventRecorder:
    """An ``event_sink`` that records every event."""

    def __init__(self, also: Sink | None = None) -> None:
        """Create an empty recorder that also passes every event to `also`."""
        self._kept: Collected[dict[str, Any]] = Collected()
        self._also = also

    def __call__(self, event: dict[str, Any]) -> None:
        """Record `event`. The gang's thread calls it."""
        self._kept.add(event)
        if self._also is not None:
            self._also(event)

    @property
    def all(self) -> list[dict[str, Any]]:
        """The events so far, in order; a copy."""
        return self._kept.copy()

    def named(self, name: str) -> list[dict[str, Any]]:
        """Return the events called `name` so far."""
        return [event for event in self._kept.copy() if event["event"] == name]

    def wait_for(self, name: str, timeout: float = _PATIENCE_S) -> dict[str, Any]:
        """Return the first event called `name`; wait for it if necessary.

        Raises:
            TimeoutError: None arrived within `timeout` seconds; the text lists the events that did.
        """
        return self._kept.wait_for(lambda event: event["event"] == name, name, timeout)
