"""The loop of the live table: keys, news, signals, and pictures as fast as the terminal takes them."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
from typing import TYPE_CHECKING

from supervise._printable import one_line
from supervise._story.wording import spans
from supervise._views.top.screen import Canvas, Keys, Screen
from supervise._views.top.view import Quit, Redraw, Request, View
from supervise.cli.commands import steering
from supervise.cli.commands.top_feed import Ended, Feed, NewLines, NewReading, News, Reply, Trouble, Wanted

if TYPE_CHECKING:
    from supervise.cli.run.signal_inbox import SignalInbox


_ESCAPE_S = 0.05
"""How long the rest of a sequence may take after an escape character. Later, the character counts as the Esc key."""
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
SIGNALS = (*_ENDS, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
"""The signals that the inbox of the table receives."""


class Table:
    """The live table, until `close`."""

    def __init__(self, target: steering.Target, inbox: SignalInbox[News]) -> None:
        """Start the readings, and take over the terminal of stdout. News and signals come by the inbox.

        Raises:
            OSError: There is no terminal, or no thread can be created.
            termios.error: The terminal has no modes.
        """
        self.ended: Ended | None = None
        """Set when the run has ended."""
        self._titles = target.titles
        self._feed = Feed(target, inbox)
        self._screen = Screen(sys.stdout.fileno())
        self._feed.start()
        run = target.run
        started = None if run is None else run.started
        name = target.name if run is not None else os.path.basename(target.path)
        self._view = View(one_line(name), None if started is None else started.timestamp())
        self._keys = Keys()
        self._shown: Canvas | None = None
        self._dirty = True
        self._encoding = sys.stdout.encoding or "utf-8"
        self._poll = select.poll()
        self._poll.register(inbox, select.POLLIN)
        self._watched: int | None = None

    def close(self) -> None:
        """Restore the terminal."""
        self._screen.close()

    def run(self) -> int:
        """Show the table until the run ends, or the user leaves the table; return the exit code."""
        from supervise._views.top.screen import Palette  # rich is imported while the first reading is made

        self._screen.enter()
        self._palette = Palette(color=not os.environ.get("NO_COLOR"))
        while True:
            try:
                code = self._turn()
            except (OSError, termios.error):  # the terminal has hung up
                return 128 + signal.SIGHUP
            if code is not None:
                return code

    def _turn(self) -> int | None:
        """Wait for the next event and handle all that have come; return the exit code at the end."""
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
        if isinstance(asked, Quit):
            return True
        if isinstance(asked, Redraw):
            self._redraw()
        elif isinstance(asked, Request):
            self._ask(asked)
        self._feed.want(self._wanted())
        return False

    def _wanted(self) -> Wanted | None:
        view = self._view
        if view.log_rank is not None:
            return Wanted("logs", view.log_rank, view.log_turns)
        return Wanted("why", view.why_rank) if view.mode == "why" and view.why_rank is not None else None

    def _ask(self, asked: Request) -> None:
        arguments = {"ranks": asked.ranks, "signal": asked.signal}
        if not self._feed.request(asked.name, **arguments):
            self._view.notice = "too many requests wait for a reply of supervise; try again later"
        elif asked.name == "stop":
            self._view.notice = "the ranks are asked to stop ..."

    # News

    def _take(self, news: signal.Signals | News) -> None:
        view = self._view
        match news:
            case NewReading():
                view.update(news.reading)
                view.incidents, view.first_failure, view.trouble = news.incidents, news.first_failure, ""
                view.failed = news.failed
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
        columns, rows = self._screen.size()
        picture = draw(self._view, columns, rows)
        before = self._shown
        if before is not None and (before.columns, before.rows) != (columns, rows):
            before = None
        text = picture.drawing(before, self._palette)
        self._shown, self._dirty = picture, False
        self._screen.write(text.encode(self._encoding, errors="replace"))
        self._screen.flush()
