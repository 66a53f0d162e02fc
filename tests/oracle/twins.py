"""Feed the old core and the live one with the same events; actions, status and result must be equal.

Compared after each event:

- the actions, in order, with all values. The ranks *within* one action are a set: their order is not promised, and
  `tests.model.neutral` sorts them. No other order is ignored: ``LaunchRank`` of several ranks comes in the order of the
  ranks.
- the status: what users can see at any time in `GangStatus`, in the events, and by which ranks a `Signal` reaches.
- the verdict and the other input of the result, whenever the actors build one: at ``Publish``, at ``AnnounceRestart``,
  and after ``StopOnFailure`` while the gang runs (the message `SoFar` of PyTorch's contexts).

The model checker takes two states for one if the old core, the processes and the timers are the same, and goes on with
the live core that came there first. The status of the other is compared, its later answers are not. The random
histories have no such gap.

An intended difference between the cores is listed here, by name, and excepted in `Twins`. There is none.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Self

from tests.model.live import LiveCore
from tests.model.neutral import Core, Known, Neutral, Spec
from tests.oracle.histories import Attempt, Mailbox
from tests.oracle.old import OldCore
from tests.oracle.shortest import shortest


class Answer(NamedTuple):
    """The answer of a core to one event."""

    actions: list[Neutral]
    status: dict[str, Any]
    result: dict[str, Any] | None
    """None if the actors build no result now."""
    raised: str = ""
    """The name of the exception that the core raised."""

    def __str__(self) -> str:
        """Return it as a few lines."""
        if self.raised:
            return f"raises {self.raised}"
        lines = [", ".join(map(str, self.actions)) or "nothing to do", _show("status", self.status)]
        return "\n".join(filter(None, [*lines, _show("result", self.result or {})]))


def _show(title: str, values: dict[str, Any]) -> str:
    return f"{title}: " + ", ".join(f"{name}={value}" for name, value in values.items()) if values else ""


class DifferentAnswerError(AssertionError):
    """The cores differ; the text shows both answers."""

    def __init__(self, event: Neutral, old: Answer, new: Answer) -> None:
        super().__init__(event, old, new)
        self.event, self.old, self.new = event, old, new

    def __str__(self) -> str:
        """Return the event and both answers; of the status and the result only what differs."""
        old, new = self.old, self.new
        if not (old.raised or new.raised):
            old, new = (
                a._replace(status=_differing(a.status, b.status), result=_differing(a.result, b.result))
                for a, b in ((old, new), (new, old))
            )
        return f"{self.event}\n{_indented('old core', old)}\n{_indented('new core', new)}"


def _differing(mine: dict[str, Any] | None, other: dict[str, Any] | None) -> Any:
    if mine is None or other is None:
        return mine
    return {name: value for name, value in mine.items() if other.get(name) != value}


def _indented(title: str, answer: Answer) -> str:
    return f"    {title}: " + str(answer).replace("\n", "\n        ")


def _answer(core: Core, event: Neutral) -> Answer:
    try:
        actions = core.feed(event)
    except Exception as error:
        return Answer([], {}, None, type(error).__name__)
    status = core.status()
    shown = any(action.name in ("Publish", "AnnounceRestart") for action in actions)
    if not shown:
        shown = event.name == "StopOnFailure" and status["phase"] == "running"
    return Answer(actions, status, core.result() if shown else None)


class Twins:
    """Both cores behind one `Core`, which returns the answers of the old one.

    Raises:
        DifferentAnswerError: From `feed`, if the answers differ.
    """

    def __init__(self, spec: Spec, live: Callable[[Spec], Core] = LiveCore) -> None:
        self._old: Core = OldCore(spec)
        self._live = live(spec)

    def copy(self) -> Self:
        other = object.__new__(type(self))
        other._old, other._live = self._old.copy(), self._live.copy()
        return other

    def feed(self, event: Neutral) -> list[Neutral]:
        old, new = _answer(self._old, event), _answer(self._live, event)
        if old != new:
            raise DifferentAnswerError(event, old, new)
        return old.actions

    def status(self) -> dict[str, Any]:
        return self._old.status()

    def result(self) -> dict[str, Any]:
        return self._old.result()

    def known(self) -> Known:
        return self._old.known()

    def numbers(self) -> dict[int, int]:
        return self._live.numbers()

    def counted(self) -> int:
        return self._live.counted()


def compare(spec: Spec, history: Iterable[Neutral]) -> None:
    """Feed both cores with a given history.

    Raises:
        AssertionError: They differ; the text is the history up to there, one event a line, and both answers.
    """
    twins, told = Twins(spec), []
    try:
        for event in history:
            told.append(event)
            twins.feed(event)
    except DifferentAnswerError as error:
        raise AssertionError(_text(spec, told, error)) from None


def compare_along(plan: Attempt) -> None:
    """Feed both cores with a history that is generated from the answers.

    Raises:
        AssertionError: As in `compare`, and the history is the shortest that can be found.
    """
    if difference(plan):
        raise AssertionError(difference(shortest(plan, difference)))


def difference(plan: Attempt) -> str:
    """Return how the cores differ in a history; "" if they do not."""
    mailbox = Mailbox(plan, Twins(plan.spec))
    try:
        mailbox.run()
    except DifferentAnswerError as error:
        return _text(plan.spec, mailbox.told, error)
    return ""


def _text(spec: Spec, told: list[Neutral], error: DifferentAnswerError) -> str:
    return "\n".join(["the cores differ:", str(spec), *map(str, told[:-1]), str(error)])
