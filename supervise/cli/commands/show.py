"""``supervise ls`` and ``show``: the runs, and what one of them did, from their files."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from supervise._printable import one_line, printable
from supervise._story.wording import at_step, columns, exit_of, failed_or_ended, fitted
from supervise._views.incidents import CANCELED, incident
from supervise._views.recorded_run import SOCKET
from supervise._views.run_state import RESTARTS, Occurrence, RankLives, RunState, parsed_time
from supervise.cli.commands.runs import (
    RunParser,
    as_object,
    program_of,
    recorded_runs,
    shown_duration,
    shown_time,
    terminal_columns,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervise._views.recorded_run import RecordedRun


# ``supervise ls``: the runs of the default folder, the newest first


_COLUMNS = ("NAME", "STATE", "EXIT", "STARTED", "TIME", "RANKS", "PROGRAM")
_LEFT_OUT = ("RANKS", "STARTED", "TIME", "EXIT")
"""The columns that a narrow terminal lacks, the first to go first."""
_NARROW = 80
"""In a terminal of up to so many columns, a state has no details."""
_STYLES = {"running": "32", "succeeded": "", "stopped": "33", "unknown": "33"}
"""State to its style (SGR numbers). The other states are failures."""
_FAILURE = "31"


def ls(words: Sequence[str]) -> int:
    """Print the runs; return the exit code.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    found = RunParser("ls").parsed(words)
    folder, runs = recorded_runs()
    if found.running:
        runs = [run for run in runs if run.state == "running"]
    if found.json:
        for run in runs:
            print(json.dumps(as_object(run)))
        return 0
    if not runs:
        print(f"no {'run is running' if found.running else 'runs'} in {one_line(folder)}")
        return 0
    print(*_table(runs), sep="\n")
    return 0


def _table(runs: Sequence[RecordedRun]) -> list[str]:
    """Return the table. On a terminal, the lines fit, and the states have colors."""
    from supervise.cli.run.console import Console  # lazy: show does not need it

    room = terminal_columns()
    rows = [_COLUMNS, *(_row(run, brief=room is not None and room <= _NARROW) for run in runs)]
    cells = fitted(rows, room, _LEFT_OUT)
    if room is not None and Console().rank_color:
        at = cells[0].index("STATE")
        for run, row in zip(runs, cells[1:], strict=True):
            state = one_line(run.state)
            if row[at].startswith(state) and (style := _STYLES.get(run.state, _FAILURE)):
                row[at] = f"\x1b[{style}m{state}\x1b[0m{row[at].removeprefix(state)}"
    return columns(cells)


def _row(run: RecordedRun, *, brief: bool) -> tuple[str, ...]:
    code = run.result.get("exit_code")
    return (
        one_line(run.name),
        one_line(run.state) if brief else run.shown_state,
        "-" if code is None else one_line(str(code)),
        shown_time(run.started),
        shown_duration(run.duration),
        one_line(str(run.info.get("world_size"))),
        f"{program_of(run)}{f' ({run.counts})' if run.counts else ''}",
    )


# ``supervise show RUN``: the program of a run, its end and the reason, from the files of the run alone


_LONGEST_LINE = 2000
_MOST_RESTARTS = 20
_REPLY_S = 3.0
"""How long supervise may take to report the states of its ranks; without them, the events say enough."""
_OVER = ("finished", "failed", "terminated")
"""The states of `status` after the end of a life."""


def show(words: Sequence[str]) -> int:
    """Print the story of a run; return the exit code.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    found = RunParser("show").read(words)
    run: RecordedRun = found.run
    story = _Story(run)
    if found.json:
        whole = as_object(run) | {"ranks": story.states(), "restarts": story.restarts, "result": run.result or None}
        print(json.dumps(whole))
        return 0
    for line in [*_head(run), *_story(run, story), *_end(run, story)]:
        print(printable(line)[:_LONGEST_LINE])
    return 0


class _Story:
    """The last known state of the run, and lines about the notable events before."""

    def __init__(self, run: RecordedRun) -> None:
        self.run = RunState()
        self._words = _words_of_status(run)
        self.spans = run.spans
        self.restarts: list[str] = []
        """A line for each restart; after the end of the run, for each that took place."""
        self._newest: dict[int | None, tuple[Occurrence, int, str]] = {}
        """Rank to its last announced restart, with the index of its line; None: that of all ranks."""
        self._announced: set[tuple[int, int]] = set()
        """Rank and number of each restart of single ranks. A request shortens a wait, and announces it once more."""
        self.lines: list[tuple[str, str]] = []
        """Name of an event and its line: restarts, hangs, stacks, lost events and the stop, in their order."""
        for it in filter(None, map(self.run.apply, run.events())):
            self._take(it)
        for it, at, line in self._newest.values():
            if self.run.is_canceled(it, run.state):
                self.lines[at] = it.name, f"{self.lines[at][1]} {CANCELED}"
                self.restarts.remove(line)

    def _take(self, it: Occurrence) -> None:
        fields = it.fields
        who = "" if it.rank is None else self.spans([it.rank])
        line = ""
        match it.name:
            case "process.restarting" if it.rank is not None:
                number = fields.get("attempt", 0)
                if (it.rank, number) in self._announced:
                    return
                self._announced.add((it.rank, number))
                again = f"restart {number} of this rank"
                verb = "was stopped" if fields.get("end_role") in ("bystander", "terminated") else "ended"
                line = f"{who} {verb} ({fields['fault'] or exit_of(fields)}); {again}"
            case "process.hung" | "process.leaked" | "events.lost" | "gang.stopping":
                line = incident(it, self.spans, present=False).text
            case "gang.restarting":
                how = fields["error_type"]
                cause = f"{self.spans([fields['root_cause_rank']])} {failed_or_ended(how)} ({how})"
                line = f"{cause}; restart {self.run.restarts}"
            case "gang.stacks" if fields.get("path"):
                line = f"stacks: {fields['path']}"
            case _:
                pass
        if line:
            self.lines.append((it.name, one_line(line)))
            if it.name in RESTARTS:
                self.restarts.append(line)
                self._newest[it.rank] = it, len(self.lines) - 1, line

    def states(self) -> dict[int, str]:
        """Return each rank to its state, in the order of ranks."""
        started = (rank for rank, each in self.run.ranks.items() if each.life is not None)
        return {rank: _state(self.run.of(rank), self._words.get(rank, "")) for rank in sorted({*started, *self._words})}

    def first_failure(self) -> str | None:
        """Return the rank whose failure is the first in the events, and how it ended; None if none has failed."""
        for rank, failure in self.run.failed.items():
            who = self.spans([rank])
            if failure.life.launch_failure is not None:
                return f"{who}, could not be started: {one_line(failure.why)}"
            if failure.life.end is not None and not failure.why:
                fields = failure.life.end.fields
                return f"{who}{at_step(fields.get('step'), fields.get('status'))}, {one_line(exit_of(fields))}"
        return None


def _words_of_status(run: RecordedRun) -> dict[int, str]:
    """Return each rank to the state that `status` shows; empty if the run is over, or supervise does not reply."""
    if run.state != "running":
        return {}
    from supervise._control.client import ControlClient, ControlError  # lazy: a run that is over does not need it
    from supervise._views.top.reader import Reader
    from supervise.cli.commands.steering import MALFORMED

    try:
        with ControlClient(os.path.join(run.path, SOCKET)) as client:
            status = client.request("status", timeout_s=_REPLY_S)
        return {rank: row.state for rank, row in Reader(run).read(status, same_pids=False).ranks.items()}
    except (ControlError, OSError, *MALFORMED):
        return {}


def _state(known: RankLives, word: str) -> str:
    """Return the state of a rank: the word of `status`, or "" if there is none, and what the events say about it."""
    life = known.life
    if known.waits and not word:
        return "waiting for a restart"
    if life is None or (word and (life.end is not None) != (word in _OVER)):
        return word
    if life.end is not None:
        by_request = any(it.fields["reason"] == "terminate" for it in life.all_of("signaled"))
        return f"{word or ('terminated' if by_request else 'ended')}, {exit_of(life.facts)}"
    if life.launch_failure is not None:
        return f"{word or 'ended'}, could not be started"
    return f"{word or 'running'}, pid {life.pid}"


def _head(run: RecordedRun) -> list[str]:
    count = f"{run.info.get('world_size')}{f' ({run.counts})' if run.counts else ''}"
    ran = "" if run.duration is None else f", ran {shown_duration(run.duration)}"
    return [
        f"{one_line(run.name)}: {run.shown_state}",
        f"  program:  {program_of(run)}",
        f"  ranks:    {count} on {run.place}",
        f"  started:  {shown_time(run.started)}{ran}",
        f"  logs:     {one_line(run.path)}",
    ]


def _story(run: RecordedRun, story: _Story) -> list[str]:
    more = max(len(story.restarts) - _MOST_RESTARTS, 0)
    shown, left = [f"{more} restarts before"] if more else [], more
    for name, line in story.lines:
        if name in RESTARTS and left:
            left -= 1
        elif not (name == "gang.stopping" and run.result):
            shown.append(line)
    return [f"  {line}" for line in shown]


def _end(run: RecordedRun, story: _Story) -> list[str]:
    report = run.result.get("report")
    if run.result:
        told = report if isinstance(report, list) else []
        return [f"  exit:     {one_line(str(run.result.get('exit_code')))}", *([""] if told else []), *map(str, told)]
    last = parsed_time(story.run.last)
    at = "" if last is None else f" after {shown_time(last)}"
    head = [""]
    if run.state == "unknown":
        head += [f"supervise may still run on host {one_line(str(run.info.get('host_name')))}. The last that is known:"]
    elif run.state != "running":
        head += [f"supervise ended{at} without a result: it was killed, or its disk was full. The ranks were then:"]
    kinds: dict[str, list[int]] = {}
    found = story.states()
    for rank, state in found.items():
        kinds.setdefault(state if run.state == "running" else state.partition(", pid")[0], []).append(rank)
    states = [f"  {story.spans(ranks)}: {one_line(state)}" for state, ranks in kinds.items()]
    if len(found) > 1 and (first := story.first_failure()) is not None:
        states.append(f"  the first failure: {first}")
    return [*head, *states]
