"""``supervise logs RUN``: the output of the ranks, from their files."""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
import time
from typing import TYPE_CHECKING

from supervise._opening import open_regular
from supervise._printable import one_line
from supervise._views.log_lines import Log, LogLines, LogTimes, logs_of
from supervise._views.recorded_run import RecordedRun
from supervise.cli import option_values
from supervise.cli.complaint import complaint
from supervise.cli.console import Console
from supervise.cli.run_commands import parser

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from supervise.cli.run_commands import RunParser

SCHEMA_VERSION = 1
_LOOK_S = 0.2


def options() -> RunParser:
    """Return the parser."""
    made = parser(
        "logs",
        "Show the output of the ranks of a run, in their newest attempt, in the order of time: to about a second in a "
        "young run, and to the interval of samples.jsonl in an old one.",
        run=True,
    )
    made.add_argument("-f", "--follow", action="store_true", help="go on while the run does")
    made.add_argument("--rank", metavar="R", type=_rank, help="only this local rank, without prefixes")
    made.add_argument("--stderr", action="store_true", help="only stderr")
    made.add_argument(
        "--since",
        metavar="DUR",
        type=option_values.seconds,
        help="only lines that were written in the last DUR; some that are older may come first",
    )
    made.add_argument("--json", action="store_true", help="print each line as a JSON object")
    return made


def logs(words: Sequence[str]) -> int:
    """Print the output of the ranks; return the exit code.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    made = options()
    found = made.parse_args(words)
    return _show(found.run, made, found)


def _show(run: RecordedRun, made: argparse.ArgumentParser, found: argparse.Namespace) -> int:
    may_come = found.follow and run.is_running()
    if found.rank is not None and found.rank not in run.logs() and not may_come and not _gone(run, found):
        made.error(f"rank {found.rank} of {run.name} has no log")
    now_s = time.time()
    lines = LogLines(LogTimes(run), None if found.since is None else now_s - found.since)
    write = _json(run) if found.json else _plain(run, prefixes=found.rank is None)
    while True:
        going_on = found.follow and run.is_running()  # before the read, so that all output up to the end is shown
        wanted = [log for log in logs_of(run) if _is_wanted(log.rank, log.stream, found)]
        for block in lines.look(wanted, time.time()):
            write(block.log, block.at_s, block.lines)
        if not going_on:
            for log, rest in lines.rests():
                write(log, time.time(), [rest])
        sys.stdout.buffer.flush()
        if not going_on:
            return _told_what_is_gone(RecordedRun(run.path), found)  # again, since its result may be new
        select.select([], [], [], _LOOK_S)


def _is_wanted(rank: int, stream: str, found: argparse.Namespace) -> bool:
    return found.rank in (None, rank) and (stream == "stderr" or not found.stderr)


def _told_what_is_gone(run: RecordedRun, found: argparse.Namespace) -> int:
    """Print which logs cannot be shown; return the exit code: 1 if there are some, and no log can be shown."""
    gone = _gone(run, found)
    for (rank, stream), reason in sorted(gone.items()):
        print(f"supervise logs: rank {rank} has no {stream}.log: {one_line(reason)}", file=sys.stderr)
    left = [
        log for log in logs_of(run) if _is_wanted(log.rank, log.stream, found) and (log.rank, log.stream) not in gone
    ]
    return 1 if gone and not left else 0


def _gone(run: RecordedRun, found: argparse.Namespace) -> dict[tuple[int, str], str]:
    """Return the wanted logs that were written and cannot be read: rank and stream to reason.

    A run without a result does not say which logs it has written. Then a log that is missing is not known.
    """
    paths = {(log.rank, log.stream): log.path for log in logs_of(run)}
    if run.info.get("engine") != "ray":  # other hosts may have these logs
        paths = _written(run) | paths
    reasons = {}
    for (rank, stream), path in paths.items():
        if _is_wanted(rank, stream, found):
            try:
                os.close(open_regular(path))
            except OSError as error:
                reasons[rank, stream] = complaint(error)
    return reasons


def _written(run: RecordedRun) -> dict[tuple[int, str], str]:
    """Return the logs that the result names: rank and stream to path. The directory may have been moved."""
    written = {}
    for stream in ("stdout", "stderr"):
        named = run.result.get(f"{stream}s")
        for rank, path in named.items() if isinstance(named, dict) else ():
            if option_values.is_count(rank) and isinstance(path, str) and path.endswith(f"{os.sep}{stream}.log"):
                written[int(rank), stream] = os.path.join(run.path, *path.split(os.sep)[-3:])
    return written


def _rank(text: str) -> int:
    if not option_values.is_count(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a rank; give a number, 0 or more")
    return int(text)


def _plain(run: RecordedRun, *, prefixes: bool) -> Callable[[Log, float, list[bytes]], None]:
    """Return a function that prints lines for people."""
    console = Console()
    known: dict[int, bytes] = {}

    def prefix_of(rank: int) -> bytes:
        if not prefixes:
            return b""
        if rank not in known:
            role, number = run.title(rank)
            known[rank] = console.prefix(f"[{role}{number}]:", rank).encode()
        return known[rank]

    def write(log: Log, _at_s: float, lines: list[bytes]) -> None:
        prefix = prefix_of(log.rank)
        sys.stdout.buffer.write(b"".join(b"%b%b\n" % (prefix, line) for line in lines))

    return write


def _json(run: RecordedRun) -> Callable[[Log, float, list[bytes]], None]:
    """Return a function that prints lines as JSON objects."""

    def write(log: Log, at_s: float, lines: list[bytes]) -> None:
        role, number = run.title(log.rank)
        head = {
            "schema_version": SCHEMA_VERSION,
            "time": round(at_s, 3),
            "local_rank": log.rank,
            "role": role,
            "role_rank": number,
            "attempt": log.attempt,
            "log_iostream": log.stream,
        }
        whole = (json.dumps(head | {"line": line.decode(errors="replace")}) for line in lines)
        sys.stdout.buffer.write("".join(f"{each}\n" for each in whole).encode())

    return write
