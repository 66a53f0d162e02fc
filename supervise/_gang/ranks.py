"""The Workers and Tails of one gang, as their Supervisor commands them."""

from __future__ import annotations

import contextlib
import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pykka

from supervise import messages as say
from supervise._core.steps import TailsStarted
from supervise._core.verdict import failed
from supervise._gang.error_files import recorded_ns
from supervise._gang.return_values import load_values
from supervise._gang.worker import Worker
from supervise._logs.files import make_ready, no_room
from supervise._logs.sinks import CancelToken
from supervise._process.exits.slots import ExitSlots
from supervise._process.launch import limits
from supervise.errors import SpecError

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from supervise._gang.attempt import Attempt, TailSpec
    from supervise._gang.describe import Reporter
    from supervise._gang.tail import Tail
    from supervise._runtime.loop import Loop


class RankActors:
    """Starts the actors of a gang and tells them what to do. It never asks."""

    def __init__(self, plan: Attempt, loop: Loop, owner: pykka.ActorRef[Any], report: Reporter) -> None:
        """Prepare; nothing is started."""
        self._plan = plan
        self._loop = loop
        self._owner = owner
        self._report = report
        self._workers: list[pykka.ActorRef[Worker]] = []
        self._tails: list[pykka.ActorRef[Tail]] = []
        self._abandons: list[CancelToken] = []
        self._loaded: Callable[[dict[int, Any], dict[int, str]], object] | None = None
        """Whom to give the return values that are being read."""
        self.slots = ExitSlots()
        self._spoiled = False
        self._roomy = True

    def assemble(self) -> TailsStarted:
        """Make the files ready and start the actors; return what the result has to wait for.

        Raises:
            SpecError: A limit is too low.
            OSError: A log file cannot be made. Nothing was started in either case.
        """
        plan = self._plan
        if self._spoiled:
            msg = f"{plan.spec.name}: an earlier start of this gang has failed half-way; make another gang"
            raise SpecError(msg)
        shown = sum(len(tail.sources) for tail in plan.tails)
        each = limits.held_by_rank(plan.spec.start_method)
        try:
            spare = limits.check_open_files(plan.nprocs, each=each, shown=2 * shown)
            self._roomy = True
        except SpecError:  # what a log's reader holds beside it is a help, and no need
            spare = limits.check_open_files(plan.nprocs, each=each, shown=shown)
            self._roomy = False
        plan.line.keeps = spare >= 2 * plan.nprocs  # the program is left as many as are kept
        make_ready(plan.dest)
        try:
            for tail in plan.tails:
                self._tails.append(self._new_tail(tail))
        except BaseException:
            self._give_up_tails()
            raise
        self._workers = [self._new_worker(rank) for rank in range(plan.nprocs)]
        return TailsStarted(count=len(self._tails), values=plan.spec.kind == "function")

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
            on_error=partial(self._loop.post, self._report.log_failed, tail.name),
            warns=not self._report.listens(),
            follows_writers=self._roomy and tail.sink.is_console,
        )

    def _give_up_tails(self) -> None:
        """One could not be started: end those that were, and close the destinations of the others."""
        self.abandon_tails()
        for abandon in self._abandons[len(self._tails) :]:
            abandon.close()
        for tail in self._plan.tails[len(self._tails) :]:
            tail.sink.close()
        self._spoiled = True

    def _new_worker(self, rank: int) -> pykka.ActorRef[Worker]:
        dest = self._plan.dest
        return Worker.start(
            self._loop,
            local_rank=rank,
            launcher=self._plan.launchers[rank],
            owner=self._owner,
            slots=self.slots,
            log_paths=tuple(path for path in (dest.stdouts[rank], dest.stderrs[rank]) if path and path != os.devnull),
            error_file=dest.error_files.get(rank, ""),
        )

    def launch(self, rank: int) -> None:
        """Have a rank launched."""
        self._workers[rank].tell(say.Launch())

    def deliver(self, ranks: Iterable[int], sig: signal.Signals, *, wake: bool = False) -> None:
        """Have the groups of these ranks signalled, and woken where they are stopped."""
        deliver = say.Deliver(sig=sig, wake=wake)
        for rank in ranks:
            self._workers[rank].tell(deliver)

    def look_for_stops(self, ranks: Iterable[int]) -> None:
        """Have it said which of these ranks are stopped."""
        for rank in ranks:
            self._workers[rank].tell(say.LookForStop())

    def report_stuck(self, ranks: Iterable[int]) -> None:
        """Have those named that SIGKILL did not end."""
        for rank in ranks:
            self._workers[rank].tell(say.ReportStuck())

    def recorded(self, ranks: Iterable[int]) -> dict[int, int]:
        """Return which of these ranks have recorded an exception by now: rank to monotonic nanoseconds."""
        files = self._plan.dest.error_files
        found = ((rank, recorded_ns(files.get(rank, ""))) for rank in ranks)
        return {rank: at_ns for rank, at_ns in found if at_ns is not None}

    def drain(self, ends: Sequence[say.WorkerExited]) -> None:
        """Have the Tails show what the ranks, which have ended, had written."""
        sizes = {path: size for end in ends for path, size in end.log_bytes.items()}
        self._look_for_room(sizes)
        for tail in self._tails:
            with contextlib.suppress(pykka.ActorDeadError):  # it has ended, and said so
                tail.tell(say.Drain(sizes=sizes))

    def load_values(
        self, ends: Sequence[say.WorkerExited], loaded: Callable[[dict[int, Any], dict[int, str]], object]
    ) -> None:
        """Load the return values of the ranks, which have ended, if all exited with code 0.

        Args:
            ends: How they ended.
            loaded: Called on the loop with the values and the problems, by local rank.
        """
        good = {end.local_rank for end in ends if end.has_value and not failed(end)}
        clean = [end for end in ends if end.exitcode == 0]
        if not good or len(clean) < self._plan.nprocs:
            self._loop.post(loaded, {}, {})
            return
        values = {rank: self.slots.outcomes[rank] for rank in good if self.slots.outcomes[rank].kind() != "None"}
        nothing = dict.fromkeys(good - values.keys())
        if not values:
            self._loop.post(loaded, nothing, {})
            return
        self._loaded = loaded
        work = partial(load_values, values, nothing, partial(self._loop.post, self._values_arrived))
        try:
            threading.Thread(target=work, name=f"supervise-values-{self._plan.spec.name}", daemon=True).start()
        except RuntimeError:  # no more threads: the interpreter is exiting, or a limit is reached
            work()

    def _look_for_room(self, sizes: Mapping[str, int]) -> None:
        """Report a disk that is full: the ranks themselves write into their logs, so nothing else has told us."""
        # The longest log of each attempt's folder: the most likely one to be cut short
        longest = {os.path.dirname(os.path.dirname(path)): path for path in sorted(sizes, key=lambda path: sizes[path])}
        full = next((error for path in longest.values() if (error := no_room(path)) is not None), None)
        if full is not None:
            iostream = "stderr" if full.filename in self._plan.dest.stderrs.values() else "stdout"
            self._report.disk_full(iostream, full)

    def _values_arrived(self, values: dict[int, Any], problems: dict[int, str]) -> None:
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            loaded(values, problems)

    def abandon_values(self) -> None:
        """Go on without the return values, if they are being read: code of the user's takes too long."""
        self._values_arrived({}, dict.fromkeys(range(self._plan.nprocs), "its return value was not unpickled in time"))

    def abandon_tails(self) -> None:
        """Have the Tails end now, in whatever write they are."""
        for abandon in self._abandons:
            abandon.set()

    def dismiss(self) -> None:
        """Have the Workers leave; the Tails have ended by themselves. Give back what is left. Idempotent."""
        self._loaded = None
        workers, self._workers = self._workers, []
        for worker in workers:
            with contextlib.suppress(pykka.ActorDeadError):
                worker.tell(say.Leave())
        self.slots.close_outcomes()
        self._plan.line.cut()
        if not self._tails:  # they own their destinations
            self._plan.close()
