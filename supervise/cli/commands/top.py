"""``supervise top RUN``: a live table of the ranks of a running gang, or its readings as JSON lines."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import termios
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal

from supervise import _platform as platform
from supervise._control.client import ControlClient, ControlError
from supervise._logs.screen import terminal_size
from supervise._printable import one_line, printable
from supervise._record import NamedTuple
from supervise._story.wording import spans
from supervise._views.samples import log_paths
from supervise._views.top.reader import (
    SCHEMA_VERSION,
    Incidents,
    Reader,
    Reading,
    as_object,
    incident_objects,
    log_end,
    read_lines,
)
from supervise._views.top.view import Request, View
from supervise.cli.commands import steering
from supervise.cli.run.signal_inbox import SignalInbox
from supervise.cli.streams import complaint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervise._views.incidents import Incident
    from supervise._views.top.screen import Canvas


_APPEARS_S = 2.0
"""How long the command waits for a run that was started just before it."""


def top(words: Sequence[str]) -> int:
    """Show the table until the run has ended; return the exit code.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    made = steering.SteeringParser("top")
    made.appears_s = _APPEARS_S
    found = made.read(words)
    target: steering.Target = found.target
    if not found.json and (why := _no_table()):
        return steering.fail("top", why, steering.REFUSED)
    code = steering.steer("top", target, steering.answers)
    if code:
        return code
    if found.json:
        inbox: SignalInbox[News]
        with SignalInbox((), restore=True) as inbox:
            return _json_lines(target, inbox)
    return _table(target)


def _no_table() -> str:
    """Return why there can be no table; "" if there can."""
    try:
        import rich  # noqa: F401
    except ImportError:
        return "the table needs rich: pip install 'supervise-gang[rich]'; --json works without it"
    if not sys.stdout.isatty():
        return "stdout is not a terminal; --json prints readings to any file"
    if (os.environ.get("TERM") or "dumb") == "dumb":
        return "this terminal cannot move its cursor (TERM is dumb or not set); --json prints readings"
    return ""


def _table(target: steering.Target) -> int:
    inbox: SignalInbox[News]
    with SignalInbox(_SIGNALS, restore=True) as inbox:
        try:
            table = Table(target, inbox)
        except (OSError, termios.error) as error:
            return steering.fail("top", f"the terminal cannot be used: {complaint(error)}", steering.REFUSED)
        code = table.run()
    if table.ended is not None:
        print(*_last_words(target, table.ended), sep="\n")
    return code


def _last_words(target: steering.Target, ended: Ended) -> list[str]:
    """Return the lines that stay on the terminal after the run has ended: how it ended, and the report of a failure."""
    if target.run is None:
        return [f"{target.name}: {steering.outcome_of(target, ended.result)[0]}"]
    told = steering.how_it_ended(target)
    run = steering.ended_run(target)
    report = run.result.get("report") if run is not None and run.result.get("outcome") == "failed" else None
    return [told, *(printable(str(line)) for line in report)] if isinstance(report, list) else [told]


# JSON


def _json_lines(target: steering.Target, inbox: SignalInbox[News]) -> int:
    feed = Feed(target, inbox)
    feed.start()
    told = 0
    trouble = ""
    latest: Sequence[Incident] = ()
    while True:
        for news in feed.drain(None):
            match news:
                case Reading(complete=True, incidents=incidents):
                    fresh = incidents[-(news.incident_count - told) :] if news.incident_count > told else ()
                    told, latest = news.incident_count, incidents
                    _print(target, "reading", as_object(news, fresh))
                    trouble = ""
                case Trouble(text=text) if text != trouble and not steering.has_ended(target):
                    trouble = text
                    print(f"supervise top: {target.name}: {text}", file=sys.stderr)
                case Ended():
                    _print(target, "end", _end(target, news, latest))
                    return 0
                case BaseException():
                    raise news
                case _:
                    pass


def _end(target: steering.Target, ended: Ended, told: Sequence[Incident]) -> dict[str, Any]:
    run = steering.ended_run(target)
    known = {(each.at_s, each.kind, each.rank) for each in told}
    since_s = told[-1].at_s if told else 0.0
    found = [] if run is None else Incidents(run.path, run.spans).look()
    fresh = [each for each in found if each.at_s >= since_s and (each.at_s, each.kind, each.rank) not in known]
    recorded = ended.result if run is None else run.result
    outcome = recorded.get("outcome") or (None if run is None else run.state)
    return {
        "time": round(time.time(), 3),
        "outcome": outcome,
        "exit_code": recorded.get("exit_code"),
        "incidents": incident_objects(fresh),
    }


def _print(target: steering.Target, kind: str, content: dict[str, Any]) -> None:
    path = None if target.run is None else target.run.path
    head = {"schema_version": SCHEMA_VERSION, "kind": kind, "name": target.name, "path": path}
    print(json.dumps(head | content), flush=True)


# The threads: readings, the end of the run, and requests. The main thread waits for none of them


_MOST_REQUESTS = 4
_STATUS_S = 3.0
_RETRY_S = 1.0
_MOST_UNTAKEN = 2


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


News = Reading | NewLines | Trouble | Reply | Ended | BaseException
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

    def drain(self, timeout_s: float | None = 0.0) -> list[signal.Signals | News]:
        """Return the news, and the signals of the inbox; wait for the first up to `timeout_s` seconds."""
        found = self._inbox.take(timeout_s)
        self._untaken = 0
        return found

    def _start(self, work: Any, what: str) -> None:
        def guarded() -> None:
            # A call of the main thread that waits for the terminal ends only by a signal that this very thread handles
            signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
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
            self._pass_on(reader.first(status))
        same_pids = client.peer_pid == int(status["pid"])
        self._pass_on(reader.read(status, same_pids=same_pids))
        wanted = self._wanted
        if wanted is None or wanted.what == "why":
            self._log_of = None
        if wanted is not None:
            title, lines = ("", reader.why(wanted.rank)) if wanted.what == "why" else self._log(status, wanted)
            self._inbox.put(NewLines(wanted, title, lines))
        self._hurry.wait(reader.interval_s)
        self._hurry.clear()

    def _pass_on(self, reading: Reading) -> None:
        """Pass on a reading. Drop it if the main thread has not taken earlier ones, because its output blocks."""
        if self._untaken < _MOST_UNTAKEN:
            self._untaken += 1
            self._inbox.put(reading)

    def _log(self, status: dict[str, Any], wanted: Wanted) -> tuple[str, list[str]]:
        """Read a log of a rank: the log that was written last when the page was opened; after a turn, the other log."""
        rank = wanted.rank
        run = self._target.run
        if run is None:
            return f"logs of rank {rank}", ["only supervise run keeps logs where this command finds them"]
        attempt = int(status["ranks"][str(rank)]["attempt"])
        end = log_end(run.path, rank, attempt)
        if end is None:
            return f"logs of rank {rank}", ["this life of the rank has no log"]
        paths = log_paths(run.path, rank, attempt)
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


# The loop of the table: keys, news, signals, and pictures as fast as the terminal takes them


_ESCAPE_S = 0.05
"""How long the rest of a sequence may take after an escape character. Later, the character counts as the Esc key."""
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_SIGNALS = (*_ENDS, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
"""The signals that the inbox of the table receives."""


class Table:
    """The live table of one run."""

    def __init__(self, target: steering.Target, inbox: SignalInbox[News]) -> None:
        """Start the readings, and take over the terminal of stdout. News and signals come by the inbox.

        Raises:
            OSError: There is no terminal, or no thread can be created.
            termios.error: The terminal has no modes.
        """
        self.ended: Ended | None = None
        """Set when the run has ended."""
        self._titles = target.titles
        from supervise._views.top import screen  # lazy: it needs rich, which --json does not

        self._feed = Feed(target, inbox)
        self._screen = screen.Screen(sys.stdout.fileno())
        self._keys = screen.Keys()
        self._palette = screen.Palette(color=not os.environ.get("NO_COLOR"))
        self._feed.start()
        run = target.run
        started = None if run is None else run.started
        name = target.name if run is not None else os.path.basename(target.path)
        self._view = View(one_line(name), None if started is None else started.timestamp())
        self._shown: Canvas | None = None
        self._dirty = True
        self._poll = select.poll()
        self._poll.register(inbox, select.POLLIN)
        self._watched: int | None = None

    def run(self) -> int:
        """Show the table until the run ends, or the user leaves it; restore the terminal, and return the exit code."""
        with closing(self._screen):
            try:
                self._screen.enter()
                while (code := self._turn()) is None:
                    pass
            except (OSError, termios.error):  # the terminal has hung up
                return 128 + signal.SIGHUP
            return code

    def _turn(self) -> int | None:
        """Wait for the next event and handle all that have come; return the exit code at the end."""
        if self._screen.entered:
            self._show()
        events = select.POLLIN | (select.POLLOUT if self._screen.busy else 0)
        if events != self._watched:
            self._poll.register(self._screen.fd, events)
            self._watched = events
        ready = dict(self._poll.poll(_ESCAPE_S * 1000 if self._keys.waits else None))
        received = self._feed.drain()
        ends = [each for each in received if isinstance(each, signal.Signals) and each in _ENDS]
        if ends:
            return 128 + ends[0]
        keys = []
        if ready.get(self._screen.fd, 0) & (select.POLLIN | select.POLLHUP | select.POLLERR):
            data = self._screen.read()
            if data is None:
                return 128 + signal.SIGHUP
            keys = self._keys.feed(data)
        elif self._keys.waits and not ready:
            keys = self._keys.timed_out()
        for key in keys:
            self._dirty = True
            if self._press(key):
                return 0
        for each in received:
            self._dirty = True
            self._take(each)
        return None if self.ended is None else 0

    # Signals

    def _handle(self, sig: signal.Signals) -> None:
        """Handle a signal that does not end the table. At SIGTSTP, suspend this process, as Ctrl-Z does."""
        if sig == signal.SIGTSTP:
            self._screen.leave()
            before = signal.signal(sig, signal.SIG_DFL)
            os.kill(os.getpid(), sig)  # returns when a shell continues this process
            signal.signal(sig, before)
        if sig != signal.SIGWINCH:  # SIGCONT also follows a SIGSTOP, before which the terminal was not restored
            self._screen.enter()
            self._redraw()

    def _redraw(self) -> None:
        self._shown, self._dirty = None, True

    # Keys

    def _press(self, key: str) -> bool:
        """Handle a key; return whether it ends the table."""
        asked = self._view.key(key)
        if asked == "quit":
            return True
        if asked == "redraw":
            self._redraw()
        elif asked is not None:
            self._ask(asked)
        self._feed.want(self._wanted())
        return False

    def _wanted(self) -> Wanted | None:
        view = self._view
        if view.log_rank is not None:
            return Wanted("logs", view.log_rank, view.log_turns)
        return Wanted("why", view.why_rank) if view.mode == "why" and view.why_rank is not None else None

    def _ask(self, asked: Request) -> None:
        if not self._feed.request(asked.name, ranks=asked.ranks, signal=asked.signal):
            self._view.notice = "too many requests wait for a reply of supervise; try again later"
        elif asked.name == "stop":
            self._view.notice = "the ranks are asked to stop ..."

    # News

    def _take(self, news: signal.Signals | News) -> None:
        view = self._view
        match news:
            case Reading():
                view.update(news)
            case NewLines() if news.wanted == self._wanted():
                view.title, view.lines = news.title, news.lines
            case Trouble():
                view.trouble = news.text
            case signal.Signals():
                self._handle(news)
            case Reply():
                self._answer(news)
            case Ended():
                self.ended = news
            case BaseException():
                raise news
            case _:
                pass

    def _answer(self, reply: Reply) -> None:
        view = self._view
        if reply.result is None:
            if reply.name == "stacks" and view.mode == "stacks":
                view.lines = [reply.error]
            else:
                view.notice = f"{reply.name}: {reply.error}"
            return
        try:
            if reply.name == "stacks" and view.mode == "stacks":
                view.lines = [
                    one_line(line)
                    for line in steering.stack_lines(
                        reply.result, self._titles, whole=reply.arguments["ranks"] is not None
                    )
                ]
            elif reply.name == "signal":
                ranks = reply.result["ranks"]
                view.notice = f"sent to {spans(ranks, self._titles)}" if ranks else "none of these ranks runs"
        except steering.MALFORMED:
            view.notice = f"{reply.name}: the reply is not as expected"

    # Pictures

    def _show(self) -> None:
        """Write a picture, unless the terminal has not taken the previous picture yet."""
        from supervise._views.top.picture import draw

        if not self._screen.flush() or not self._dirty:
            return
        columns, rows = terminal_size(self._screen.fd)
        picture = draw(self._view, columns, rows)
        is_of_this_size = self._shown is not None and (self._shown.columns, self._shown.rows) == (columns, rows)
        text = picture.drawing(self._shown if is_of_this_size else None, self._palette)
        self._shown, self._dirty = picture, False
        self._screen.write(text.encode(sys.stdout.encoding or "utf-8", errors="replace"))
        self._screen.flush()
