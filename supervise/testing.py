"""Fakes for the tests of programs that embed a gang: a real Supervisor, whose processes a test ends by hand.

Nothing here starts a process, and nothing waits without a timeout::

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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

import pykka

from supervise._collected import Collected
from supervise._gang.attempt import Attempt
from supervise._gang.gang_actor import GangActor
from supervise._process.exits.handle import Exit
from supervise._process.launch.fork_server import ServerStatus
from supervise._process.launch.function import Launched
from supervise._process.lifeline.lifeline import Lifeline
from supervise.destinations import LogsDest
from supervise.errors import SuperviseError
from supervise.messages import Close

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

    from supervise._process.containment.groups import Member
    from supervise.events import Sink

__all__ = ["EventRecorder", "FakeGang", "FakeLauncher", "FakeProcess", "Recorder"]

M = TypeVar("M")

_PATIENCE_S = 10.0
_PIDS = itertools.count(5_000_000)  # above the largest pid that Linux knows, so it is nobody's group
_SURVIVED = {signal.SIGCONT, signal.SIGCHLD, signal.SIGWINCH, signal.SIGURG, signal.SIGSTOP, signal.SIGTSTP}


class FakeProcess:
    """A process that runs until the test, or a signal, ends it.

    Signals do what they do to a process without handlers: SIGTERM, SIGKILL and their like end it, unless
    they are in `ignored` (also SIGKILL can be, for a process that outlives it).
    """

    ignored: set[signal.Signals]
    """Signals that do nothing to it."""

    def __init__(self, *, ignored: Iterable[signal.Signals] = ()) -> None:
        """Make a running process that ignores some signals."""
        self.pid = next(_PIDS)
        self.ignored = set(ignored)
        self._signals: list[signal.Signals] = []
        self._changed = threading.Condition()
        self._fd, self._life = os.pipe()  # readable once its other end is closed
        self._code: int | None = None
        self._group_left = False

    @property
    def signals(self) -> list[signal.Signals]:
        """What it was sent so far, in this order; a copy."""
        with self._changed:
            return list(self._signals)

    @property
    def ended(self) -> bool:
        """Whether it is dead."""
        return self._code is not None

    def exit(self, code: int, *, group_left: bool = False) -> None:
        """End it. From any thread; a second end is none.

        Args:
            code: 0 to 255; ``-N`` is an end by signal N.
            group_left: Whether something in its group lives on. It ends with the next signal.
        """
        with self._changed:
            if self._code is None:
                self._code = code
                self._group_left = group_left
                os.close(self._life)

    def wait_for_signal(self, sig: signal.Signals, timeout: float = _PATIENCE_S) -> None:
        """Wait until it was sent `sig`.

        Raises:
            TimeoutError: It was not, within `timeout` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: sig in self._signals, timeout):
                msg = f"no {sig.name} in {timeout} s; it was sent {self._signals}"
                raise TimeoutError(msg)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable at its end; -1 after `close`."""
        return self._fd

    @property
    def noticed_ns(self) -> int | None:
        """None: no thread waits for its end."""
        return None

    def ring_if_dead(self) -> None:
        """Do nothing: its end makes the descriptor readable at once."""

    def reap(self) -> Exit | None:
        """Return its end, None while it runs."""
        return None if self._code is None else Exit(code=self._code)

    give_up = reap

    def signal_group(self, sig: signal.Signals) -> bool:
        """Note the signal, and end if it does."""
        with self._changed:
            self._signals.append(sig)
            self._changed.notify_all()
        if sig not in self.ignored and sig not in _SURVIVED:
            self._group_left = False
            self.exit(-sig)
        return True

    def group_alive(self) -> bool:
        """Whether something in its group lives on."""
        return self._group_left

    @property
    def holds_members(self) -> bool:
        """False: what is left in its group has no process."""
        return False

    def members(self) -> list[Member]:
        """Return nothing: what is left in its group has no process."""
        return []

    def stopped_by(self) -> signal.Signals | None:
        """Return None: it is never stopped."""
        return None

    def kernel_state(self) -> str:
        """``S``, or ``Z`` once it has ended."""
        return "Z" if self.ended else "S"

    def close(self) -> None:
        """Let the descriptor go; idempotent. Who is not supervised any more has ended."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
        self.exit(-signal.SIGKILL)


class FakeLauncher:
    """Launches a `FakeProcess`: at once, when the test says so, or never."""

    process: FakeProcess
    """The process; it is there before it is launched."""

    def __init__(
        self, *, error: Exception | None = None, held: bool = False, ignored: Iterable[signal.Signals] = ()
    ) -> None:
        """Prepare a process.

        Args:
            error: Raised instead of launching.
            held: Whether the launch is not over until `release` is called.
            ignored: Signals that do nothing to the process.
        """
        self._error = error
        self._ignored = tuple(ignored)
        self._lock = threading.Lock()
        self._gate: int | None = None
        self._held = held
        self.asked = threading.Event()
        """Set once the launch was asked for."""

    def launch(self) -> Launched:
        """Launch, or promise to; called by the Supervisor's Worker."""
        try:
            if not self._held:
                return Launched(process=self._begin())
            with self._lock:
                read, gate = os.pipe()
                if self._held:
                    self._gate = gate
                else:  # released in this very moment
                    os.close(gate)
            return _Promise(status=ServerStatus(read), launcher=self)
        finally:
            self.asked.set()

    def release(self, error: Exception | None = None) -> None:
        """Let a held launch come to its end; with `error` it fails."""
        with self._lock:
            self._held = False
            self._error = error or self._error
            gate, self._gate = self._gate, None
        if gate is not None:
            os.close(gate)

    def _begin(self) -> FakeProcess:
        if self._error is not None:
            raise self._error
        self.process = FakeProcess(ignored=self._ignored)
        return self.process


@dataclass(frozen=True, slots=True, kw_only=True)
class _Promise(Launched):
    """A launch that is held. Its status is readable once it is released."""

    launcher: FakeLauncher

    def arrived(self) -> Launched:
        process = self.launcher._begin()  # noqa: SLF001 - its other half
        assert self.status is not None  # noqa: S101
        self.status.close()
        return Launched(process=process)


class FakeGang:
    """A real Supervisor over fake processes, for a ``with`` block that leaves nothing behind."""

    supervisor: pykka.ActorRef[GangActor]
    """To be asked `Start`, `Wait`, `Close` and so on."""
    launchers: dict[int, FakeLauncher]
    """By local rank."""
    events: EventRecorder
    """Every event of the gang."""

    def __init__(
        self,
        nprocs: int = 1,
        *,
        name: str = "fake",
        launchers: Mapping[int, FakeLauncher] | None = None,
        window: int = 1,
        grace: float = 30.0,
        timeout: float | None = None,
        dest: LogsDest | None = None,
        event_sink: Sink | None = None,
    ) -> None:
        """Plan a gang; entering the block starts its Supervisor, and `Start` its processes.

        Args:
            nprocs: How many ranks.
            name: Of the gang.
            launchers: Local rank to a launcher that is not the usual `FakeLauncher()`.
            window: How many launches may be under way at once.
            grace: Seconds from the polite signal to SIGKILL.
            timeout: Seconds from the start after which the gang is stopped.
            dest: Its files; None is none.
            event_sink: Also gets every event.
        """
        self.launchers = {rank: (launchers or {}).get(rank) or FakeLauncher() for rank in range(nprocs)}
        self.events = EventRecorder(event_sink)
        self._name = name
        self._window = window
        self._grace = grace
        self._timeout = timeout
        self._dest = dest or LogsDest(
            stdouts=dict.fromkeys(range(nprocs), ""), stderrs=dict.fromkeys(range(nprocs), "")
        )

    @property
    def processes(self) -> dict[int, FakeProcess]:
        """By local rank, those that were launched."""
        return {rank: one.process for rank, one in self.launchers.items() if hasattr(one, "process")}

    def __enter__(self) -> Self:
        """Start the Supervisor."""
        ranks = self.launchers
        plan = Attempt(
            name=self._name,
            kind="binary",
            what="fake",
            start_method=None,
            args=dict.fromkeys(ranks, ()),
            envs={rank: {} for rank in ranks},
            dest=self._dest,
            line=Lifeline(),
            launchers=list(ranks.values()),
            window=self._window,
        )
        try:
            self.supervisor = GangActor.start(plan, grace=self._grace, timeout=self._timeout, event_sink=self.events)
        except BaseException:
            plan.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End everything, also what the test made immortal."""
        closed = self.supervisor.ask(Close(death_sig=signal.SIGKILL), block=False)
        for launcher in self.launchers.values():
            launcher.release(SuperviseError("the test is over"))
        for process in self.processes.values():
            process.ignored.clear()
            if signal.SIGKILL in process.signals:
                process.exit(-signal.SIGKILL)
        try:
            with contextlib.suppress(SuperviseError, OSError, pykka.ActorDeadError):  # the test has seen that
                closed.get(timeout=_PATIENCE_S)
        finally:
            self.supervisor.stop(timeout=_PATIENCE_S)
            for process in self.processes.values():
                process.close()


class Recorder:
    """An actor that keeps what it is told, for a ``with`` block; to be subscribed to a gang's lifecycle."""

    ref: pykka.ActorRef[Any]
    """Where to tell it."""

    def __init__(self) -> None:
        """Prepare; entering the block starts the actor."""
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
        """What it was told so far, in this order; a copy."""
        return self._kept.copy()

    def wait_for(self, kind: type[M], timeout: float = _PATIENCE_S) -> M:
        """Return the first message of this class, now or when it comes.

        Raises:
            TimeoutError: None came within `timeout` seconds; lists what did.
        """
        found: M = self._kept.wait_for(lambda item: isinstance(item, kind), kind.__name__, timeout)
        return found


class _Ear(pykka.ThreadingActor):
    def __init__(self, kept: Collected[Any]) -> None:
        super().__init__()
        self._kept = kept

    def on_receive(self, message: Any) -> None:
        self._kept.add(message)


class EventRecorder:
    """An ``event_sink`` that keeps every event."""

    def __init__(self, also: Sink | None = None) -> None:
        """Start with none; `also` gets every event too."""
        self._kept: Collected[dict[str, Any]] = Collected()
        self._also = also

    def __call__(self, event: dict[str, Any]) -> None:
        """Keep `event`; called on the gang's thread."""
        self._kept.add(event)
        if self._also is not None:
            self._also(event)

    @property
    def all(self) -> list[dict[str, Any]]:
        """Every event so far, in this order; a copy."""
        return self._kept.copy()

    def named(self, name: str) -> list[dict[str, Any]]:
        """Return the events of this name so far."""
        return [event for event in self._kept.copy() if event["event"] == name]

    def wait_for(self, name: str, timeout: float = _PATIENCE_S) -> dict[str, Any]:
        """Return the first event of this name, now or when it comes.

        Raises:
            TimeoutError: None came within `timeout` seconds; lists what did.
        """
        return self._kept.wait_for(lambda event: event["event"] == name, name, timeout)
