"""The files of a Tail: those of each rank's present life, and those of past lives until they are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervise._gang.orders import ChangeFiles, Drain
from supervise._logs.reader import LogReader
from supervise._logs.sinks import lines_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from supervise._gang.tail_specs import Source
    from supervise._logs.screen import Screen
    from supervise._logs.sinks import Sink
    from supervise._logs.trim import Trimming
    from supervise._logs.watch import Watch


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
    found = [
        LogReader(
            source.path,
            lines_to(sink, source.prefix, line_filter, screen, prompts=source.prompts),
            source.local_rank,
        )
        for source in sources
    ]
    for feed in found:
        if follow_writers:
            feed.follow_writer()
        if trimming is not None:
            feed.be_trimmed_by(trimming.of(feed.path))
    return found


class TailFiles:
    """The readers of one Tail. Used on the Tail's thread."""

    def __init__(self, feeds: Sequence[LogReader]) -> None:
        """Begin with the readers of the ranks' first lives."""
        self._feeds = list(feeds)
        self._past: set[LogReader] = set()
        self._before: dict[LogReader, list[LogReader]] = {}
        """Reader of a later life to the readers of the last life before it whose files could be opened."""
        self._unopened: set[LogReader] = set()
        self._missed_bytes = 0

    def __iter__(self) -> Iterator[LogReader]:
        """Yield the readers of present and past lives."""
        return iter(self._feeds)

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

    def change(self, message: ChangeFiles) -> list[LogReader]:
        """Add the readers of a rank's next life; return the readers to read from now.

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
            self._unopened.update(message.feeds)
        for feed in past:
            if not self._is_readable(feed):
                self.drop_if_past(feed)
        return [feed for feed in (*past, *message.feeds) if self._is_readable(feed)]

    def opens_at_its_turn(self, feed: LogReader) -> bool:
        """Whether the file is to be opened at its first read."""
        return feed in self._unopened

    def take_its_turn(self, feed: LogReader) -> bool:
        """Return whether the file must be opened now, because its turn has come. The next call returns False."""
        opens = feed in self._unopened
        self._unopened.discard(feed)
        return opens

    def _is_readable(self, feed: LogReader) -> bool:
        return feed.is_open or feed in self._unopened

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

    def let_go_of_watches(self) -> list[Watch]:
        """Return the watches, which the caller must then end."""
        return [watch for feed in self._feeds for watch in feed.let_go_of_watch()]
