"""One gang under chaos: what it is, what was done to it, what it has answered and told."""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pykka

from supervise import Close, RestartRanks, Start, Subscribe, SuperviseError, Supervisor, TerminateRanks, Wait
from supervise.testing import Recorder
from tests.chaos import places
from tests.chaos.shapes import Spec

PATIENCE_S = 50.0
"""How long anything that is due at once may take on a machine that does other things too."""
_ANSWERS = (SuperviseError, OSError, ValueError, TypeError, AttributeError)
"""Errors that an answer may be."""


@dataclass
class Asked:
    """A question and its future."""

    what: str
    message: object
    future: Any
    after_stop: bool = False
    """Whether the supervisor had been asked to stop before."""


@dataclass
class Case:
    """One gang. The harness's thread uses it; events come on the gang's."""

    spec: Spec
    folder: Path
    name: str
    asked: list[Asked] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    recorders: list[tuple[Recorder, bool]] = field(default_factory=list)
    """With each: whether it has been subscribed all the time."""
    hurt: dict[int, set[int]] = field(default_factory=dict)
    """Rank to the signals that the harness sent it, or its children."""
    closing_sigs: set[int] = field(default_factory=lambda: {signal.SIGTERM, signal.SIGKILL})
    start_asked: bool = False
    close_asked: bool = False
    """Whether anybody has asked for the end in any way."""
    stop_asked: bool = False
    cramped: bool = False
    """Whether descriptors ran short while it lived."""
    moved: set[int] = field(default_factory=set)
    """Ranks of which somebody has asked for a restart or the end."""
    robbed: set[int] = field(default_factory=set)
    """Ranks whose status somebody else may have taken."""
    threads: list[threading.Thread] = field(default_factory=list)
    how: str = ""
    ref: Any = None
    console: Any = None

    def make(self) -> None:
        """Start the supervisor; the gang is not launched."""
        spec = self.spec
        self.folder.mkdir()
        self.console = places.Console(spec.console, self.folder)
        with self.console.installed():
            self.ref = Supervisor.start(
                name=self.name,
                logs_specs=places.logs_specs(spec.logs, self.folder),
                duplicate_stdout_filters=["7"] if spec.logs == "tee" else None,
                grace=spec.grace,
                timeout=spec.timeout,
                event_sink=self.events.append,
                **spec.settings(),
            )
        self.subscribe()

    # Doing things to it

    def ask(self, message: object, what: str = "") -> Asked:
        """Ask without waiting; the answer is looked at in the end."""
        future = self.ref.ask(message, block=False)
        asked = Asked(what or repr(message), message, future, after_stop=self.stop_asked)
        self.asked.append(asked)
        self.start_asked = self.start_asked or isinstance(message, Start)
        if isinstance(message, (RestartRanks, TerminateRanks)):
            self.moved |= message.ranks
        if isinstance(message, Close):
            self.close_asked = True
            if message.death_sig is not None:
                self.closing_sigs.add(message.death_sig)
        return asked

    def answer(self, message: object) -> Any:
        """Ask and wait; errors that are answers are returned."""
        asked = self.ask(message)
        return settle(asked)

    def subscribe(self) -> None:
        recorder = Recorder()
        recorder.__enter__()
        self.recorders.append((recorder, not self.stop_asked))
        self.ask(Subscribe(ref=recorder.ref), "Subscribe")

    def stop(self) -> None:
        """Have the actor stop, without waiting."""
        self.close_asked = self.stop_asked = True
        with suppress(pykka.ActorDeadError):
            self.asked.append(Asked("stop", "stop", self.ref.stop(block=False)))

    def pids(self) -> dict[int, int]:
        """Pids of the ranks whose start was told in an event; after a restart, the later ones."""
        started = [event for event in list(self.events) if event["event"] == "supervise.process.started"]
        return {event["local_rank"]: event["pid"] for event in started}

    def attack(self, rank: int, sig: signal.Signals, *, children: bool) -> None:
        """Send a signal from outside to a rank, or to what it has started; never to a stranger."""
        pid = self.pids().get(rank)
        if pid is None:
            return
        if sig not in (signal.SIGSTOP, signal.SIGCONT):
            self.hurt.setdefault(rank, set()).add(sig)
        members = [seen.pid for seen in _session(pid) if seen.pid != pid] if children else [pid]
        for member in members:
            with suppress(OSError):
                fd = os.pidfd_open(member)
                try:
                    if os.getsid(member) == pid:
                        signal.pidfd_send_signal(fd, sig)
                finally:
                    os.close(fd)

    def rob(self, rank: int) -> None:
        """Have a thread of the host wait for a rank, which takes its status away."""
        pid = self.pids().get(rank)
        self.robbed.add(rank)
        if pid is not None and self.spec.kind != "forkserver":
            self.in_thread(lambda: os.waitpid(pid, 0))

    def in_thread(self, act: Callable[[], object]) -> None:
        def run() -> None:
            with suppress(OSError, pykka.ActorDeadError, pykka.Timeout):
                act()

        thread = threading.Thread(target=run, name=f"chaos-{self.name}", daemon=True)
        self.threads.append(thread)
        thread.start()

    # The end

    def begin_end(self, how: str) -> None:
        """Ask for the end."""
        for timeout in (None, PATIENCE_S):
            self.ask(Wait(timeout=timeout))
        if how == "stop":
            self.stop()
        else:
            self.ask(Close(timeout=self.spec.grace) if how == "close" else Close(death_sig=signal.SIGKILL))
        self.how = how
        self.ended_s = time.monotonic()

    def finish_end(self) -> list[str]:
        """See that the end comes in time; return what is wrong."""
        wrong = []
        wrong += [f"{each.what} is not answered" for each in self.asked if _is_late(each, Close)]
        if not wrong and self.how != "stop":
            wrong = self.survivors("after Close")
        self.stop()
        wrong += ["stop() is not answered" for each in self.asked if each.what == "stop" and _is_late(each, str)]
        if not self.ref.actor_stopped.wait(PATIENCE_S):
            wrong.append("the supervisor did not stop")
        for thread in self.threads:
            thread.join(PATIENCE_S)
        return wrong or self.survivors("after stop()")

    def survivors(self, when: str) -> list[str]:
        """Live members of the ranks' sessions, and ranks that are not reaped; there must be none."""
        found = []
        for event in [event for event in self.events if event["event"] == "supervise.process.started"]:
            for seen in _session(event["pid"], event["monotonic_ns"]):
                unreaped = seen.pid == event["pid"] and seen.parent == os.getpid()
                if unreaped or seen.state not in "ZX":
                    found.append(f"rank {event['local_rank']}: {_describe(seen)} of its group lives on {when}")
        return found

    def close(self) -> None:
        """End what is the harness's own; the subscribers have taken in all they were told then."""
        for recorder, _ in self.recorders:
            with suppress(pykka.ActorDeadError, pykka.Timeout):
                recorder.__exit__(None, None, None)
        self.console.close()


def settle(asked: Asked, timeout_s: float | None = None) -> Any:
    """Return an answer, or the error that is one; a `pykka.Timeout` if none came in time (None: `PATIENCE_S`)."""
    try:
        return asked.future.get(timeout=PATIENCE_S if timeout_s is None else timeout_s)
    except (*_ANSWERS, pykka.ActorDeadError, pykka.Timeout) as error:
        return error


def _is_late(asked: Asked, kind: type) -> bool:
    return isinstance(asked.message, kind) and isinstance(settle(asked), pykka.Timeout)


class _Seen:
    """A process as /proc shows it at one moment.

    Raises:
        OSError: There is none of this number.
    """

    def __init__(self, pid: int) -> None:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        self.pid, self.state = pid, fields[0]
        self.parent, self.session = int(fields[1]), int(fields[3])
        self.begun_ns = int(fields[19]) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def _session(sid: int, started_ns: int = 0) -> list[_Seen]:
    """Return who is in the session that this process leads or led; empty where the number is a stranger's by now.

    Args:
        sid: Of its leader.
        started_ns: When that was told to have started, monotonic; 0: not known.
    """
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - only the names
        if name.isdigit():
            with suppress(OSError):
                seen = _Seen(int(name))
                if seen.session == sid:
                    found.append(seen)
    reused = any(seen.pid == sid and started_ns and seen.begun_ns > started_ns + 20_000_000 for seen in found)
    return [] if reused else found


def _describe(seen: _Seen) -> str:
    """Say what a process is, and which signals it has yet to take."""
    pid = seen.pid
    text = f"pid {pid}, {seen.state}, child of {seen.parent}"
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip()
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        kept = [line.replace("\t", " ") for line in lines if line.startswith(("State", "ShdPnd", "SigPnd"))]
        text += f" ({words}; {', '.join(kept)})"
    return text
