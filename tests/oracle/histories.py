"""Random histories: every order of events that the Supervisor's mailbox allows, also orders that make no sense.

`Mailbox` chooses the next event by these rules:

- A Worker reports events of its rank in this order: started or failed to start; exited; group emptied. A Worker reports
  its rank as unkillable only after ``ReportUnkillable``, and the exit of that rank may follow.
- Each request of the core is answered once: ``ReapAll``, ``SweepUp``, ``Assemble``, each Tail, the values.
- All other events may arrive at any time, any number of times: ``StartAsked``, ``CloseAsked``, ``StopOnFailure``, and
  every timer, set or not; also ``BackoffExpired``, a second ``AllReaped`` and a second ``Assembled``.

A second exit of a rank, the start of a rank that was not launched and an unrequested ``Swept`` are not generated: no
actor sends them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from tests.model.neutral import Core, Neutral, Spec, neutral

T = TypeVar("T")

_ENDS: list[dict[str, Any]] = [
    {"exitcode": 0},
    {"exitcode": 1},
    *[{"exitcode": 0}] * 4,
    {"exitcode": 0, "has_value": True},
    {"exitcode": -15},
    {"exitcode": None},
    {"exitcode": 0, "complaint": "no return value"},
    {"exitcode": 0, "has_value": True, "complaint": "its value could not be read"},
]
_PROBLEMS: list[dict[int, str]] = [{}, {0: "it could not be unpickled"}]
_CLOSES = [
    neutral("CloseAsked", death_sig=sig, timeout_s=timeout_s, reason=reason)
    for reason in ("close", "timeout")
    for timeout_s in (9.0, 0.5, 3.0, 0.0)
    for sig in ("SIGTERM", "SIGINT", "SIGKILL")
]
_ASKS = [neutral("StartAsked"), neutral("StopOnFailure", on=True), neutral("StopOnFailure", on=False)]
_ANY_TIMER = [*map(neutral, ("GraceExpired", "KillExpired", "DrainExpired", "BackoffExpired"))]
_ASSEMBLED = [*[neutral("Assembled")] * 4, neutral("NotAssembled")]
_MOST_IDLE = 10
"""How many choices may find no event before a history ends."""


class Attempt(NamedTuple):
    """A gang, and the choices that make a history of it."""

    spec: Spec
    choices: Sequence[int]
    """Each number chooses the next event; smaller numbers choose simpler events."""
    tails: int = 0
    values: bool = False
    """Whether return values are loaded, as in a gang of functions."""
    calm: int = 0
    """Before the event of this number there is no request but the start, every launch succeeds, SIGKILL ends every
    process, and rank 0 fails: the gang is restarted as often as its policy allows."""


class Mailbox:
    """Feeds a core with events that are possible after its actions."""

    def __init__(self, plan: Attempt, core: Core) -> None:
        self._plan, self._core = plan, core
        self.told: list[Neutral] = []
        self._clock = 10
        self._begun = False
        self._begin_attempt()

    def run(self) -> None:
        """Feed the core until nothing can happen any more. An exception of the core propagates."""
        idle = 0
        for number in self._plan.choices:
            which, kind = divmod(number, KINDS)
            later = kind - len(_EXPECTED)
            event = self._expected(kind, which) if later < 0 else _ANY_TIME[later](self, which)
            if event is None:
                idle += 1
                if idle > _MOST_IDLE:
                    return
                continue
            if event.name == "StartAsked" and not self._begun:
                self._make_tails()
            self._note(event)
            for action in self._tell(event):
                self._obey(action)

    def _expected(self, kind: int, which: int) -> Neutral | None:
        found = (_EXPECTED[(kind + step) % len(_EXPECTED)](self, which) for step in range(len(_EXPECTED)))
        return next((each for each in found if each is not None), None)

    def _tell(self, event: Neutral) -> list[Neutral]:
        self.told.append(event)
        return self._core.feed(event)

    @property
    def _calm(self) -> bool:
        return len(self.told) < self._plan.calm

    def _begin_attempt(self) -> None:
        self._launching: set[int] = set()
        self._running: set[int] = set()
        self._groups: set[int] = set()
        self._stuck: set[int] = set()
        """Ranks that the core wants reported as unkillable."""
        self._timers: set[str] = set()
        self._tails, self._values = 0, ""
        self._counting = self._counted = self._sweeping = self._waiting = self._assembling = False

    def _make_tails(self) -> None:
        self._tails, self._values = self._plan.tails, "due" if self._plan.values else ""
        self._tell(neutral("TailsMade", count=self._tails, values=self._plan.values))

    # Kinds of events. Each returns the event that a number chooses, or None if there is none

    def start(self, which: int) -> Neutral | None:
        """Return the start, unless the start or the end was requested."""
        return None if self._begun else neutral("StartAsked")

    def starts(self, which: int) -> Neutral | None:
        """Return the start of a launched rank."""
        rank = _pick(sorted(self._launching), which)
        return None if rank is None else neutral("WorkerStarted", local_rank=rank)

    def fails_to_start(self, which: int) -> Neutral | None:
        """Return the failed start of a launched rank."""
        rank = None if self._calm else _pick(sorted(self._launching), which)
        return None if rank is None else neutral("WorkerFailedToStart", local_rank=rank)

    def exits(self, which: int) -> Neutral | None:
        """Return the exit of a rank: some are reported late, as by a fork server; some have a recorded exception."""
        if not self._running:
            return None
        which, turn = divmod(which, len(self._running))
        which, end = divmod(which, len(_ENDS))
        which, group = divmod(which, 2)
        which, late = divmod(which, 3)
        ended_ns = self._clock - 4 * (late == 1)
        error_ns = (None, ended_ns - 1, None, ended_ns - 6)[which % 4]
        rank = sorted(self._running)[turn]
        end = 1 if self._calm and rank == 0 else end
        more = {"ended_ns": ended_ns, "error_ns": error_ns, "group_left": bool(group), **_ENDS[end]}
        return neutral("WorkerExited", local_rank=rank, **more)

    def is_left(self, which: int) -> Neutral | None:
        """Return that a process group is empty, or that a rank outlived SIGKILL."""
        emptied = [neutral("GroupEmptied", local_rank=rank) for rank in sorted(self._groups)]
        stuck = [neutral("WorkerUnkillable", local_rank=rank) for rank in sorted(self._stuck) if not self._calm]
        return _pick([*emptied, *stuck], which)

    def answer(self, which: int) -> Neutral | None:
        """Return the answer to a request of the core."""
        answers = []
        if self._counting:
            answers.append(self._census(which // 7))
        if self._sweeping:
            answers.append(neutral("Swept"))
        if self._waiting:
            answers.append(neutral("BackoffExpired"))
        if self._assembling:
            answers.append(neutral("Assembled") if self._calm else _ASSEMBLED[which // 7 % len(_ASSEMBLED)])
        if self._tails:
            answers.append(neutral("TailEnded"))
        if self._values == "loading":
            answers.append(neutral("ValuesLoaded", problems=_PROBLEMS[which // 7 % 2]))
        return _pick(answers, which)

    def _census(self, which: int) -> Neutral:
        which, stamped = divmod(which, 2)
        recorded = {rank: self._clock - 2 - (which + rank) % 5 for rank in sorted(self._running) if which >> rank & 1}
        return neutral("AllReaped", recorded=recorded, taken_ns=0 if stamped else self._clock)

    def due_timer(self, which: int) -> Neutral | None:
        """Return the expiry of a timer that was set."""
        name = _pick(sorted(self._timers), which)
        return None if name is None else neutral(name)

    def any_timer(self, which: int) -> Neutral | None:
        """Return an event that is late, repeated or unrequested; it must be harmless."""
        events = [*_ANY_TIMER]
        if not self._assembling:
            events.append(neutral("Assembled"))
        if self._counted:
            events.append(neutral("AllReaped", recorded={}, taken_ns=self._clock))
        return _pick(events, which)

    def ask(self, which: int) -> Neutral | None:
        """Return a request of a user, except for the end."""
        return None if self._calm else _pick(_ASKS, which)

    def close(self, which: int) -> Neutral | None:
        """Return a close, or the expiry of the gang's timeout."""
        return None if self._calm else _pick(_CLOSES, which)

    # Keeping track of what was told and requested

    def _note(self, event: Neutral) -> None:
        self._clock += 1
        rank = event.fields.get("local_rank", -1)
        match event.name:
            case "StartAsked" | "CloseAsked":
                self._begun = True
            case "WorkerStarted":
                self._launching.discard(rank)
                self._running.add(rank)
            case "WorkerFailedToStart":
                self._launching.discard(rank)
            case "WorkerExited":
                self._running.discard(rank)
                (self._groups.add if event.fields["group_left"] else self._stuck.discard)(rank)
            case "GroupEmptied":
                self._groups.discard(rank)
                self._stuck.discard(rank)
            case "WorkerUnkillable":
                self._stuck.discard(rank)
            case "TailEnded":
                self._tails -= 1
            case "GraceExpired" | "KillExpired" | "DrainExpired":
                self._timers.discard(event.name)
            case _:
                self._note_answer(event.name)

    def _note_answer(self, name: str) -> None:
        match name:
            case "AllReaped":
                self._counting, self._counted = False, True
            case "Swept":
                self._sweeping = False
            case "BackoffExpired":
                self._waiting = False
            case "Assembled" | "NotAssembled":
                self._assembling = False
            case "ValuesLoaded":
                self._values = ""
            case _:  # nothing to keep track of
                pass

    def _obey(self, action: Neutral) -> None:
        match action.name:
            case "LaunchRank":
                self._launching.add(action.fields["local_rank"])
            case "ReapAll":
                self._counting = True
            case "SetTimer":
                self._timers.add(f"{action.fields['name'].capitalize()}Expired")
            case "ReportUnkillable":
                self._stuck |= set(action.fields["ranks"]) & (self._running | self._groups)
            case "DrainTails" if self._values:
                self._values = "loading"
            case "SweepUp":
                self._sweeping = True
            case "AnnounceRestart":
                self._waiting = True
            case "Assemble":
                self._begin_attempt()
                self._assembling = True
                self._make_tails()
            case _:  # no event answers it
                pass


def _pick(choices: Sequence[T], which: int) -> T | None:
    return choices[which % len(choices)] if choices else None


_EXPECTED: list[Callable[[Mailbox, int], Neutral | None]] = [
    Mailbox.start,
    *[Mailbox.starts] * 6,
    *[Mailbox.answer] * 8,
    *[Mailbox.exits] * 5,
    *[Mailbox.is_left] * 6,
    Mailbox.due_timer,
    Mailbox.fails_to_start,
]
"""Events that must happen, as often as their kind is listed; a kind that has none is replaced by the next kind."""
_ANY_TIME = [Mailbox.any_timer, Mailbox.any_timer, Mailbox.ask, Mailbox.close, Mailbox.close]
"""Events that may happen at any time."""
KINDS = len(_EXPECTED) + len(_ANY_TIME)
"""A choice modulo this is the kind of the event; the rest chooses the event."""
