"""The incidents of a run so far, from its events. The file of events is followed while the run goes on."""

from __future__ import annotations

import json
import os
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from supervise._opening import open_regular
from supervise._printable import one_line
from supervise._views.failed_ranks import FailedRanks
from supervise._views.top.reading import Incident
from supervise._views.wording import ended_how, event_time_s, failed_or_ended, seconds

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_KEPT = 500
_MOST_BYTES = 4 << 20
"""If a file, or its growth between two readings, is larger than this, only the end is read."""
_LONGEST_LINE = 1 << 20
_LONGEST_TEXT = 300
_WANTED = (b'"supervise.process.', b'"supervise.gang.', b'"supervise.events.lost"', b'"supervise.host.lost"')


class Hang(NamedTuple):
    """A hang of the present life of a rank, as the watchdog has reported it."""

    at_s: float
    attempt: int
    by_beat: bool
    """Whether heartbeats were missing; otherwise output."""


class Incidents:
    """Follows ``events.jsonl``. Used by one thread."""

    def __init__(self, directory: str, last_words: Callable[[int, int], str | None]) -> None:
        """Begin at the start of the file.

        Args:
            directory: The run directory.
            last_words: Returns, for a rank and an attempt, the last line of the stderr, or else of the stdout.
        """
        self.kept: deque[Incident] = deque(maxlen=MOST_KEPT)
        """The newest incidents, the oldest first."""
        self.first: Incident | None = None
        """The first failure of the present attempt of the gang."""
        self.count = 0
        """Number of all incidents, with those that are not kept any more."""
        self.failed = FailedRanks()
        self.hangs: dict[int, Hang] = {}
        """Local rank to the last hang that was reported."""
        self._path = os.path.join(directory, "events.jsonl")
        self._last_words = last_words
        self._place = 0
        self._torn = b""

    def look(self) -> list[Incident]:
        """Read the events that were written since the last call; return the new incidents."""
        try:
            data = self._new()
        except OSError:
            return []
        *lines, self._torn = (self._torn + data).split(b"\n")
        if len(self._torn) > _LONGEST_LINE:
            self._torn = b""
        found = [each for line in lines if (each := self._incident(line)) is not None]
        self.kept.extend(found)
        self.count += len(found)
        return found

    def _new(self) -> bytes:
        fd = open_regular(self._path)
        try:
            end = os.fstat(fd).st_size
            if end - self._place > _MOST_BYTES:
                self._place, self._torn = end - _MOST_BYTES, b""
            data = b""
            if end > self._place:
                data = os.pread(fd, end - self._place, self._place)
            self._place += len(data)
            return data
        finally:
            os.close(fd)

    def _incident(self, line: bytes) -> Incident | None:
        if not any(word in line for word in _WANTED):
            return None
        try:
            event = json.loads(line)
            if "host" in event and "rank" in event:  # with an engine, the global ranks are shown
                event["local_rank"] = event["rank"]
            name = event["event"].removeprefix("supervise.")
            found = self._of(name, event)
            self.failed.take(name, event)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError):
            return None  # a rank may have written the line
        return found

    def _of(self, name: str, event: dict[str, Any]) -> Incident | None:  # noqa: PLR0911 - one case per event
        at_s = event_time_s(event["timestamp"])
        if name.startswith("process."):
            rank = event["local_rank"]
            if not isinstance(rank, int) or isinstance(rank, bool):
                return None
            return self._of_rank(name.removeprefix("process."), event, at_s, rank)
        match name:
            case "gang.restarting":
                self.first = None
                delay = seconds(float(event["backoff_s"] or 0))
                return Incident(at_s, "restart", None, f"all ranks restart in {delay}: {self._cause(event)}")
            case "gang.stopping":
                return Incident(at_s, "stopping", None, f"supervise stops the ranks ({_text(event['reason'])})")
            case "events.lost":
                return Incident(at_s, "lost", None, f"{int(event['count'])} events could not be written")
            case "host.lost":
                return Incident(at_s, "lost", None, f"host {_text(event['host'])}: {_text(event['reason'])}")
            case _:
                return None

    def _cause(self, event: dict[str, Any]) -> str:
        how = event["error_type"]
        return f"rank {_text(event['root_cause_rank'])} {failed_or_ended(how)} ({_text(how)})"

    def _of_rank(self, name: str, event: dict[str, Any], at_s: float, rank: int) -> Incident | None:  # noqa: PLR0911
        match name:
            case "exited" if event.get("level") == "error":
                found = Incident(at_s, "failed", rank, f"rank {rank} failed: {self._ending(event, rank)}")
                self.first = self.first or found
                return found
            case "restarting" if event.get("level") == "warning":  # at another level, another rank is the cause
                delay = seconds(float(event["backoff_s"] or 0))
                return Incident(at_s, "restart", rank, f"rank {rank} restarts in {delay}: {ended_how(event)}")
            case "hung":
                age_s = float(event["age_s"])
                by_beat = str(event["tier"]) == "heartbeat"
                self.hangs[rank] = Hang(at_s, int(event["attempt"] or 0), by_beat)
                step = "" if event.get("step") is None else f", step {_text(event['step'])}"
                return Incident(
                    at_s, "hung", rank, f"rank {rank} hangs: no {_text(event['tier'])} for {seconds(age_s)}{step}"
                )
            case "faulted":
                return Incident(at_s, "failed", rank, f"rank {rank}: {_text(event['message'])}")
            case "stopped":
                return Incident(at_s, "suspended", rank, f"rank {rank} was suspended by {_text(event['signal'])}")
            case "start_failed":
                text = f"rank {rank} did not start: {_text(event['exception_message'])}"
                return Incident(at_s, "failed", rank, text)
            case _:
                return None

    def _ending(self, event: dict[str, Any], rank: int) -> str:
        how = f"{ended_how(event)}, out of memory" if event.get("oom_kill") else ended_how(event)
        after = f" after {seconds(float(event['uptime_s']))}" if event.get("uptime_s") is not None else ""
        words = self._last_words(rank, int(event.get("attempt") or 0))
        return f"{how}{after}{f'; last line: {words}' if words else ''}"


def _text(value: object) -> str:
    return one_line(str(value))[:_LONGEST_TEXT]
