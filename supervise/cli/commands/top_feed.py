"""The threads of the live table: readings, the end of the run, and requests. The main thread waits for none of them."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Literal

from supervise import _platform as platform
from supervise._control.client import ControlClient, ControlError
from supervise._printable import one_line
from supervise._record import NamedTuple
from supervise._views.samples import log_paths
from supervise._views.top.reader import Reader, Reading, read_lines
from supervise.cli.commands import steering
from supervise.cli.streams import complaint

if TYPE_CHECKING:
    from signal import Signals

    from supervise._views.incidents import Incident
    from supervise.cli.run.signal_inbox import SignalInbox


_MOST_REQUESTS = 4
_STATUS_S = 3.0
_RETRY_S = 1.0
_MOST_UNTAKEN = 2


class NewReading(NamedTuple):
    """A reading has been made."""

    reading: Reading
    incidents: list[Incident]
    """The kept incidents, the oldest first."""
    incident_count: int
    """Number of all incidents so far."""
    first_failure: Incident | None
    failed: list[int]
    """The ranks with a failed life, the first failure first."""
    complete: bool
    """False for the very first reading, which has only what supervise reports."""


class NewLines(NamedTuple):
    """The lines about a rank that the table wants were read."""

    wanted: Wanted
    title: str
    lines: list[str]


class Wanted(NamedTuple):
    """Lines about a rank that the table wants with every reading."""

    what: Literal["logs", "why"]
    rank: int
    turns: int = 0
    """A number that selects one of the rank's logs."""


class Trouble(NamedTuple):
    """There is no reading."""

    text: str


class Reply(NamedTuple):
    """The result of a request."""

    name: str
    arguments: dict[str, Any]
    result: dict[str, Any] | None
    error: str


class Ended(NamedTuple):
    """The run, or the gang of another program, has ended."""

    result: dict[str, Any]
    """The reply to the request ``wait``; empty if there was none."""


News = NewReading | NewLines | Trouble | Reply | Ended | BaseException
"""What a thread tells the main thread. An exception has ended the thread."""


class Feed:
    """Starts the threads. They are daemons: a thread that blocks does not delay the end of the command."""

    def __init__(self, target: steering.Target, inbox: SignalInbox[News]) -> None:
        """Describe the run; no thread is started yet. The main thread finds the news in the inbox."""
        self._inbox = inbox
        self._target = target
        self._hurry = threading.Event()
        self._wanted: Wanted | None = None
        self._untaken = 0
        """Number of readings that were passed on since the main thread last took the news."""
        self._log_of: tuple[int, int] | None = None
        """The rank whose log was read last, and the number of the stream that was chosen for it."""
        self._open_requests = threading.Semaphore(_MOST_REQUESTS)

    def start(self) -> None:
        """Start the threads for the readings and for the end of the run.

        Raises:
            OSError: No thread can be created.
        """
        self._start(self._read, "readings")
        self._start(self._wait, "end")

    def want(self, wanted: Wanted | None) -> None:
        """Ask for lines about a rank with every reading; None asks for no lines."""
        if wanted != self._wanted:
            self._wanted = wanted
            self._hurry.set()

    def request(self, name: str, **arguments: Any) -> bool:
        """Send a request on a thread of its own; return False if too many are open, or no thread is available."""
        if not self._open_requests.acquire(blocking=False):
            return False
        try:
            self._start(lambda: self._request(name, arguments), name)
        except OSError:  # no thread is available
            self._open_requests.release()
            return False
        return True

    def drain(self, timeout_s: float | None = 0.0) -> list[Signals | News]:
        """Return the news, and the signals of the inbox; wait for the first up to `timeout_s` seconds."""
        found = self._inbox.take(timeout_s)
        self._untaken = 0
        return found

    def _start(self, work: Any, what: str) -> None:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                self._inbox.put(error)

        platform.start_thread(threading.Thread(target=guarded, name=f"top {what}", daemon=True), what)

    # Readings

    def _read(self) -> None:
        reader = Reader(self._target.run, self._target.titles)
        is_first = True
        while True:
            try:
                with ControlClient(self._target.path) as client:
                    while True:
                        self._look(client, reader, is_first=is_first)
                        is_first = False
            except (ControlError, OSError) as error:
                self._inbox.put(Trouble(complaint(error)))
            except steering.MALFORMED:
                self._inbox.put(Trouble("the reply is not as expected"))
            self._hurry.wait(_RETRY_S)
            self._hurry.clear()

    def _look(self, client: ControlClient, reader: Reader, *, is_first: bool) -> None:
        """Make and pass on one reading, then wait until the next is due."""
        status = client.request("status", timeout_s=_STATUS_S)
        if is_first:
            self._tell_reading(reader, reader.first(status), complete=False)
        same_pids = client.peer_pid == int(status["pid"])
        self._tell_reading(reader, reader.read(status, same_pids=same_pids), complete=True)
        wanted = self._wanted
        if wanted is None or wanted.what == "why":
            self._log_of = None
        if wanted is not None:
            title, lines = ("", reader.why(wanted.rank)) if wanted.what == "why" else self._log(reader, status, wanted)
            self._inbox.put(NewLines(wanted, title, lines))
        self._hurry.wait(reader.interval_s)
        self._hurry.clear()

    def _tell_reading(self, reader: Reader, reading: Reading, *, complete: bool) -> None:
        """Pass on a reading. Drop it if the main thread has not taken earlier ones, because its output blocks."""
        if self._untaken >= _MOST_UNTAKEN:
            return
        self._untaken += 1
        found = reader.incidents
        failed = list(found.state.last_failures)
        self._inbox.put(NewReading(reading, list(found.kept), found.count, found.first, failed, complete))

    def _log(self, reader: Reader, status: dict[str, Any], wanted: Wanted) -> tuple[str, list[str]]:
        """Read a log of a rank: the log that was written last when the page was opened; after a turn, the other log."""
        rank = wanted.rank
        if self._target.run is None:
            return f"logs of rank {rank}", ["only supervise run keeps logs where this command finds them"]
        attempt = int(status["ranks"][str(rank)]["attempt"])
        end = reader.logs.end(rank, attempt)
        if end is None:
            return f"logs of rank {rank}", ["this life of the rank has no log"]
        paths = log_paths(reader.logs.directory, rank, attempt)
        if self._log_of is None or self._log_of[0] != rank:
            self._log_of = rank, paths.index(end.newest)
        path = paths[(self._log_of[1] + wanted.turns) % len(paths)]
        title = f"{os.path.basename(path)} of rank {rank}" + (f", attempt {attempt}" if attempt else "")
        return title, read_lines(path) or ["(empty)"]

    # The end

    def _wait(self) -> None:
        """Report the end of the run; retry while the run does not answer."""
        while True:
            try:
                with ControlClient(self._target.path) as client:
                    result = client.request("wait", timeout_s=None)
                    if self._target.run is not None:
                        client.until_closed(None)
                    self._inbox.put(Ended(result))
                    return
            except (ControlError, OSError):
                if steering.has_ended(self._target):
                    self._inbox.put(Ended({}))
                    return
            threading.Event().wait(_RETRY_S)

    # Requests

    def _request(self, name: str, arguments: dict[str, Any]) -> None:
        try:
            with ControlClient(self._target.path) as client:
                self._inbox.put(Reply(name, arguments, client.request(name, timeout_s=None, **arguments), ""))
        except (ControlError, OSError) as error:
            self._inbox.put(Reply(name, arguments, None, one_line(complaint(error))))
        finally:
            self._open_requests.release()
