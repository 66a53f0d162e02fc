"""The state of a run, folded from its events: from live events, or from the lines of ``events.jsonl``.

Only this module knows what an event does to the state. The screen of `supervise run`, and the commands that read the
files of a run, put into words what they find here.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

Ending = Literal["running", "succeeded", "failed", "stopped", "unknown"]
"""How a life ended. ``stopped``: by supervise. ``unknown``: supervise was killed before the life ended."""

_LARGEST = 1 << 64
"""A timeout may be `sys.maxsize` seconds, which is 2 ** 63 as a `float`."""
_LONGEST_TEXT = 4096
"""Characters of a text that are kept. A path has at most as many bytes."""
MOST_RANKS = 100_000
_MOST_OCCURRENCES = 2_000
_MOST_STACKS = 20


# Validation: a rank may have written a line of the file, and so any value


_KINDS: dict[str, type | list[type]] = {
    **dict.fromkeys(("attempt", "count", "errno", "exit_code", "host", "max_restarts", "max_rss_bytes"), int),
    **dict.fromkeys(("monotonic_ns", "pid", "restarts", "root_cause_rank", "step"), int),
    **dict.fromkeys(("age_s", "backoff_s", "cpu_time_s", "uptime_s"), float),
    **dict.fromkeys(("complaint", "end_role", "error", "error_type", "evidence", "exception_message"), str),
    **dict.fromkeys(("exit_signal", "level", "log_iostream", "message", "path", "reason"), str),
    **dict.fromkeys(("signal", "status", "tier"), str),
    **dict.fromkeys(("core_dumped", "ended", "oom_kill", "spontaneous"), bool),
    "descendants": [int],
    "failed_ranks": [int],
    "left_out": [int],
    "places": [str],
}
"""The fields that an `Occurrence` keeps, with their types; ``[int]`` is a list of integers."""

_NEEDS: dict[str, set[str]] = {
    "events.lost": {"count"},
    "gang.failed": {"failed_ranks"},
    "gang.restarting": {"attempt", "error_type", "root_cause_rank"},
    "gang.stacks": {"places"},
    "gang.stopping": {"reason"},
    "host.lost": {"host", "reason"},
    "process.exited": {"exit_code"},
    "process.faulted": {"message"},
    "process.hung": {"age_s", "tier"},
    "process.leaked": {"descendants", "ended"},
    "process.restarting": {"exit_code"},
    "process.signaled": {"reason", "signal"},
    "process.started": {"pid"},
    "process.start_failed": {"exception_message"},
    "process.stopped": {"signal"},
}
"""Event to the fields without which it is not valid. Only an exit code may be None."""

RESTARTS = ("process.restarting", "gang.restarting")
_OF_A_LIFE = frozenset(
    f"process.{what}"
    for what in ("exited", "faulted", "hung", "ready", "signaled", "started", "start_failed", "stopped")
)


class Occurrence:
    """A valid event."""

    __slots__ = ("at_s", "fields", "name", "rank")

    def __init__(self, name: str, at_s: float, rank: int | None, fields: dict[str, Any]) -> None:
        """Describe the event.

        Args:
            name: Its name without ``supervise.``.
            at_s: Seconds since the epoch.
            rank: Local rank, or global rank if the run has several hosts; None: the whole gang.
            fields: The known fields, with values of the right type and of limited size. Texts may have control
                characters.
        """
        self.name, self.at_s, self.rank, self.fields = name, at_s, rank, fields


def checked(event: Mapping[str, Any], at_s: float | None = None) -> Occurrence | None:
    """Return an event with its known fields; None if a value has the wrong type or an absurd size.

    Args:
        event: The event.
        at_s: Its time in seconds since the epoch; None: that of its timestamp.
    """
    fields = {}
    for key, value in event.items():
        kind = _KINDS.get(key)
        if kind is not None and value is not None:
            if not is_a(kind, value):
                return None
            fields[key] = value[:_LONGEST_TEXT] if kind is str else value
    try:
        name = event["event"].removeprefix("supervise.")
        if at_s is None:
            at = parsed_time(event["timestamp"])
            if at is None:
                return None
            at_s = at.timestamp()
    except (AttributeError, KeyError):
        return None
    rank = event.get("rank" if "host" in event else "local_rank")
    is_valid = name not in _OF_A_LIFE if rank is None else is_a(int, rank) and rank >= 0
    if "exit_code" in event:
        fields.setdefault("exit_code", None)
    return Occurrence(name, at_s, rank, fields) if is_valid and fields.keys() >= _NEEDS.get(name, set()) else None


def parsed_time(text: object) -> datetime | None:
    """Return the time of a text in ISO format, in UTC if the text has no zone; None if there is none in every zone."""
    from datetime import MAXYEAR, MINYEAR, UTC, datetime  # lazy: a live run does not need it

    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    if not MINYEAR < found.year < MAXYEAR:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def is_a(kind: type | list[type], value: Any) -> bool:
    """Return whether a value has a type and a reasonable size. An `int` is a `float`, too; NaN and a `bool` are not."""
    if kind is int or kind is float:
        return (type(value) is kind or type(value) is int) and -_LARGEST < value < _LARGEST
    if isinstance(kind, list):
        return isinstance(value, list) and all(is_a(kind[0], each) for each in value)
    return isinstance(value, kind)


# The state


class Life:
    """One process of a rank, or the failure to start one."""

    __slots__ = (
        "attempt",
        "backoff",
        "end",
        "ending",
        "hang",
        "launch_failure",
        "occurrences",
        "pid",
        "ready_s",
        "started_s",
    )

    def __init__(self, first: Occurrence, attempt: int) -> None:
        """Begin with its start; if that event is missing, with the first event that is known."""
        self.attempt = attempt
        self.pid: int = first.fields.get("pid", 0)
        """0: it could not be launched, or its events do not say."""
        self.started_s: float = first.at_s - first.fields.get("uptime_s", 0)
        """Seconds since the epoch, as all times here."""
        self.ready_s: float | None = None
        self.end: Occurrence | None = None
        """The event of its exit."""
        self.ending: Ending = "running"
        self.launch_failure: Occurrence | None = None
        """Why it could not be started, or was not ready."""
        self.occurrences: list[Occurrence] = []
        """The first signals that supervise sent to it, its suspensions and its hangs, in their order."""
        self.hang: Occurrence | None = None
        """The last hang that was reported; None if the life went on: it answered again, or ended for another reason."""
        self.backoff: Occurrence | None = None
        """The event that announced the next life after a delay; None if there was no delay."""

    @property
    def ended_s(self) -> float | None:
        """When it ended; None if it runs, or could not be launched."""
        return None if self.end is None else self.end.at_s

    @property
    def facts(self) -> dict[str, Any]:
        """The fields of the event of its exit; empty without that event."""
        return {} if self.end is None else self.end.fields

    @property
    def ran(self) -> bool:
        """Whether it had a process."""
        return self.launch_failure is None or self.pid > 0

    def all_of(self, what: str) -> list[Occurrence]:
        """Return its occurrences of one kind: ``signaled``, ``stopped`` or ``hung``."""
        return [each for each in self.occurrences if each.name == f"process.{what}"]


class Failure:
    """The failure of a rank."""

    __slots__ = ("at_s", "life", "why")

    def __init__(self, at_s: float, life: Life, why: str) -> None:
        """Describe the failure of a life.

        Args:
            at_s: Seconds since the epoch.
            life: The life.
            why: The fault of a rank that ran, or the error of its start; "" if its exit is the failure.
        """
        self.at_s, self.life, self.why = at_s, life, why


class RankLives:
    """The lives of one rank."""

    __slots__ = ("caused", "count", "lives", "waits")

    def __init__(self, most: int | None) -> None:
        """Begin without a life. Keep at most `most` lives; None: keep all."""
        self.lives: deque[Life] = deque(maxlen=most)
        """The newest lives, oldest first. The last one is the present life."""
        self.count = 0
        """Number of processes, with those whose lives are not kept."""
        self.waits = False
        """Whether a restart was announced, and the next life has not begun."""
        self.caused = False
        """Whether the end of this rank alone has caused that restart."""

    @property
    def life(self) -> Life | None:
        """Its last life; None if it was never started."""
        return self.lives[-1] if self.lives else None

    def await_restart(self, it: Occurrence) -> None:
        """Note the event that announces the next life."""
        self.waits = True
        if self.life is not None and it.fields.get("backoff_s"):
            self.life.backoff = it


class RunState:
    """The state of a run. Used by one thread."""

    def __init__(self, *, most_lives: int | None = 1) -> None:
        """Begin before the first event.

        Args:
            most_lives: How many lives of each rank are kept; None: all.
        """
        self.ranks: dict[int, RankLives] = {}
        """The ranks that have had an event, in the order of their first events."""
        self.ended: set[int] = set()
        """Ranks whose life in the present attempt has ended, or could not be started, and that do not restart."""
        self.failed: dict[int, Failure] = {}
        """Rank to the failure of its present life, the first failure first."""
        self.last_failures: dict[int, Failure] = {}
        """The same for the last life that has failed, even if a restart has followed."""
        self.stop: Occurrence | None = None
        """The last event ``gang.stopping`` of the present attempt; None: supervise does not stop the ranks."""
        self.restart: Occurrence | None = None
        """The announced restart of all ranks, until the next attempt begins."""
        self.restarts = 0
        """Number of restarts of all ranks, with the announced one."""
        self.single_restarts = 0
        """Number of restarts that the end of one rank has caused, that were not of all ranks, and that have begun."""
        self.stacks: deque[Occurrence] = deque(maxlen=_MOST_STACKS)
        """The newest files of stacks, oldest first."""
        self.last = ""
        """The time of the last event as text."""
        self._most_lives = most_lives

    def apply(self, event: Mapping[str, Any], at_s: float | None = None) -> Occurrence | None:
        """Process one event.

        Args:
            event: A live event with its name as ``event``, or a line of ``events.jsonl``.
            at_s: Its time in seconds since the epoch; None: that of its timestamp.

        Returns:
            The event with valid fields. None if it is not valid; then the state is unchanged.
        """
        it = checked(event, at_s)
        if it is None or (it.rank is not None and it.rank not in self.ranks and len(self.ranks) >= MOST_RANKS):
            return None
        self.last = event.get("timestamp", "")
        if it.rank is None:
            self._of_gang(it)
        elif it.name in _OF_A_LIFE:
            self._of_life(it, it.rank, self._life(it, it.rank))
        elif it.name == "process.restarting":
            known = self.of(it.rank)
            known.await_restart(it)
            it.fields["fault"] = self.fault(it.rank)
            known.caused = known.caused or it.fields.get("end_role") == "root_cause"
            self.ended.discard(it.rank)
        return it

    def fault(self, rank: int) -> str:
        """Return why a rank failed while it ran, such as ``hung``; "" if its exit is the failure."""
        failure = self.failed.get(rank)
        return "" if failure is None or failure.life.launch_failure is not None else failure.why.partition(":")[0]

    def is_canceled(self, it: Occurrence, run_state: str) -> bool:
        """Return whether an event announces a restart, and the run has ended without it.

        Args:
            it: The event.
            run_state: The state of the run, as that of a `RecordedRun`.
        """
        if it.name not in RESTARTS or run_state in ("running", "unknown"):
            return False
        lives = (known.life for known in (self.ranks.values() if it.rank is None else [self.of(it.rank)]))
        return not any(life is not None and life.attempt >= it.fields.get("attempt", 0) for life in lives)

    def of(self, rank: int) -> RankLives:
        """Return the lives of a rank, which may have none."""
        if rank not in self.ranks:
            self.ranks[rank] = RankLives(self._most_lives)
        return self.ranks[rank]

    def _life(self, it: Occurrence, rank: int) -> Life:
        """Return the life that an event is about. A life whose start is not known begins with its first event."""
        known = self.of(rank)
        life = known.life
        attempt = it.fields.get("attempt", 0 if life is None else life.attempt)
        if it.name == "process.start_failed" and self.restart is not None:  # no file of the attempt could be made
            self._begin()
        if life is None or life.attempt != attempt or it.name == "process.started":
            life = Life(it, attempt)
            known.lives.append(life)
            known.count += it.name != "process.start_failed"
            self.single_restarts += known.caused
            known.waits = known.caused = False
            self.ended.discard(rank)
            self.failed.pop(rank, None)
        return life

    def _of_life(self, it: Occurrence, rank: int, life: Life) -> None:
        life.pid = it.fields.get("pid", life.pid)
        match it.name:
            case "process.ready":
                life.ready_s = it.at_s if life.ready_s is None else life.ready_s
                life.hang = None  # it answers its probe again
            case "process.exited":
                self._exited(it, rank, life)
            case "process.faulted":
                self._fails(rank, Failure(it.at_s, life, it.fields["message"]))
            case "process.start_failed":
                life.launch_failure = it
                self.ended.add(rank)
                self._fails(rank, Failure(it.at_s, life, it.fields["exception_message"]))
            case "process.hung" | "process.signaled" | "process.stopped":
                life.hang = it if it.name == "process.hung" else life.hang
                if len(life.occurrences) < _MOST_OCCURRENCES:
                    life.occurrences.append(it)
            case _:
                pass

    def _exited(self, it: Occurrence, rank: int, life: Life) -> None:
        life.end = it
        self.ended.add(rank)
        before = self.failed.get(rank)
        if before is not None or it.fields.get("level") == "error":
            self._fails(rank, Failure(it.at_s, life, "" if before is None else before.why))
            life.ending = "failed"
        elif it.fields.get("spontaneous"):
            life.ending = "failed" if it.fields.get("complaint") else "succeeded"
        else:
            life.ending = "stopped"
        if life.ending != "stopped" and self.fault(rank) != "hung":
            life.hang = None

    def _fails(self, rank: int, failure: Failure) -> None:
        self.failed[rank] = self.last_failures[rank] = failure

    def _of_gang(self, it: Occurrence) -> None:  # noqa: C901 - one case per event
        match it.name:
            case "gang.starting":
                self._begin()
            case "gang.failed":  # also of a rank with exit code 0 whose restart kind is permanent
                for known in (self.ranks[rank] for rank in it.fields["failed_ranks"] if rank in self.ranks):
                    if known.life is not None and known.life.end is not None:
                        known.life.ending = "failed"
            case "gang.stopping":
                self.stop = it
            case "gang.restarting":
                self.restart, self.restarts, self.stop = it, self.restarts + 1, None
                self.failed.clear()
                for rank in self.ranks.keys() - {*it.fields.get("left_out", ())}:
                    self.ranks[rank].await_restart(it)
            case "gang.finished":
                for known in self.ranks.values():
                    known.waits = False  # a stop has canceled the restart
            case "gang.stacks" if it.fields.get("path"):
                self.stacks.append(it)
            case _:
                pass

    def _begin(self) -> None:
        """Begin an attempt. The ranks that its restart has left out have ended."""
        left_out = () if self.restart is None else self.restart.fields.get("left_out", ())
        self.ended.intersection_update(left_out)
        self.restart = self.stop = None
