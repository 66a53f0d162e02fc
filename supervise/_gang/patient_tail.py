"""A Tail whose files may be created later, or never."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from supervise._gang.tail import Tail
from supervise._logs.creation import FileCreation

if TYPE_CHECKING:
    from supervise._gang.orders import Drain
    from supervise._logs.reader import LogReader


class PatientTail(Tail):
    """Tail that shows each file as soon as it exists.

    A folder that may not be read cannot be watched by inotify. In such a folder, the Tail finds a new file only at the
    `Drain`.
    """

    def __init__(self, **what: Any) -> None:
        """Take the arguments of `Tail`. The sources need not exist."""
        super().__init__(**what)
        self._awaited: dict[LogReader, FileCreation] = {
            feed: FileCreation(feed.path, partial(self._came, feed)) for feed in self._feeds
        }
        self._news: dict[LogReader, None] = {}  # guarded by the lock

    @property
    def shown_bytes(self) -> int:
        """Number of bytes, over all files, that were shown or filtered out. Thread-safe."""
        return sum(feed.shown_bytes for feed in self._feeds)

    def _open(self) -> None:
        self._abandon.on_set(self._abandoned)
        self._news = dict.fromkeys(self._feeds)
        self._step()

    def _came(self, feed: LogReader) -> None:
        """Note that a file may exist. Called on the watching thread."""
        with self._lock:
            known = feed in self._news
            self._news[feed] = None
        if not known:
            self._wake()

    def _step(self) -> None:
        self._take_in()
        super()._step()

    def _drain(self, message: Drain) -> None:
        if not self._draining:
            with self._lock:
                self._news = dict.fromkeys(self._awaited)
            self._take_in()
        super()._drain(message)

    def _take_in(self) -> None:
        """Open the new files. Ignore files that appear after a `Drain`, because they belong to another run."""
        if self._draining:
            return
        with self._lock:
            news, self._news = self._news, {}
        for feed in news:
            arrival = self._awaited.get(feed)
            if arrival is None or not arrival.is_there():
                continue
            arrival.cancel()
            del self._awaited[feed]
            try:
                self._open_one(feed)
            except OSError as error:
                self._report(feed.path, error)
            if feed.is_open:
                self._ready[feed] = None

    def _leave(self, error: str | None) -> None:
        for arrival in self._awaited.values():
            self._quietly(arrival.cancel)
        super()._leave(error)
