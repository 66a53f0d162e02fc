"""``supervise top RUN``: a live table of the ranks of a running gang, or its readings as JSON lines."""

from __future__ import annotations

import json
import os
import sys
import termios
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from supervise._printable import printable
from supervise._views.top.reader import SCHEMA_VERSION, as_object
from supervise.cli.commands import steering
from supervise.cli.commands.top_feed import Ended, Feed, NewReading, News, Trouble
from supervise.cli.run.signal_inbox import SignalInbox
from supervise.cli.streams import complaint

if TYPE_CHECKING:
    from collections.abc import Sequence


_APPEARS_S = 2.0
"""How long the command waits for a run that was started just before it."""
_NO_RICH = "the table needs rich: pip install 'supervise-gang[rich]'; --json works without it"


def top(words: Sequence[str]) -> int:
    """Show the table until the run has ended; return the exit code.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    made = steering.SteeringParser("top")
    made.appears_s = _APPEARS_S
    found = made.read(words)
    target: steering.Target = found.target
    if not found.json and not _has_rich():
        return steering.fail("top", _NO_RICH, steering.REFUSED)
    if not found.json and (why := _no_terminal()):
        return steering.fail("top", why, steering.REFUSED)
    code = steering.steer("top", target, steering.answers)
    if code:
        return code
    if found.json:
        inbox: SignalInbox[News]
        with SignalInbox((), restore=True) as inbox:
            return _json_lines(target, inbox)
    return _table(target)


def _has_rich() -> bool:
    try:
        import rich  # noqa: F401
    except ImportError:
        return False
    return True


def _no_terminal() -> str:
    """Return why the terminal cannot show a table; "" if it can."""
    if not sys.stdout.isatty():
        return "stdout is not a terminal; --json prints readings to any file"
    if os.environ.get("TERM", "dumb") == "dumb":
        return "this terminal cannot move its cursor (TERM is dumb or not set); --json prints readings"
    return ""


def _table(target: steering.Target) -> int:
    from supervise.cli.commands.top_table import SIGNALS, Table

    inbox: SignalInbox[News]
    with SignalInbox(SIGNALS, restore=True) as inbox:
        try:
            table = Table(target, inbox)
        except (OSError, termios.error) as error:
            return steering.fail("top", f"the terminal cannot be used: {complaint(error)}", steering.REFUSED)
        with closing(table):
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
    while True:
        for news in feed.drain(None):
            match news:
                case NewReading(reading=reading, incidents=incidents) if news.complete:
                    fresh = incidents[-(news.incident_count - told) :] if news.incident_count > told else []
                    told = news.incident_count
                    _print(target, "reading", as_object(reading, fresh))
                    trouble = ""
                case Trouble(text=text) if text != trouble and not steering.has_ended(target):
                    trouble = text
                    print(f"supervise top: {target.name}: {text}", file=sys.stderr)
                case Ended():
                    _print(target, "end", _end(target, news))
                    return 0
                case BaseException():
                    raise news
                case _:
                    pass


def _end(target: steering.Target, ended: Ended) -> dict[str, Any]:
    run = steering.ended_run(target)
    recorded = ended.result if run is None else run.result
    outcome = recorded.get("outcome") or (None if run is None else run.state)
    return {"time": round(time.time(), 3), "outcome": outcome, "exit_code": recorded.get("exit_code")}


def _print(target: steering.Target, kind: str, content: dict[str, Any]) -> None:
    path = None if target.run is None else target.run.path
    head = {"schema_version": SCHEMA_VERSION, "kind": kind, "name": target.name, "path": path}
    print(json.dumps(head | content), flush=True)
