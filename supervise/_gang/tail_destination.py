"""The destination of a Tail: one sink for the lines of several files, which are never mixed."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from supervise._logs.lines import source_bytes
from supervise._logs.screen import rows_of
from supervise._logs.sinks import Canceled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervise._logs.lines import LineStream
    from supervise._logs.reader import LogReader
    from supervise._logs.screen import Screen
    from supervise._logs.sinks import CancelToken, Sink


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
        self._lock = threading.Lock()  # guards the next three attributes, as another thread may abandon the Tail
        self._writing = False
        self._opening = False
        self._ended = False
        self._updating: set[LogReader] = set()  # files with an update that is not yet due
        self._prompt: LogReader | None = None  # the file whose prompt is the end of what is shown
        self._unfinished = False  # the last line ended without a newline

    @property
    def is_console(self) -> bool:
        """Whether the sink is a console."""
        return self._sink.is_console

    def show(self, feed: LogReader, chunk: bytes, now_ns: int) -> None:
        """Show the lines that the next chunk of a file completes.

        Raises:
            Canceled: The Tail was abandoned.
            DestinationError: The destination failed. The same holds for `show_updates` and `finish`.
        """
        continues = _told_time(feed).continues
        self._show(feed, feed.lines.feed(chunk, now_ns), continues=continues)

    def show_updates(self, now_ns: int) -> None:
        r"""Show the rewritten lines (``\r``) and prompts whose update is due."""
        if self.reserved is None:
            for feed in list(self._updating):
                continues = _told_time(feed).continues
                self._show(feed, feed.lines.update(now_ns), continues=continues)

    def next_update_ns(self) -> int | None:
        """Return the time at which the next update is due; None if no update is pending."""
        if self.reserved is not None:
            return None
        return min((feed.lines.due_ns for feed in self._updating if feed.lines.due_ns is not None), default=None)

    def finish(self, feed: LogReader) -> None:
        """Show the unfinished last line of a file."""
        continues = _told_time(feed).continues
        self._show(feed, feed.lines.finish(), continues=continues)

    def _show(self, feed: LogReader, out: bytes, *, continues: bool) -> None:
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
        except Exception as error:
            raise DestinationError from error
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
        with self._lock:
            self._writing = True
        try:
            self._sink.write(data, self._abandon)
        finally:
            with self._lock:
                self._writing = False
        if self._ended:  # `end_if_stuck` has set it meanwhile
            raise Canceled(0)

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Let `end_if_stuck` end the Tail while its thread opens a file.

        A dead file server may never answer the open.

        Raises:
            Canceled: The Tail was abandoned before the open, or was ended during the open.
        """
        with self._lock:
            self._opening = True
        try:
            if self._abandon.is_set():  # because its callback may have run before
                raise Canceled(0)
            yield
        finally:
            with self._lock:
                self._opening = False
            if self._ended:
                raise Canceled(0)

    def end_if_stuck(self) -> bool:
        """End the Tail if a pending write or open cannot be interrupted; return whether the Tail was ended.

        Thread-safe.
        """
        with self._lock:
            pending = self._opening or (self._writing and not self._sink.interruptible)
            stuck = pending and not self._ended
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
        try:
            if data := self._screen.erasure() + self._screen.drawing():
                super()._write(data.encode(errors="replace"))
        except Canceled:
            raise
        except Exception as error:
            raise DestinationError from error
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
