"""`TailLog`: log files shown without a gang."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO, cast

import pykka

from supervise._core.steps import TailEnded
from supervise._gang.attempt import Source
from supervise._gang.tail import Drain, Tail
from supervise._logs import sinks
from supervise._logs.watch import FileCreation
from supervise._printable import as_prefix
from supervise._runtime.future import Reply
from supervise.events import log

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Mapping

    from supervise._logs.reader import LogReader


# A Tail whose files may be created later, or never


class PatientTail(Tail):
    """Tail that shows each file as soon as it exists.

    A folder that may not be read cannot be watched by inotify. In such a folder, the Tail finds a new file only at the
    `Drain`.
    """

    def __init__(self, **what: Any) -> None:
        """Take the arguments of `Tail`. The sources need not exist."""
        super().__init__(**what)
        self._awaited: dict[LogReader, FileCreation] = {
            feed: FileCreation(feed.path, partial(self._notice, feed)) for feed in self._feeds
        }

    @property
    def shown_bytes(self) -> int:
        """Number of bytes, over all files, that were shown or filtered out. Thread-safe."""
        return sum(feed.shown_bytes for feed in self._feeds)

    def _open(self) -> None:
        self._abandon.on_set(self._abandoned)
        self._open_new(self._awaited)
        self._step()

    def _take_changed(self, now_ns: int) -> None:
        super()._take_changed(now_ns)
        self._open_new(feed for feed in self._awaited if feed.changed)

    def _drain(self, message: Drain) -> None:
        if not self._draining:  # files that appear after a `Drain` belong to another run
            self._open_new(self._awaited)
        super()._drain(message)

    def _open_new(self, feeds: Iterable[LogReader]) -> None:
        """Open those of the awaited files that exist now."""
        for feed in list(feeds):
            feed.changed = False
            if self._awaited[feed].is_there():
                self._awaited.pop(feed).cancel()
                self._open_files([feed])

    def _leave(self, error: str | None) -> None:
        for arrival in self._awaited.values():
            self._quietly(arrival.cancel)
        super()._leave(error)


_STUCK_S = 5.0
"""How long a destination may block before it is abandoned."""


def _every_line(_: str) -> bool:
    return True


def _is_terminal(stream: TextIO) -> bool:
    """Whether a stream is a terminal. On a terminal, a carriage return rewrites a line, and each line is completed."""
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


class _NoPool:
    """Stand-in for PyTorch's thread pool, with its flag for a shutdown."""

    _shutdown = False


class TailLog:
    """Shows the contents of files as they are written, from `start` until `stop`.

    The files may be created later, or never. Each line has the prefix ``[<name><rank>]:`` or that of its rank; lines
    of different files never mix. A file that cannot be read is logged once. On a terminal, a line that rewrites
    itself with a carriage return is shown in its last state.

    Args:
        name: Begins the prefix of every line, before the rank.
        log_files: Rank to path.
        dst: Any text stream. One with a file descriptor of its own is written to directly.
        log_line_prefixes: Rank to the prefix of its lines.
        interval_sec: PyTorch's interval of polling; ignored.
        log_line_filter: Returns whether to show a line, which includes its newline; None shows all.
    """

    def __init__(  # noqa: PLR0917 - PyTorch's order
        self,
        name: str,
        log_files: Mapping[int, str],
        dst: TextIO,
        log_line_prefixes: Mapping[int, str] | None = None,
        interval_sec: float = 0.1,
        log_line_filter: Callable[[str], bool] | None = _every_line,
    ) -> None:
        self._name = name
        self._log_files = log_files
        self._dst = dst
        self._log_line_prefixes = log_line_prefixes or {}
        self._interval_sec = interval_sec
        self._log_line_filter = log_line_filter
        self._threadpool = _NoPool() if log_files else None
        self._follower: _Follower | None = None
        self._stopped = False

    def start(self) -> TailLog:
        """Begin to show the files; return itself. Idempotent.

        Raises:
            RuntimeError: This object was stopped. Create another one.
        """
        if self._stopped:
            raise RuntimeError(f"the tail of {self._name} was stopped; make another to start again")
        sources = self._sources()
        if sources and self._follower is None:
            self._follower = _follow(self._name, self._dst, sources, self._log_line_filter, self._failed)
        return self

    def _sources(self) -> list[Source]:
        return [
            Source(
                local_rank=rank,
                path=str(path),
                prefix=as_prefix(self._log_line_prefixes.get(rank, f"[{self._name}{rank}]:")).encode(),
            )
            for rank, path in self._log_files.items()
            if path and path != os.devnull
        ]

    def _failed(self, path: str, error: OSError) -> None:
        """Log the failure of a file. Called on the Tail's thread."""
        ranks = [rank for rank, file in self._log_files.items() if str(file) == path]
        who = f"{self._name}{ranks[0]}" if ranks else self._name
        log.error("error in log tailer for %s. %s: %s", who, type(error).__name__, error)

    def stop(self) -> None:
        """Show the rest of the files as they are now, and end. Idempotent.

        The call always returns. If a destination blocks for seconds, it is abandoned, and a warning has the number of
        bytes that were not shown and are only in the files.
        """
        self._stopped = True
        follower, self._follower = self._follower, None
        if self._threadpool is not None:
            self._threadpool._shutdown = True  # noqa: SLF001 - a class of supervise
        if follower is not None:
            ended = follower.end()
            if ended.error is not None or ended.remaining_bytes:
                log.warning(
                    "the log of %s was not shown to its end, %d bytes are only in its files: %s",
                    self._name,
                    ended.remaining_bytes,
                    ended.error or "the destination takes nothing more",
                )

    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped


def tail_logfile(  # noqa: PLR0917 - PyTorch's order
    header: str,
    file: str,
    dst: TextIO,
    finished: threading.Event,
    interval_sec: float,  # noqa: ARG001 - only PyTorch polls
    log_line_filter: Callable[[str], bool] | None = None,
) -> None:
    """Show one file until `finished` is set and its contents are shown. Blocks.

    Args:
        header: Prefix of every line.
        file: Path of the file, which may be created later, or never.
        dst: Any text stream.
        finished: Another thread sets this event when the file is complete.
        interval_sec: PyTorch's interval of polling; ignored.
        log_line_filter: Returns whether to show a line, which includes its newline; None shows all.

    Raises:
        OSError: The file cannot be read, or the destination failed.
    """
    errors: list[OSError] = []
    source = Source(local_rank=0, path=file, prefix=header.encode())
    follower = _follow(file, dst, [source], log_line_filter, lambda _, error: errors.append(error))
    if follower is None:
        return
    try:
        finished.wait()
    finally:
        ended = follower.end()
    if errors:
        raise errors[0]
    if ended.error is not None:
        raise OSError(ended.error)


def _follow(
    name: str,
    dst: TextIO,
    sources: list[Source],
    accepts: Callable[[str], bool] | None,
    on_error: Callable[[str, OSError], object],
) -> _Follower | None:
    """Begin to show the files in a stream; return None if the stream is None or closed."""
    sink = sinks.console(dst)
    if sink is None:
        return None
    sink.is_console = _is_terminal(dst)
    if accepts is None or accepts is _every_line:
        return _Follower(name, sink, sources, None, on_error)
    return _Follower(name, sink, sources, lambda line: accepts(line.decode("utf-8", "replace")), on_error)


class _Follower:
    """A running `PatientTail` and its owner."""

    actor_urn = "supervise-tail-log"

    def __init__(
        self,
        name: str,
        sink: sinks.Sink,
        sources: list[Source],
        line_filter: Callable[[bytes], bool] | None,
        on_error: Callable[[str, OSError], object],
    ) -> None:
        self._ended: Reply[TailEnded] = Reply()
        self._abandon = sinks.CancelToken()
        self._ref: pykka.ActorRef[PatientTail] | None = None
        owner = cast("pykka.ActorRef[Any]", self)
        try:
            self._ref = PatientTail.start(
                name=name,
                sink=sink,
                sources=sources,
                owner=owner,
                line_filter=line_filter,
                abandon=self._abandon,
                on_error=on_error,
            )
        except OSError:  # no thread is available
            self._abandon.close()
            sink.close()
            raise

    def tell(self, message: object) -> None:
        """Receive `TailEnded`, or `MemberStopRequested` after a `stop_all`. Called on the Tail's thread."""
        if isinstance(message, TailEnded):
            self._ended.set(message)
        elif self._ref is not None:
            self._ref.tell(Drain(sizes={}))

    def end(self) -> TailEnded:
        """Drain the Tail; return when it has ended. Abandon it if it makes no progress."""
        with contextlib.suppress(pykka.ActorDeadError):  # it has ended already
            if self._ref is not None:
                self._ref.tell(Drain(sizes={}))
        before = -1
        while before != (now := self._shown_bytes()):
            before = now
            with contextlib.suppress(pykka.Timeout):
                return self._ended.get(timeout=_STUCK_S)
        self._abandon.set()
        return self._ended.get(timeout=_STUCK_S)

    def _shown_bytes(self) -> int:
        """Return the number of bytes shown so far."""
        tail = self._ref._actor_weakref() if self._ref is not None else None  # noqa: SLF001 - read only
        return tail.shown_bytes if tail is not None else 0
