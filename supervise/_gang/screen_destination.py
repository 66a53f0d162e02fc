"""The terminal of `supervise run` as the destination of a Tail. Unfinished lines are rows below the other lines."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from supervise._gang.tail_destination import DestinationError, TailDestination
from supervise._logs.screen import rows_of
from supervise._logs.sinks import Canceled

if TYPE_CHECKING:
    from supervise._logs.reader import LogReader
    from supervise._logs.screen import Screen
    from supervise._logs.sinks import CancelToken, Sink

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
        """Draw the rows if they are due."""
        due = self._erased or (self._due_ns is not None and now_ns >= self._due_ns)
        if not due or self.reserved is not None or self._unfinished:
            return
        self._screen.rows = rows_of(
            [(feed.local_rank, feed.lines.prefix, feed.lines.unfinished) for feed in self._live]
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
        return None if self.reserved is not None else self._due_ns

    def _note(self, feed: LogReader) -> None:
        super()._note(feed)
        before = feed in self._live
        self._live.pop(feed, None)
        if feed.lines.unfinished.strip():
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
