"""The Workers and Tails of one gang."""

from __future__ import annotations

import contextlib
import errno
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import pykka

from supervise._core.steps import TailsStarted
from supervise._files import make_ready, no_room, size_of
from supervise._gang.attempt import Attempt, TailSpec, of_ranks
from supervise._gang.rank_spec import held_by_rank
from supervise._gang.worker import Deliver, Launch, LookForStop, Release, ReportStuck, Worker, recorded_ns
from supervise._process.exits.leader import ExitSlots
from supervise._process.launch import limits
from supervise.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from supervise._gang.describe import EventEmitter
    from supervise._gang.notify_sockets import NotifySockets
    from supervise._gang.tail import Tail
    from supervise._logs.reader import LogReader
    from supervise._logs.sinks import CancelToken
    from supervise._logs.trim import LogTrimmer, Trimming
    from supervise._runtime.loop import Loop
    from supervise.messages import WorkerExited

_LEFT_BYTES = 8 << 20
"""The most bytes of a log that are shown of what the processes of a rank write after the end of the rank."""
_SHOWN_S = 0.5
"""The longest wait for a Tail that shall show what was written; its destination may be slow."""
_TOO_MUCH_LEFT = f"processes wrote more than {_LEFT_BYTES >> 20} MiB after the end of their rank; the rest is not shown"


class RankActors:
    """The actors of the ranks. They get orders only by tell, because an ask would block the loop."""

    def __init__(
        self,
        attempt: Attempt,
        loop: Loop,
        owner: pykka.ActorRef[Any],
        events: EventEmitter,
        sockets: NotifySockets | None = None,
    ) -> None:
        """Prepare, but start nothing.

        Args:
            attempt: The attempt to run. This object owns it from now on.
            loop: The gang's loop.
            owner: The Supervisor.
            events: Reports failures of logs.
            sockets: The notify sockets of the ranks; None if they have none.
        """
        self._attempt = attempt
        self._loop = loop
        self._owner = owner
        self._events = events
        self._sockets = sockets
        self._workers: list[pykka.ActorRef[Worker]] = []
        self._tails: list[pykka.ActorRef[Tail]] = []
        self._abandons: list[CancelToken] = []
        self._abandoned = False
        self._joined: dict[tuple[int, int], list[LogReader]] = {}
        """Number of a Tail and rank to the readers of the rank's present life, unless that is the rank's first life."""
        self.slots = ExitSlots()
        self._trimming: Trimming | None = None
        if attempt.spec.log_max_bytes is not None:
            from supervise._logs.trim import Trimming  # lazy: most gangs have no bound

            self._trimming = Trimming(
                attempt.spec.log_max_bytes, partial(loop.post, self._log_trimmed), self._log_trimmed
            )
        self._untrimmed = False
        self._spoiled = self._drained = False
        self.abandoned_tails = 0
        """Number of Tails that had already started when `assemble` failed. Each of them reports its end."""
        self._roomy = True
        """Whether the limit on open files allows copies of the descriptors to which the ranks write."""

    def trimmer_of(self, path: str) -> LogTrimmer | None:
        """Return the bound of a log; None if it has none."""
        return None if self._trimming is None else self._trimming.of(path)

    def assemble(self) -> TailsStarted:
        """Make the files and start the actors. Return the event that has the number of Tails.

        Raises:
            SpecError: A limit is too low.
            OSError: A log file or notify socket cannot be made. After either error, no actor is left.
        """
        attempt = self._attempt
        if self._spoiled:
            raise SpecError(f"{attempt.spec.name}: an earlier start of this gang has failed; make another gang")
        shown = sum(len(tail.sources) for tail in attempt.tails)
        each = held_by_rank(attempt.spec.parts, sockets=self._sockets is not None, holds=attempt.spec.hold_returned)
        try:
            spare = limits.check_open_files(attempt.nprocs, each=each, shown=2 * shown)
        except SpecError:  # the limit is too low for the copies of the writers' descriptors, which are optional
            self._roomy = False
        if not self._roomy:  # not in the handler above: its error must not be the context of another one
            spare = limits.check_open_files(attempt.nprocs, each=each, shown=shown)
        attempt.line.keeps = spare >= 2 * attempt.nprocs  # half of the spare descriptors stay free for the application
        make_ready(of_ranks(attempt.dest, set(range(attempt.nprocs)) - attempt.left_out))
        try:
            for rank in range(attempt.nprocs) if self._trimming is not None else ():
                self._begin_trimming(rank)
            for tail in attempt.tails:
                self._tails.append(self._new_tail(tail))
            for rank in range(attempt.nprocs):
                self._workers.append(self._new_worker(rank, attempt.number))
        except BaseException:
            self._give_up()
            raise
        returning = attempt.spec.plain is None and any(part.kind == "function" for part in attempt.spec.parts)
        return TailsStarted(tails=len(self._tails), values=returning)

    def _new_tail(self, tail: TailSpec) -> pykka.ActorRef[Tail]:
        from supervise._gang.tail import Tail  # lazy: most gangs have no Tail
        from supervise._logs.sinks import CancelToken

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
            screen=tail.screen,
            trimming=self._trimming,
        )

    def _give_up(self) -> None:
        """End the started actors, because the start of one actor has failed.

        Close the sockets, and each destination that has no Tail.
        """
        self._dismiss(self._workers)
        self._workers = []
        if self._sockets is not None:
            self._sockets.close_all()
        self.abandon_tails()
        if self._trimming is not None:
            self._trimming.end_all()
        for abandon in self._abandons[len(self._tails) :]:
            abandon.close()
        for tail in self._attempt.tails[len(self._tails) :]:
            tail.sink.close()
        self._attempt.remove_groups()
        self.abandoned_tails = len(self._tails)
        self._spoiled = True

    def _new_worker(self, rank: int, life: int) -> pykka.ActorRef[Worker]:
        if self._sockets is not None:
            self._sockets.open(rank, self._attempt.addresses[rank])
        return Worker.start(
            self._loop,
            local_rank=rank,
            launcher=self._attempt.launchers[rank],
            owner=self._owner,
            slots=self.slots,
            log_paths=self.log_paths(rank),
            error_file=self._attempt.dest.error_files.get(rank, ""),
            attempt=life,
        )

    def renew(self, rank: int, life: int) -> None:
        """Make a later life of a rank with its files and its Worker. Let the Tails show its logs.

        Raises:
            SpecError: The rank's call cannot be pickled, or its log paths are not valid.
            OSError: A log file cannot be made.
        """
        attempt = self._attempt
        past = [source for sources in attempt.sources(rank).values() for source in sources]
        sizes = {source.path: size_of(source.path) for source in past}  # before the files of the next life are made
        earlier = self.log_paths(rank)
        attempt.renew(rank, life)
        self._begin_trimming(rank, earlier)
        self._dismiss([self._workers[rank]])
        if (outcome := self.slots.outcomes.pop(rank, None)) is not None:
            outcome.close()
        self._workers[rank] = self._new_worker(rank, life)
        for number, tail in enumerate(self._tails):
            self._change_files(number, tail, rank, sizes)

    def _begin_trimming(self, rank: int, earlier: Iterable[str] = ()) -> None:
        """Bound the logs of a rank's present life, and no longer those of its past life.

        For a gang that has a bound.
        """
        if self._trimming is not None:
            for path in earlier:
                self._trimming.end(path)
            for path in self.log_paths(rank):
                self._trimming.begin(path)

    def _change_files(self, number: int, tail: pykka.ActorRef[Tail], rank: int, sizes: dict[str, int | None]) -> None:
        """Order a Tail to show the files of a rank's present life, and no longer those of its past life."""
        from supervise._gang.tail import ChangeFiles, readers  # loaded with the Tail

        for feed in self._joined.get((number, rank), ()):  # because a blocked or ended Tail does not call it
            feed.writer_ended()
        spec, sources = self._attempt.tails[number], self._attempt.sources(rank)
        shown = [each for name in spec.streams for each in sources.get(name, ())]
        feeds = readers(
            spec.sink,
            shown,
            spec.line_filter,
            follow_writers=self._roomy and spec.sink.is_console,
            screen=spec.screen,
            trimming=self._trimming,
        )
        for feed in feeds:
            feed.expect_present_file()
        self._joined[number, rank] = feeds
        with contextlib.suppress(pykka.ActorDeadError):
            tail.tell(ChangeFiles(feeds=feeds, sizes=sizes))

    def log_paths(self, rank: int) -> tuple[str, ...]:
        """Return the paths of the log files that the present life of a rank writes."""
        dest = self._attempt.dest
        found = dict.fromkeys((dest.stdouts[rank], dest.stderrs[rank]))  # both streams may have one file
        return tuple([path for path in found if path and path != os.devnull])

    def launch(self, rank: int) -> None:
        """Launch a rank."""
        self._workers[rank].tell(Launch())
        if self._attempt.row is not None:  # after the order to the Worker, so that a launch follows
            self._attempt.row.order(self._attempt.launchers[rank])

    def tell(
        self,
        ranks: Iterable[int],
        order: Deliver | Release | LookForStop | ReportStuck,
    ) -> None:
        """Send an order to the Workers of these ranks, in one turn of the loop."""
        self._loop.post(_dispatch, self._actors([self._workers[rank] for rank in ranks]), order)

    def recorded(self, ranks: Iterable[int]) -> dict[int, int]:
        """Return the ranks that have recorded an exception: rank to monotonic ns of the record."""
        files, outcomes = self._attempt.dest.error_files, self.slots.outcomes
        found = [
            (rank, recorded_ns(files[rank], outcomes.get(rank)))
            for rank in ranks
            if rank in files and (rank in outcomes or os.access(files[rank], os.F_OK))
        ]
        return {rank: at_ns for rank, at_ns in found if at_ns is not None}

    def drain(self, ends: Sequence[WorkerExited], leftovers: Collection[int] = ()) -> None:
        """Order the Tails to show the remaining output and then end, or to go on while these ranks have leftovers."""
        sizes = {path: size for end in ends for path, size in end.log_bytes.items()}
        if not self._drained:
            self._look_for_room(sizes)
        self._drained = True
        left = {path: size + _LEFT_BYTES for end in ends if end.group_left for path, size in end.log_bytes.items()}
        written = {path for end in ends if end.local_rank in leftovers for path in end.log_bytes}
        for path in [path for path in left if path not in written]:  # of groups that have become empty meanwhile
            most, now = left.pop(path), size_of(path)
            sizes[path] = sizes[path] if now is None else min(now, most)
            if now is not None and now > most:
                iostream = "stdout" if path in self._attempt.dest.stdouts.values() else "stderr"
                self._log_failed(iostream, path, OSError(errno.EFBIG, _TOO_MUCH_LEFT, path))
        if self._trimming is not None:
            self._trimming.trim_all()
        for tail in self._tails:
            from supervise._gang.tail import Drain  # loaded with the Tail

            with contextlib.suppress(pykka.ActorDeadError):  # it has ended and sent `TailEnded`
                tail.tell(Drain(sizes=sizes, left=left))

    def show_written(self, rank: int, then: Callable[[], object]) -> None:
        """Call `then` on the loop when the Tails have shown what a suspended rank has written, or after 0.5 s."""
        waiting, timer = set(self._tails), self._loop.call_later(_SHOWN_S, then)

        def shown(tail: pykka.ActorRef[Tail]) -> None:
            waiting.discard(tail)
            if not waiting:
                timer.fire()

        for tail in self._tails:
            from supervise._gang.tail import ShowWritten  # loaded with the Tail

            try:
                tail.tell(ShowWritten(rank, partial(self._loop.post, shown, tail)))
            except pykka.ActorDeadError:  # it has ended
                waiting.discard(tail)
        if not waiting:
            self._loop.post(timer.fire)

    def _look_for_room(self, sizes: Mapping[str, int]) -> None:
        """Report a full disk. supervise does not see the ENOSPC of a rank, because ranks write their logs directly."""
        # The longest log of each folder, which is most likely to be truncated
        longest = {os.path.dirname(os.path.dirname(path)): path for path in sorted(sizes, key=lambda path: sizes[path])}
        full = next((error for path in longest.values() if (error := no_room(path)) is not None), None)
        if full is not None:
            iostream = "stderr" if full.filename in self._attempt.dest.stderrs.values() else "stdout"
            self._events.disk_full(iostream, full)

    def _log_failed(self, iostream: str, path: str, error: OSError) -> None:
        if not self._abandoned:  # otherwise the gang may have finished, after which no event may follow
            self._events.log_failed(iostream, path, str(error))

    def _log_trimmed(self, path: str, error: OSError | None) -> None:
        iostream = "stdout" if path in self._attempt.dest.stdouts.values() else "stderr"
        if error is None:
            self._events.log_trimmed(iostream, path, self._attempt.spec.log_max_bytes or 0)
        elif not self._untrimmed:  # because the other logs are on the same file system
            self._untrimmed = True
            why = f"log_max_bytes has no effect, its oldest part cannot be removed: {error.strerror}"
            self._log_failed(iostream, path, OSError(error.errno, why, path))

    def abandon_tails(self) -> None:
        """End the Tails now, even during a write. From then on, they report no failure of a log."""
        self._abandoned = True
        for abandon in self._abandons:
            abandon.set()

    def dismiss(self) -> None:
        """Order the Workers to leave the registry, and release resources. The Tails have already ended. Idempotent."""
        if self._trimming is not None:
            self._trimming.end_all()
        self._dismiss(self._workers)
        self._workers = []
        while self._joined:  # a Tail whose destination had failed did not take these readers
            for feed in self._joined.popitem()[1]:
                feed.close()
        self.slots.close_outcomes()
        self._attempt.line.cut()
        self._attempt.spec.release_port()
        if not self._tails:  # otherwise the Tails own the destinations
            self._attempt.release()

    def _dismiss(self, workers: Iterable[Any]) -> None:
        """Let Workers leave pykka's registry when they have handled the messages that they have."""
        self._loop.post(_dispatch, self._actors(workers), None)

    def _actors(self, workers: Iterable[Any]) -> list[Worker]:
        return [actor for worker in workers if (actor := worker.actor_inbox.actor) is not None]


def _dispatch(actors: list[Worker], order: object | None) -> None:
    """Let Workers handle an order, or without one leave pykka's registry."""
    for actor in actors:
        if order is None:
            actor.leave()
        else:
            actor.dispatch(order)
