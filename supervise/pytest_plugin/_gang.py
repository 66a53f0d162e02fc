"""The gang of one test: start, watch, stacks and end. In the host."""

from __future__ import annotations

import contextlib
import logging
import signal
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pykka

from supervise import (
    Close,
    LogsDest,
    LogsSpecs,
    Stacks,
    Start,
    Subscribe,
    Supervisor,
    WorkerExited,
)
from supervise.pytest_plugin._coverage import add_data
from supervise.pytest_plugin._gather import HOST, Bell, Folder, Plan, Unpatched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from supervise import RankStacks

_FORK_WARNING = r"This process \(pid=\d+\) is multi-threaded, use of fork"
_START_S = 120.0
"""Deadline for the start in a test without a limit: spawned ranks import the main module first, on a busy machine."""
_REPLY_S = 30.0
"""How long a Supervisor may take for a reply that waits for no rank."""
_STOP_S = 2.0
"""Seconds that a stopped rank has for its teardown."""
_EXIT_S = 5.0
"""Seconds that a rank has from the end of its test to the end of its process."""
_LONGEST_GRACE_S = 10.0


@dataclass(slots=True, kw_only=True)
class Record:
    """The known facts about one rank."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    """The lines of its journal, one for each phase."""
    exited: WorkerExited | None = None
    stopped: bool = False
    """Whether the host stopped the rank before the rank ended by itself."""
    stacks: RankStacks | None = None
    """The stacks of the rank when it was stopped."""

    @property
    def is_complete(self) -> bool:
        """Whether all phases have run."""
        return bool(self.entries) and self.entries[-1]["when"] == "teardown"

    @property
    def has_died(self) -> bool:
        """Whether the rank has ended before its last phase, or a signal has killed it after that.

        An exit code after the last phase says little: the test may have closed the descriptors that an exit needs.
        """
        return self.exited is not None and (not self.is_complete or (self.exited.exitcode or 0) < 0)

    @property
    def is_trouble(self) -> bool:
        """Whether a phase has not passed, or the rank has died."""
        return self.has_died or not all(_passed(entry["report"]) for entry in self.entries)

    @property
    def waits_for_no_peer(self) -> bool:
        """Whether the rank has skipped the test, or failed as expected, and is being torn down."""
        return any(entry["report"]["outcome"] == "skipped" for entry in self.entries)

    @property
    def phase(self) -> str:
        """The phase after the last one in the journal."""
        if not self.entries:
            return "setup"
        last = self.entries[-1]
        return "call" if last["when"] == "setup" and _passed(last["report"]) else "teardown"


def _passed(report: Mapping[str, Any]) -> bool:
    return str(report["outcome"]) == "passed"


class RankLogs(LogsSpecs):
    """The output of each rank goes to files in the folder of the gang."""

    def __init__(self, folder: Folder, *, live: bool, bare: int | None) -> None:
        """Make the layout.

        Args:
            folder: The folder of the gang.
            live: Whether the output is also shown at once.
            bare: A rank whose output is not redirected.
        """
        super().__init__(str(folder.root))
        self._folder, self._live, self._bare = folder, live, bare

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return the paths."""
        dest = LogsDest()
        for rank in envs:
            dest.stdouts[rank] = "" if rank == self._bare else self._folder.stream(rank, "stdout")
            dest.stderrs[rank] = "" if rank == self._bare else self._folder.stream(rank, "stderr")
            dest.error_files[rank] = str(self._folder.root / f"error-{rank}.json")
            if self._live and rank != self._bare:
                dest.tee_stdouts[rank] = dest.stdouts[rank]
                dest.tee_stderrs[rank] = dest.stderrs[rank]
        return dest

    @property
    def root_log_dir(self) -> str:
        """The folder of the gang."""
        return str(self._folder.root)


@dataclass(slots=True, kw_only=True)
class Gang:
    """The ranks of one test, and a subscriber to their lifecycle messages."""

    actor_urn: ClassVar[str] = "supervise-ranks-of-a-test"
    plan: Plan
    entrypoint: Callable[..., None]
    args: dict[int, tuple[Any, ...]]
    start_method: str
    grace_s: float | None
    """Seconds for the other ranks after the first failure; None for no limit."""
    live: bool
    """Whether pytest shows the output of tests at once."""
    records: dict[int, Record]
    """What is known about each rank."""
    exits: dict[int, WorkerExited] = field(default_factory=dict)
    """The ends of ranks that the Supervisor has reported."""
    timed_out: bool = False
    waited_s: float | None = None
    """How long the host waited for the ranks that it then stopped. The time begins at the start if the timeout expired,
    otherwise at the first failure, or at the end of the test if none failed. None if all ranks ended by themselves, or
    if the host was interrupted."""

    def run(self) -> None:
        """Run all ranks to their end, and record what happens. No rank is left, even after an exception."""
        __tracebackhide__ = True
        with _quiet(), contextlib.ExitStack() as ends:
            ends.callback(add_data, self.plan.measurement)
            ends.callback(self._read)
            bell = self.plan.folder.bell(HOST)
            ends.callback(bell.close)
            supervisor = Supervisor.start(
                name="rank",
                entrypoint=self.entrypoint,
                args=self.args,
                rank_variables=True,
                logs_specs=RankLogs(self.plan.folder, live=self.live, bare=self.plan.debugged),
                log_line_prefixes={rank: f"[rank {rank}]: " for rank in range(self.plan.world_size)},
                start_method=self.start_method,
                strategy="one_for_one",  # the host decides when the others are stopped
                containment="sweep",
            )
            ends.callback(supervisor.stop)
            ends.callback(_close, supervisor)
            try:
                supervisor.ask(Subscribe(ref=cast("Any", self)), timeout=_REPLY_S)
                start_s = Unpatched.monotonic()
                try:
                    supervisor.ask(Start(), timeout=self.plan.timeout_s or _START_S)
                except pykka.Timeout:
                    if self.plan.timeout_s is None:
                        raise
                self._watch(bell, supervisor, start_s)
            except BaseException:
                self._note_stacks(supervisor)
                raise

    def tell(self, message: object) -> None:
        """Note the end of a rank; wake the host and the ranks, which may wait for a value. On the gang's thread."""
        if isinstance(message, WorkerExited):
            self.exits[message.local_rank] = message
            self.plan.folder.ended(message.local_rank).touch()
            for name in (HOST, *(rank for rank in range(self.plan.world_size) if rank not in self.exits)):
                self.plan.folder.ring(name)

    def _watch(self, bell: Bell, supervisor: pykka.ActorRef[Supervisor], start_s: float) -> None:
        """Return when all ranks have ended, or when the time limit of the other ranks is over."""
        __tracebackhide__ = True
        deadline_s = None if self.plan.timeout_s is None else start_s + self.plan.timeout_s
        trouble_s = done_s = None
        while True:
            self._read()
            records = self.records.values()
            if all(record.exited is not None for record in records):
                return
            now_s = Unpatched.monotonic()
            if trouble_s is None and any(record.is_trouble for record in records):
                trouble_s = now_s
            if done_s is None and all(record.is_complete or record.exited is not None for record in records):
                done_s = now_s
            limits = [] if deadline_s is None else [deadline_s]
            unfinished = [record for record in records if not record.is_complete and record.exited is None]
            waits = not unfinished or not all(record.waits_for_no_peer for record in unfinished)
            if trouble_s is not None and self.grace_s is not None and waits:
                limits.append(trouble_s + max(self.grace_s, min(trouble_s - start_s, _LONGEST_GRACE_S)))
            if done_s is not None:
                limits.append(done_s + _EXIT_S)
            limit_s = min(limits, default=None)
            if limit_s is not None and now_s >= limit_s:
                self.timed_out = trouble_s is None and done_s is None
                self.waited_s = now_s - (start_s if self.timed_out else trouble_s or done_s or start_s)
                self._note_stacks(supervisor)
                return
            bell.wait(limit_s)

    def _note_stacks(self, supervisor: pykka.ActorRef[Supervisor]) -> None:
        """Note the stacks of the ranks that still run. The host stops these ranks next."""
        self._read()
        pending = frozenset(rank for rank, record in self.records.items() if record.exited is None)
        stacks: Any = {}
        with contextlib.suppress(Exception):  # an error here would hide the one that the host may have
            stacks.update(supervisor.ask(Stacks(ranks=pending), timeout=_REPLY_S))
        self._read()
        for rank in pending:
            record = self.records[rank]
            record.stacks = stacks.get(rank)
            record.stopped = record.exited is None

    def _read(self) -> None:
        """Read the ends of ranks, then the journals: a rank that has ended writes no further line."""
        ended = dict(self.exits)
        for rank, record in self.records.items():
            if not record.stopped:  # the end of a stopped rank says nothing about its test
                if not record.is_complete:
                    record.entries = self.plan.folder.journal(rank)
                record.exited = ended.get(rank)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Emit no events of the gang, so that the captured log has none. The report of the test has the gang's story.

    Python's warning about a fork in a process with threads is ignored as well: the thread is that of the gang.
    """
    logger = logging.getLogger("supervise")
    before, logger.disabled = logger.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", _FORK_WARNING, DeprecationWarning)
            yield
    finally:
        logger.disabled = before


def _close(supervisor: pykka.ActorRef[Supervisor]) -> None:
    """End all ranks."""
    with contextlib.suppress(pykka.ActorDeadError, pykka.Timeout):
        supervisor.ask(Close(death_sig=signal.SIGTERM, timeout=_STOP_S), timeout=_STOP_S + _REPLY_S)
