"""The Workers and Tails of one gang, as their Supervisor commands them."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import pykka

from supervise import messages as say
from supervise._core.steps import TailsStarted
from supervise._gang.describe import LogFailed
from supervise._gang.error_files import recorded_ns
from supervise._gang.worker import Worker
from supervise._logs.files import make_ready, no_room
from supervise._logs.sinks import CancelToken
from supervise._process.exits.slots import ExitSlots
from supervise._process.launch import limits
from supervise.errors import SpecError

if TYPE_CHECKING:
    import signal
    from collections.abc import Iterable, Mapping, Sequence

    from supervise._gang.attempt import Attempt, TailSpec
    from supervise._gang.event_emitter import EventEmitter
    from supervise._gang.tail import Tail
    from supervise._runtime.loop import Loop


class RankActors:
    """Starts the actors of a gang and tells them what to do. It never asks."""

    def __init__(self, attempt: Attempt, loop: Loop, owner: pykka.ActorRef[Any], events: EventEmitter) -> None:
        """Prepare; nothing is started.

        Args:
            attempt: What to run; it belongs to these from now on.
            loop: The gang's.
            owner: The Supervisor.
            events: Where logs that fail are reported.
        """
        self._attempt = attempt
        self._loop = loop
        self._owner = owner
        self._events = events
        self._workers: list[pykka.ActorRef[Worker]] = []
        self._tails: list[pykka.ActorRef[Tail]] = []
        self._abandons: list[CancelToken] = []
        self.slots = ExitSlots()
        self._spoiled = False
        self._roomy = True

    def assemble(self) -> TailsStarted:
        """Make the files ready and start the actors; return what the result has to wait for.

        Raises:
            SpecError: A limit is too low.
            OSError: A log file cannot be made. Nothing was started in either case.
        """
        attempt = self._attempt
        if self._spoiled:
            msg = f"{attempt.spec.name}: an earlier start of this gang has failed half-way; make another gang"
            raise SpecError(msg)
        shown = sum(len(tail.sources) for tail in attempt.tails)
        each = limits.held_by_rank(attempt.spec.start_method)
        try:
            spare = limits.check_open_files(attempt.nprocs, each=each, shown=2 * shown)
            self._roomy = True
        except SpecError:  # what a log's reader holds beside it is a help, and no need
            spare = limits.check_open_files(attempt.nprocs, each=each, shown=shown)
            self._roomy = False
        attempt.line.keeps = spare >= 2 * attempt.nprocs  # the program is left as many as are kept
        make_ready(attempt.dest)
        try:
            for tail in attempt.tails:
                self._tails.append(self._new_tail(tail))
        except BaseException:
            self._give_up_tails()
            raise
        self._workers = [self._new_worker(rank) for rank in range(attempt.nprocs)]
        return TailsStarted(
            count=len(self._tails), values=attempt.spec.kind == "function" and attempt.spec.plain is None
        )

    def _new_tail(self, tail: TailSpec) -> pykka.ActorRef[Tail]:
        from supervise._gang.tail import Tail  # most gangs have none

        abandon = CancelToken()
        self._abandons.append(abandon)
        return Tail.start(
            name=tail.name,
            sink=tail.sink,
            sources=tail.sources,
            owner=self._owner,
            line_filter=tail.line_filter,
            abandon=abandon,
            on_error=partial(self._loop.post, self._log_failed, tail.name),
            warns=not self._events.listens(),
            follows_writers=self._roomy and tail.sink.is_console,
        )

    def _give_up_tails(self) -> None:
        """End the Tails that were started before one that could not be; close the destinations of the others."""
        self.abandon_tails()
        for abandon in self._abandons[len(self._tails) :]:
            abandon.close()
        for tail in self._attempt.tails[len(self._tails) :]:
            tail.sink.close()
        self._spoiled = True

    def _new_worker(self, rank: int) -> pykka.ActorRef[Worker]:
        dest = self._attempt.dest
        return Worker.start(
            self._loop,
            local_rank=rank,
            launcher=self._attempt.launchers[rank],
            owner=self._owner,
            slots=self.slots,
            log_paths=tuple(path for path in (dest.stdouts[rank], dest.stderrs[rank]) if path and path != os.devnull),
            error_file=dest.error_files.get(rank, ""),
        )

    def launch(self, rank: int) -> None:
        """Launch a rank."""
        self._workers[rank].tell(say.Launch())

    def deliver(self, ranks: Iterable[int], sig: signal.Signals, *, wake: bool = False) -> None:
        """Signal the groups of these ranks; `wake` also continues those that are suspended."""
        deliver = say.Deliver(sig=sig, wake=wake)
        for rank in ranks:
            self._workers[rank].tell(deliver)

    def look_for_suspended(self, ranks: Iterable[int]) -> None:
        """Look which of these ranks are suspended, and report those."""
        for rank in ranks:
            self._workers[rank].tell(say.LookForStop())

    def report_unkillable(self, ranks: Iterable[int]) -> None:
        """Report those of these ranks that SIGKILL did not end."""
        for rank in ranks:
            self._workers[rank].tell(say.ReportStuck())

    def recorded(self, ranks: Iterable[int]) -> dict[int, int]:
        """Return which of these ranks have recorded an exception by now: rank to monotonic nanoseconds."""
        files = self._attempt.dest.error_files
        found = ((rank, recorded_ns(files.get(rank, ""))) for rank in ranks)
        return {rank: at_ns for rank, at_ns in found if at_ns is not None}

    def drain(self, ends: Sequence[say.WorkerExited]) -> None:
        """Have the Tails show what the ranks had written, and end."""
        sizes = {path: size for end in ends for path, size in end.log_bytes.items()}
        self._look_for_room(sizes)
        for tail in self._tails:
            with contextlib.suppress(pykka.ActorDeadError):  # it has ended, and said so
                tail.tell(say.Drain(sizes=sizes))

    def _look_for_room(self, sizes: Mapping[str, int]) -> None:
        """Report a disk that is full: the ranks write into their logs themselves, so no error has reached us."""
        # The longest log of each attempt's folder: the most likely one to be cut short
        longest = {os.path.dirname(os.path.dirname(path)): path for path in sorted(sizes, key=lambda path: sizes[path])}
        full = next((error for path in longest.values() if (error := no_room(path)) is not None), None)
        if full is not None:
            iostream = "stderr" if full.filename in self._attempt.dest.stderrs.values() else "stdout"
            self._events.disk_full(iostream, full)

    def _log_failed(self, iostream: str, path: str, error: OSError) -> None:
        self._events.emit(LogFailed(iostream, path, str(error)))

    def abandon_tails(self) -> None:
        """Have the Tails end now, even in the middle of a write."""
        for abandon in self._abandons:
            abandon.set()

    def dismiss(self) -> None:
        """Have the Workers leave the registry; the Tails have ended. Release what is left. Idempotent."""
        workers, self._workers = self._workers, []
        for worker in workers:
            with contextlib.suppress(pykka.ActorDeadError):
                worker.tell(say.Leave())
        self.slots.close_outcomes()
        self._attempt.line.cut()
        if not self._tails:  # they own their destinations
            self._attempt.close()
