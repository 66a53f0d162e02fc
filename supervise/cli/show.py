"""``supervise show RUN``: the program of a run, its end and the reason, from the files of the run alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from supervise._printable import one_line, printable
from supervise._views.wording import ending, failed_or_ended, spans
from supervise.cli.run_commands import as_object, parser, program_of, shown_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from supervise._views.recorded_run import RecordedRun
    from supervise.cli.run_commands import RunParser

_LONGEST_LINE = 2000
_MOST_RESTARTS = 20


def options() -> RunParser:
    """Return the parser."""
    made = parser("show", "Tell what a run did, from its files.", run=True)
    made.add_argument("--json", action="store_true", help="print a JSON object")
    return made


def show(words: Sequence[str]) -> int:
    """Print the story of a run; return the exit code.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    found = options().parse_args(words)
    run: RecordedRun = found.run
    story = _Story(run.events())
    if found.json:
        ranks = dict(sorted(story.states.items()))
        whole = as_object(run) | {"ranks": ranks, "restarts": story.restarts, "result": run.result or None}
        print(json.dumps(whole))
        return 0
    for line in [*_head(run), *_story(run, story), *_end(run, story)]:
        print(printable(line)[:_LONGEST_LINE])
    return 0


class _Story:
    """The last known state of each rank, and the notable events before."""

    def __init__(self, events: Iterable[dict[str, Any]]) -> None:
        self.states: dict[int, str] = {}
        """Local rank to its state."""
        self.restarts: list[str] = []
        """A line for each restart."""
        self.notes: list[str] = []
        """Lines about hangs and stacks."""
        self.last = ""
        """The time of the last event."""
        self.first_failure: tuple[int, str] | None = None
        """The rank whose failure is the first in the events, and how the rank ended."""
        self._stopping = False
        for event in events:
            self.last = str(event.get("timestamp", ""))
            try:
                self._take(event["event"].removeprefix("supervise."), event)
            except (KeyError, TypeError, ValueError):  # a rank may have written the line
                continue

    def _take(self, name: str, event: dict[str, Any]) -> None:  # noqa: C901 - one case per event
        rank = event.get("local_rank")
        match name:
            case "process.started" if isinstance(rank, int):
                self.states[rank] = f"running, pid {int(event['pid'])}"
            case "process.exited" if isinstance(rank, int):
                how = _how(event)
                self.states[rank] = f"ended, {how}"
                if self.first_failure is None and not self._stopping and event["level"] == "error":
                    self.first_failure = rank, how
            case "process.restarting" if isinstance(rank, int):
                self.restarts.append(f"rank {rank} ended ({_how(event)}); restart {int(event['attempt'])} of this rank")
                self.states[rank] = "waiting for a restart"
            case "process.start_failed" if isinstance(rank, int):
                self.states[rank] = "ended, could not be started"
                if self.first_failure is None and not self._stopping:
                    self.first_failure = rank, f"could not be started: {event['exception_message']}"
            case "process.hung" if isinstance(rank, int):
                self.notes.append(f"rank {rank} hung: no {event['tier']} for {float(event['age_s']):.1f} s")
            case "gang.restarting":
                cause = f"{failed_or_ended(event['error_type'])} ({event['error_type']})"
                self.restarts.append(f"rank {event['root_cause_rank']} {cause}; restart {event['attempt']}")
                again = self.states.keys() - set(event.get("left_out") or ())
                self.states |= dict.fromkeys(again, "waiting for a restart")
                self.first_failure, self._stopping = None, False
            case "gang.stacks" if event["path"]:
                self.notes.append(f"stacks: {event['path']}")
            case "events.lost":
                self.notes.append(f"{int(event['count'])} events could not be written")
            case "gang.stopping":
                self._stopping = True
                self.notes.append(f"supervise stopped the ranks ({event['reason']})")
            case _:
                pass


def _how(event: dict[str, Any]) -> str:
    return str(event["exit_signal"] or ending(event["exit_code"]))


def _head(run: RecordedRun) -> list[str]:
    started = "-" if run.started is None else run.started.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    count = run.info.get("world_size")
    return [
        f"{one_line(run.name)}: {run.state}",
        f"  program:  {program_of(run)}",
        f"  ranks:    {count} on {run.place}",
        f"  started:  {started}, ran {shown_duration(run.duration)}",
        f"  logs:     {one_line(run.path)}",
    ]


def _story(run: RecordedRun, story: _Story) -> list[str]:
    restarts = [one_line(line) for line in story.restarts]
    if len(restarts) > _MOST_RESTARTS:
        restarts[:-_MOST_RESTARTS] = [f"{len(restarts) - _MOST_RESTARTS} restarts before"]
    notes = story.notes if not run.result else [note for note in story.notes if not note.startswith("supervise ")]
    return [f"  {line}" for line in (*restarts, *map(one_line, notes))]


def _end(run: RecordedRun, story: _Story) -> list[str]:
    report = run.result.get("report")
    if run.result:
        told = report if isinstance(report, list) else []
        return ["", *map(str, told)] if told else [f"  exit:     {one_line(str(run.result.get('exit_code')))}"]
    at = f" after {one_line(story.last)}" if story.last else ""
    head = [""]
    if run.state == "unknown":
        head += [f"supervise may still run on host {one_line(str(run.info.get('host_name')))}. The last that is known:"]
    elif run.state != "running":
        head += [f"supervise ended{at} without a result: it was killed, or its disk was full. The ranks were then:"]
    kinds: dict[str, list[int]] = {}
    for rank, state in sorted(story.states.items()):
        kinds.setdefault(state if run.state == "running" else state.partition(", pid")[0], []).append(rank)
    states = [f"  {spans(ranks)}: {one_line(state)}" for state, ranks in kinds.items()]
    if story.first_failure is not None and len(story.states) > 1:
        rank, how = story.first_failure
        states.append(f"  the first failure: rank {rank}, {one_line(how)}")
    return [*head, *states]
