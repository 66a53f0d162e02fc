"""The Tail actor, which shows the output of ranks on one destination."""

from __future__ import annotations

import errno
import logging
import sys
import threading
import time
from collections import deque
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pykka
from pykka import messages as pykka_messages
from pykka._envelope import Envelope

from supervise import _platform as platform
from supervise._core.steps import TailDrained, TailEnded
from supervise._gang.asks import MemberStopRequested
from supervise._logs.lines import LineStream, source_bytes
from supervise._logs.reader import CHUNK_BYTES, WRITTEN_OVER, LogReader
from supervise._logs.screen import Screen, rows_of
from supervise._logs.sinks import Canceled, CancelToken, Sink, lines_to
from supervise._logs.watch import Pace, Watch, cancel_all, hold
from supervise._record import NamedTuple
from supervise._runtime.future import Reply
from supervise._runtime.wakeup import Bell
from supervise.events import log, say_at_last
from supervise.messages import Bare
from supervise.recording import repr_of, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from supervise._gang.attempt import Source
    from supervise._logs.trim import Trimming


# The destination of a Tail: one sink for the lines of several files, which are never mixed


class DestinationError(Exception):
    """A write to the destination failed. The cause is the error of the write."""


class TailDestination:
    """Destination that writes lines of files to a sink. Used on the Tail's thread, except for `end_if_stuck`."""

    def __init__(self, sink: Sink, abandon: CancelToken) -> None:
        """Own `sink`. `abandon` ends a write early."""
        self.reserved: LogReader | None = None
        """The file whose long line is shown in part. While there is one, no other file may be shown."""
        self._sink = sink
        self._abandon = abandon
        self._lock = threading.Lock()  # guards the next two attributes, as another thread may abandon the Tail
        self._pending = False  # whether a write or an open is pending that cannot be interrupted
        self._ended = False
        self._updating: set[LogReader] = set()  # files with an update that is not yet due
        self._prompt: LogReader | None = None  # the file whose prompt is the end of what is shown
        self._unfinished = False  # the last line ended without a newline

    def show(self, feed: LogReader, chunk: bytes, now_ns: int) -> None:
        """Show the lines that the next chunk of a file completes.

        Raises:
            Canceled: The Tail was abandoned.
            DestinationError: The destination failed. The same holds for `show_updates` and `finish`.
        """
        self._show(feed, lambda lines: lines.feed(chunk, now_ns))

    def show_updates(self, now_ns: int) -> None:
        r"""Show the rewritten lines (``\r``) and prompts whose update is due."""
        if self.reserved is None:
            for feed in list(self._updating):
                self._show(feed, lambda lines: lines.update(now_ns))

    def next_update_ns(self) -> int | None:
        """Return the time at which the next update is due; None if no update is pending."""
        if self.reserved is not None:
            return None
        return min((feed.lines.due_ns for feed in self._updating if feed.lines.due_ns is not None), default=None)

    def show_unfinished(self, feed: LogReader) -> None:
        """Show the pending updates of a file, before they are due."""
        for _ in range(2):  # there are up to two: of the bytes that wait for a movement of the cursor, and of a prompt
            if (due_ns := feed.lines.due_ns) is not None and self.reserved in (None, feed):
                self._show(feed, lambda lines: lines.update(due_ns))

    def finish(self, feed: LogReader) -> None:
        """Show the unfinished last line of a file."""
        self._show(feed, LineStream.finish)

    def _show(self, feed: LogReader, complete: Callable[[LineStream], bytes]) -> None:
        """Write the text that `complete` takes from the lines of a file."""
        lines = _told_time(feed)
        continues, out = lines.continues, complete(lines)
        try:
            if out and self._unfinished and not continues:
                self._write(b"\n")
            if out:
                if self._prompt is not None and self._prompt is not feed:
                    self._prompt.lines.interrupt()
                self._write(out)
                self._prompt = feed if feed.lines.prompted else None
                self._unfinished = not out.endswith(b"\n")
        except Canceled as given_up:
            shown = source_bytes(out, given_up.written_bytes, feed.lines.prefix, continues=continues)
            feed.shown_bytes = min(feed.offset, feed.shown_bytes + shown)
            raise
        feed.shown_bytes = feed.offset - feed.lines.held_bytes
        self._note(feed)

    def _note(self, feed: LogReader) -> None:
        """Record the state of the present line of `feed`."""
        if feed.lines.reserved:
            self.reserved = feed
        elif self.reserved is feed:
            self.reserved = None
        if feed.lines.due_ns is None:
            self._updating.discard(feed)
        else:
            self._updating.add(feed)

    def _write(self, data: bytes) -> None:
        with nullcontext() if self._sink.interruptible else self.uninterruptible():
            try:
                self._sink.write(data, self._abandon)
            except Canceled:
                raise
            except Exception as error:
                raise DestinationError from error

    @contextmanager
    def uninterruptible(self) -> Iterator[None]:
        """Let `end_if_stuck` end the Tail during a write, or during an open, which a dead file server may never answer.

        Raises:
            Canceled: The Tail was ended meanwhile.
        """
        with self._lock:
            self._pending = True
        try:
            yield
        finally:
            with self._lock:
                self._pending = False
            if self._ended:
                raise Canceled(0)

    def end_if_stuck(self) -> bool:
        """End the Tail if a pending write or open cannot be interrupted; return whether the Tail was ended.

        Thread-safe.
        """
        with self._lock:
            stuck = self._pending and not self._ended
            self._ended = self._ended or stuck
        return stuck

    def close(self) -> None:
        """Close the sink."""
        self._sink.close()

    def end(self) -> bool:
        """End the Tail; return whether this call has ended it."""
        with self._lock:
            ended, self._ended = self._ended, True
        return not ended


def _told_time(feed: LogReader) -> LineStream:
    """Return the stream of a file, whose prefix has the present time if it has one: ``15:04:05.678``."""
    if feed.lines.has_time:
        now_s = time.time()
        feed.lines.tell_time(f"{time.strftime('%H:%M:%S', time.localtime(now_s))}.{int(now_s * 1000) % 1000:03}")
    return feed.lines


# The terminal of `supervise run` as the destination of a Tail. Unfinished lines are rows below the other lines


_INTERVAL_NS = 100_000_000
"""Minimum time between two redraws of changed unfinished lines."""


class ScreenDestination(TailDestination):
    """Destination that writes lines of files to a terminal, and draws the unfinished line of each rank below them."""

    def __init__(self, sink: Sink, abandon: CancelToken, screen: Screen) -> None:
        """Own `sink`, which writes to the terminal of `screen`. `abandon` ends a write early."""
        super().__init__(sink, abandon)
        self._screen = screen
        self._live: dict[LogReader, None] = {}  # files with an unfinished line, in the order of their changes
        self._erased = False  # whether a write has erased the rows since the last drawing
        self._drawn_ns = 0
        self._due_ns: int | None = None

    def show(self, feed: LogReader, chunk: bytes, now_ns: int) -> None:
        """Show the lines that the next chunk of a file completes; see `TailDestination.show`.

        If the same rank has a prompt on its other stream, the prompt is shown before these lines.
        """
        if chunk and self.reserved is None:
            for other in [other for other in self._live if other is not feed and _is_prompt_of(other, feed.local_rank)]:
                self.finish(other)
        super().show(feed, chunk, now_ns)

    def show_updates(self, now_ns: int) -> None:
        """Draw the rows if they are due, after the lines that are due."""
        super().show_updates(now_ns)
        due = self._erased or (self._due_ns is not None and now_ns >= self._due_ns)
        if not due or self.reserved is not None or self._unfinished:
            return
        self._screen.rows = rows_of(
            [(feed.local_rank, _told_time(feed).prefix, feed.lines.unfinished_rows) for feed in self._live]
        )
        self._due_ns, self._drawn_ns = None, now_ns
        if data := self._screen.erasure() + self._screen.drawing():
            super()._write(data.encode(errors="replace"))
        self._erased = False

    def next_update_ns(self) -> int | None:
        """Return the time at which the rows must be drawn again; None if they have not changed."""
        moments = (super().next_update_ns(), None if self.reserved is not None else self._due_ns)
        return min((moment for moment in moments if moment is not None), default=None)

    def _note(self, feed: LogReader) -> None:
        super()._note(feed)
        before = feed in self._live
        self._live.pop(feed, None)
        if feed.lines.unfinished_rows:
            self._live[feed] = None
        elif not before:
            return
        if self._due_ns is None:
            self._due_ns = max(self._drawn_ns, time.monotonic_ns()) + _INTERVAL_NS

    def _write(self, data: bytes) -> None:
        erasure = self._screen.erasure().encode()
        self._erased = self._erased or bool(erasure)
        try:
            super()._write(erasure + data)
        except Canceled as given_up:
            raise Canceled(max(given_up.written_bytes - len(erasure), 0)) from None

    def close(self) -> None:
        """Remove the rows, and close the sink."""
        self._screen.rows = ()
        super().close()


def _is_prompt_of(feed: LogReader, local_rank: int) -> bool:
    r"""Return whether the last output of the rank is a line without newline that is a prompt and not a progress bar."""
    lines = feed.lines
    return feed.local_rank == local_rank and not lines.is_rewritten and feed.size_bytes() == feed.offset


# The inbox of a Tail: pykka's inbox with a deadline


class Due(Bare):
    """A file has changed, the Tail was abandoned, or the deadline of the inbox has expired."""


class DueInbox:
    """Inbox that returns `Due` if no message arrives before the deadline `due_ns`.

    The thread that waits does not wake up before the deadline.
    """

    def __init__(self) -> None:
        """Begin empty and without a deadline."""
        self._queue: deque[Envelope[Any]] = deque()
        self._bell = Bell()
        self.due_ns: int | None = None
        """Monotonic time at which to return `Due`; None for never. Only the thread of the actor sets it."""

    def put(self, envelope: Envelope[Any], /) -> None:
        """Add an envelope. Thread-safe."""
        self._queue.append(envelope)
        self._bell.ring()

    def get(self) -> Envelope[Any]:
        """Return the next envelope. A message comes before `Due`."""
        while not self._queue:
            wait_s = None if self.due_ns is None else (self.due_ns - time.monotonic_ns()) / 1e9
            if not self._bell.wait(wait_s) and not self._queue:
                self.due_ns = None
                return Envelope(Due())
        return self._queue.popleft()

    def messages(self) -> list[Any]:
        """Return the messages that were not handled. Thread-safe."""
        return [envelope.message for envelope in self._queue.copy()]

    def empty(self) -> bool:
        """Whether there is no envelope."""
        return not self._queue


# The orders of a Supervisor to a Tail


class Drain(NamedTuple):
    """Show the remaining output, then end. Every rank is already reaped. Supervisor -> Tail.

    A Tail that shows files of `left` does not end, but reports `TailDrained`, and follows these files until the next
    `Drain`.
    """

    sizes: dict[str, int]
    """Path of each file to the number of its bytes to show."""
    left: Mapping[str, int] = MappingProxyType({})
    """Path of each file that processes may still write to the number of its bytes to show until the next `Drain`."""


class ShowWritten(NamedTuple):
    """Show what a suspended rank has written, also an unfinished line, then call `shown`. Supervisor -> Tail."""

    local_rank: int
    shown: Callable[[], object]
    """Called on the Tail's thread, unless the Tail ends before."""


class ChangeFiles(NamedTuple):
    """Show what is left in the log files of a rank's past life, then follow the files of its next life.

    Supervisor -> Tail. From then on, the Tail owns `feeds`. The processes of the past life have ended. The Tail closes
    their files once they are shown.
    """

    feeds: Sequence[LogReader]
    """Readers of the files of the next life. These files exist."""
    sizes: dict[str, int | None]
    """Path of each file of the past life to the number of its bytes to show. None: up to its present end."""


# The files of a Tail: those of each rank's present life, and those of past lives until they are shown


def readers(
    sink: Sink,
    sources: Sequence[Source],
    line_filter: Callable[[bytes], bool] | None,
    *,
    follow_writers: bool,
    screen: Screen | None = None,
    trimming: Trimming | None = None,
) -> list[LogReader]:
    """Return a reader of each file to show; see `Tail` for the arguments. Call this before the ranks are launched."""
    return [
        LogReader(
            source.path,
            lines_to(sink, source.prefix, line_filter, screen, prompts=source.prompts),
            source.local_rank,
            follows_writer=follow_writers,
            trimmer=None if trimming is None else trimming.of(source.path),
        )
        for source in sources
    ]


class TailFiles:
    """The readers of one Tail. Used on the Tail's thread."""

    def __init__(self, feeds: Sequence[LogReader]) -> None:
        """Begin with the readers of the ranks' first lives."""
        self._feeds = list(feeds)
        self._past: set[LogReader] = set()
        self._before: dict[LogReader, list[LogReader]] = {}
        """Reader of a later life to the readers of the last life before it whose files could be opened."""
        self.unopened: set[LogReader] = set()
        """Readers of later lives, whose files are opened only at their turn."""
        self._missed_bytes = 0

    def __iter__(self) -> Iterator[LogReader]:
        """Yield the readers of present and past lives."""
        return iter(self._feeds)

    def of(self, local_rank: int) -> list[LogReader]:
        """Return the readers of a rank."""
        return [feed for feed in self._feeds if feed.local_rank == local_rank]

    def is_past(self, feed: LogReader) -> bool:
        """Whether the file is one of a past life."""
        return feed in self._past

    def turns(self, ready: Mapping[LogReader, None]) -> list[LogReader]:
        """Return those files of `ready` that may be read now.

        The files of a life wait until the life before it is shown.
        """
        if not self._before:
            return list(ready)
        return [feed for feed in ready if ready.keys().isdisjoint(self._before.get(feed, ()))]

    def change(self, message: ChangeFiles) -> tuple[list[LogReader], Sequence[LogReader]]:
        """Add the readers of a rank's next life; return the readers to read from now, and those to open now.

        The readers of the rank's past life end. If the life before the past one is not shown yet, the readers of the
        next life are opened only at their turn. So a slow destination costs descriptors for at most two lives of a
        rank.
        """
        # The files of both lives may have the same path
        past = [feed for feed in self._feeds if feed.path in message.sizes and feed not in self._past]
        late = any(not self._past.isdisjoint(self._before.get(feed, ())) for feed in past)
        before: list[LogReader] = []
        for feed in past:
            feed.changed = True
            feed.end_at(message.sizes[feed.path])
            before += [feed] if self._is_readable(feed) else self._before.get(feed, ())
        self._past.update(past)
        self._feeds += message.feeds
        self._before.update((feed, before) for feed in message.feeds)
        if late:
            self.unopened.update(message.feeds)
        for feed in past:
            if not self._is_readable(feed):
                self.drop_if_past(feed)
        return [feed for feed in (*past, *message.feeds) if self._is_readable(feed)], () if late else message.feeds

    def _is_readable(self, feed: LogReader) -> bool:
        return feed.is_open or feed in self.unopened

    def end_at(self, sizes: Mapping[str, int]) -> list[LogReader]:
        """End all files; return those with more to show.

        The files of present lives end at these sizes (path to size).
        """
        unfinished = [feed for feed in self._feeds if not feed.is_done()]
        for feed in unfinished:
            feed.changed = True
            if feed not in self._past:
                feed.end_at(sizes.get(feed.path))
        return [feed for feed in unfinished if self._is_readable(feed)]

    def drop_if_past(self, feed: LogReader) -> None:
        """Close a file of a past life, with its descriptor and watch, because the file was shown or has failed.

        Do nothing for a file of a present life.
        """
        if feed not in self._past:
            return
        self._missed_bytes += feed.remaining_bytes()
        self._past.remove(feed)
        self._before.pop(feed, None)
        self._feeds.remove(feed)
        feed.close()

    def remaining_bytes(self, unhandled: Iterable[object]) -> int:
        """Return how many bytes of all files are not shown, if the Tail ends without handling these messages."""
        for message in unhandled:
            if isinstance(message, ChangeFiles):
                self.change(message)
            elif isinstance(message, Drain):
                self.end_at(message.sizes)
        return self._missed_bytes + sum(feed.remaining_bytes() for feed in self._feeds)


class Tail(pykka.ThreadingActor):
    """Actor that shows files on one destination until the owner sends `Drain`. Then it sends the owner one `TailEnded`.

    Only the owner ends a Tail: by `Drain`, or by setting `abandon`. If other code requests a stop, the Tail sends the
    owner `MemberStopRequested` and continues; the stop is answered when the Tail has ended. The failure of a file does
    not end the Tail. A failure of the destination ends it at once, and `TailEnded` has the error. No exception leaves a
    Tail.

    A Tail has its own thread, because a console may be slow. The thread is a daemon, because a write or an open may
    block forever.
    """

    use_daemon_thread = True
    ends_with_its_thread = True  # see `LoopActor`
    actor_inbox: DueInbox

    def __init__(
        self,
        *,
        name: str,
        sink: Sink,
        sources: Sequence[Source],
        owner: pykka.ActorRef[Any],
        line_filter: Callable[[bytes], bool] | None = None,
        abandon: CancelToken | None = None,
        on_error: Callable[[str, OSError], object],
        warns: bool = False,
        follows_writers: bool = False,
        screen: Screen | None = None,
        trimming: Trimming | None = None,
    ) -> None:
        """Make a Tail. It opens its sources when it starts.

        Args:
            name: Name of the Tail in `TailEnded`.
            sink: The destination. The Tail owns and closes it.
            sources: The files to show. They exist, and the Tail only reads them.
            owner: Receives `TailEnded` and `MemberStopRequested`.
            line_filter: Function that returns whether to show a raw line; None shows all lines.
            abandon: Token that ends the Tail soon when any thread sets it, also during a write or an open. The Tail
                owns and closes the token.
            on_error: Function that is called on the Tail's thread, once per file, with the path of a failed file and
                the error.
            warns: Whether to report an overwritten log also on stderr, because events have no listener.
            follows_writers: Whether to keep a copy of the descriptor to which each rank writes. The offset of the
                descriptor shows how far the rank has written.
            screen: How a console shows unfinished lines; None: it shows the states of a rewritten line as lines.
            trimming: The bounds of the files; None if they have none.
        """
        super().__init__()
        self.name = name
        self._owner = owner
        self._abandon = abandon or CancelToken()
        self._destination = (
            TailDestination(sink, self._abandon)
            if screen is None or not screen.is_on(getattr(sink, "fd", -1))
            else ScreenDestination(sink, self._abandon, screen)
        )
        self._on_error = on_error
        self._warns = warns and sink.is_console
        found = readers(sink, sources, line_filter, follow_writers=follows_writers, screen=screen, trimming=trimming)
        self._feeds = TailFiles(found)
        self._lock = threading.Lock()  # guards the next attribute, which other threads use, too
        self._changed: dict[LogReader, None] = {}
        self._ready: dict[LogReader, None] = {}  # readers that may have unread data, in turn
        self._pace = Pace()
        self._draining = False
        self._wanted: list[ShowWritten] = []  # the orders whose ranks have output that is not shown
        self._left: dict[LogReader, int] = {}  # files that leftovers write, with the number of their bytes to show
        self._drained = False  # whether the output of the ranks was shown, and that of leftovers is followed
        self._stop_replies: list[Reply[None]] = []
        self._held: Watch | None = None

    @staticmethod
    def _create_actor_inbox() -> DueInbox:
        return DueInbox()

    @staticmethod
    def _create_future() -> Reply[Any]:
        return Reply()

    def _start_actor_loop(self) -> None:
        """Start this actor's thread and the thread that watches files.

        Raises:
            OSError: No thread or no descriptor is available. There is no Tail.
        """
        try:
            self._held = hold()
            super()._start_actor_loop()
        except (OSError, RuntimeError) as error:
            pykka.ActorRegistry.unregister(self.actor_ref)
            if self._held is not None:
                self._held.cancel()
            if isinstance(error, RuntimeError):
                raise platform.no_thread(f"the logs of {self.name}", error) from error
            raise

    def on_start(self) -> None:
        """Open and watch the files, and show their contents."""
        self._guarded(self._open)
        if self._held is not None:
            self._held.cancel()

    def _handle_receive(self, message: Any) -> Any:
        if isinstance(message, Due):
            return self._guarded(self._step)
        if isinstance(message, Drain | ChangeFiles | ShowWritten):
            return self._guarded(partial(self._obey, message))
        if isinstance(message, pykka_messages._ActorStop):  # noqa: SLF001 - pykka has no public name for it
            return self._asked_to_stop()
        try:
            return super()._handle_receive(message)
        except BaseException:
            reply: Reply[Any] = Reply()
            reply.set_exception(sys.exc_info())
            return reply

    def _obey(self, order: Drain | ChangeFiles | ShowWritten) -> None:
        """Follow an order of the Supervisor."""
        match order:
            case Drain():
                self._drain(order)
            case ChangeFiles():
                self._change_files(order)
            case ShowWritten():
                self._wanted.append(order)
                self._ready |= dict.fromkeys(self._feeds.of(order.local_rank))
        self._step()

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Canceled:
            self._end()
        except DestinationError as failed:  # the files have all output, and the gang continues
            self._end(text_of(failed.__cause__) or repr_of(failed.__cause__))
        except BaseException as error:  # pykka would stop every actor of the process
            log.exception("the Tail of %s crashed", self.name)
            self._end(repr_of(error))

    def _asked_to_stop(self) -> Reply[None]:
        reply: Reply[None] = Reply()
        self._stop_replies.append(reply)
        if len(self._stop_replies) == 1:
            try:
                self._owner.tell(MemberStopRequested())
            except pykka.ActorDeadError:  # without an owner, no `Drain` comes
                self._guarded(partial(self._obey, Drain(sizes={})))
        return reply

    # Files

    def _open(self) -> None:
        self._abandon.on_set(self._abandoned)
        self._open_files(self._feeds)
        self._step()

    def _open_files(self, feeds: Iterable[LogReader]) -> None:
        for feed in feeds:
            try:
                self._open_one(feed)
            except OSError as error:
                self._report(feed.path, error)
                feed.let_go_of_trimmer()
            if feed.is_open:
                self._ready[feed] = None

    def _open_one(self, feed: LogReader) -> None:
        try:
            with self._destination.uninterruptible():
                if self._abandon.is_set():  # because its callback may have run before
                    raise Canceled(0)  # noqa: TRY301 - the block tells the abandoning thread that it is in time
                feed.open(partial(self._notice, feed))
        except Canceled:
            feed.close()  # the abandoning thread may have closed the reader before it was open
            raise

    def _change_files(self, message: ChangeFiles) -> None:
        to_read, to_open = self._feeds.change(message)
        self._ready |= dict.fromkeys(to_read)
        self._open_files(to_open)  # before a watch is given back: the end of the last one ends the watching thread

    def _open_late(self, feed: LogReader) -> None:
        """Open a file of a life that had to wait for an earlier life."""
        self._feeds.unopened.remove(feed)
        self._open_files([feed])
        if self._draining or self._feeds.is_past(feed):
            feed.end_at(feed.limit_bytes)

    def _notice(self, feed: LogReader) -> None:
        """Note that a file has changed; tell it once until the Tail looks. Called on the watching thread."""
        with self._lock:
            known = bool(self._changed)
            self._changed[feed] = None
        if not known:
            self._wake()

    def _wake(self) -> None:
        with suppress(pykka.ActorDeadError):
            self.actor_ref.tell(Due())

    def _drain(self, message: Drain) -> None:
        if not self._draining:
            self._draining = True
            if not self._drained:
                present = (feed for feed in self._feeds if feed.is_open and not self._feeds.is_past(feed))
                self._left = {feed: message.left[feed.path] for feed in present if feed.path in message.left}
            self._ready = dict.fromkeys(self._feeds.end_at(message.sizes))

    def _step(self) -> None:
        """Read and show until no data is left or a message arrives. Then set the deadline of the inbox."""
        inbox = self.actor_inbox
        inbox.due_ns = None
        while not self._abandon.is_set():
            now_ns = time.monotonic_ns()
            self._take_changed(now_ns)
            self._destination.show_updates(now_ns)
            self._answer()
            if self._draining and not self._ready:
                if self._drained or not self._left:
                    break
                self._follow_leftovers()
            turns = self._turns()
            if not turns:
                inbox.due_ns = self._next_moment()
                return
            for feed in turns:
                if self._destination.reserved is None or self._destination.reserved is feed:
                    self._read(feed, now_ns)
            if not inbox.empty():
                inbox.due_ns = now_ns
                return
        self._end()

    def _answer(self) -> None:
        """Call the functions of those orders whose ranks have no unread output, after their unfinished lines."""
        for order in [
            order for order in self._wanted if self._ready.keys().isdisjoint(self._feeds.of(order.local_rank))
        ]:
            for feed in self._feeds.of(order.local_rank):
                self._destination.show_unfinished(feed)
            self._wanted.remove(order)
            order.shown()

    def _follow_leftovers(self) -> None:
        """Report that the output of the ranks is shown, and show what their leftovers write."""
        self._draining, self._drained = False, True
        for feed, limit_bytes in self._left.items():
            feed.limit_bytes = limit_bytes
            self._ready[feed] = None
        self._quietly(partial(self._owner.tell, TailDrained()))

    def _take_changed(self, now_ns: int) -> None:
        if self._changed and now_ns >= self._pace.due_ns and not self._draining:
            with self._lock:
                changed, self._changed = self._changed, {}
            for feed in changed:
                feed.changed = True
                if feed.is_open:
                    self._ready[feed] = None
            self._pace.look(now_ns)

    def _turns(self) -> list[LogReader]:
        if self._destination.reserved is not None:
            return [self._destination.reserved] if self._destination.reserved in self._ready else []
        return self._feeds.turns(self._ready)

    def _next_moment(self) -> int | None:
        moments = [self._pace.due_ns] if self._changed else []
        if (update_ns := self._destination.next_update_ns()) is not None:
            moments.append(update_ns)
        return min(moments, default=None)

    def _read(self, feed: LogReader, now_ns: int) -> None:
        if feed in self._feeds.unopened:
            self._open_late(feed)
        if not feed.is_open:
            self._ready.pop(feed, None)
            self._feeds.drop_if_past(feed)
            return
        if feed.changed and feed.was_written_over():
            self._start_again(feed)
            return
        hole_bytes = feed.hole_bytes
        try:
            chunk = feed.read()
        except OSError as error:
            self._report(feed.path, error)
            self._finish(feed)
            feed.close()
            self._feeds.drop_if_past(feed)
            return
        if not chunk and feed.was_written_over():
            self._start_again(feed)
            return
        if feed.hole_bytes and not hole_bytes:
            self._report(feed.path, OSError(errno.ENODATA, "the log has a hole, which is not shown", feed.path))
        self._destination.show(feed, chunk, now_ns)
        if feed.trimmer is not None:
            feed.trimmer.trim()
        if len(chunk) < CHUNK_BYTES:  # end of file, at least for now
            unfinished = feed in self._left and not self._drained and not feed.lines.reserved
            if (self._draining or self._feeds.is_past(feed)) and not unfinished:
                self._finish(feed)
            self._ready.pop(feed, None)
            self._feeds.drop_if_past(feed)

    def _start_again(self, feed: LogReader) -> None:
        """Read an overwritten file from the beginning. Report the file the first time."""
        self._finish(feed)
        self._ready[feed] = None
        if not feed.was_truncated:
            self._report(feed.path, OSError(errno.ESTALE, WRITTEN_OVER, feed.path))
            if self._warns:
                say_at_last(f"{feed.path}: {WRITTEN_OVER}", logging.WARNING)
        feed.start_again()

    def _finish(self, feed: LogReader) -> None:
        """Show the unfinished last line of `feed`."""
        self._destination.finish(feed)
        self._ready.pop(feed, None)

    def _report(self, path: str, error: OSError) -> None:
        try:
            self._on_error(path, error)
        except Exception:
            log.exception("on_error of the Tail of %s raised", self.name)

    # The end

    def _abandoned(self) -> None:
        """End soon. If a pending write or open cannot be interrupted, end now. Called on the abandoning thread."""
        if self._destination.end_if_stuck():
            self._leave(None)  # the Tail's thread closes the destination if its call returns
        else:
            self._wake()

    def _end(self, error: str | None = None) -> None:
        self._quietly(self._destination.close)
        if self._destination.end():
            self._leave(error)
        else:  # the abandoning thread leaves, or has left; it does not wake this thread if it waits for a message
            self.actor_stopped.wait()

    def _leave(self, error: str | None) -> None:
        """Release resources, leave the registry, answer stops, and send the owner `TailEnded`."""
        if self._drained and not self._draining:
            for feed, limit_bytes in self._left.items():
                feed.limit_bytes = min(limit_bytes, feed.size_bytes())
        remaining_bytes = self._feeds.remaining_bytes(self.actor_inbox.messages())
        watches = [watch for feed in self._feeds for watch in feed.let_go_of_watch()]
        for feed in self._feeds:
            self._quietly(feed.close)
        self._quietly(self._abandon.close)
        self._quietly(self._stop)
        for reply in self._stop_replies:
            self._quietly(partial(reply.set, None))
        ended = TailEnded(name=self.name, remaining_bytes=remaining_bytes, error=error, drained=self._drained)
        self._quietly(partial(self._owner.tell, ended))
        self._quietly(partial(cancel_all, watches))  # last, because this wakes another thread

    def _quietly(self, act: Callable[[], object]) -> None:
        try:
            act()
        except BaseException as error:
            log.debug("the Tail of %s, at its end: %r", self.name, error)
