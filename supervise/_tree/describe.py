"""The events that describe the facts of a tree. Only this module has the names of these events."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from supervise import trees
from supervise._core import tree as ts
from supervise._printable import ending, one_line
from supervise.errors import ChildFailedError, RestartLimitExceeded, SuperviseError, SupervisorCrashed
from supervise.events import Event, EventLog
from supervise.recording import text_of, traceback_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pykka

    from supervise._core.tree import Tree
    from supervise._runtime.loop import Timer
    from supervise._tree.lives import Life
    from supervise._tree.monitor import Reason
    from supervise.events import Sink
    from supervise.restarts import RestartPolicy
    from supervise.trees import ChildSpec, TreeFinished


# Record of one child in the actor of a tree


class Row:
    """One child: its spec, its life and its timers. The core knows its state."""

    def __init__(self, spec: ChildSpec) -> None:
        """Make the record of a child that has not been started."""
        self.spec = spec
        self.number = 0
        """Number of the life that was started last."""
        self.begun_ns = 0
        """Monotonic time at which the start function of this life was called."""
        self.life: Life | None = None
        self.reason: Reason = None
        """Reason of the last end."""
        self.timers: dict[str, Timer] = {}

    @property
    def ref(self) -> pykka.ActorRef[Any] | None:
        """The ref of the present life's actor; None if there is no life."""
        return None if self.life is None else self.life.ref

    def cancel(self, name: str) -> None:
        """Cancel a timer; idempotent."""
        timer = self.timers.pop(name, None)
        if timer is not None:
            timer.cancel()


if TYPE_CHECKING:
    Fact = (
        ts.StartAsked
        | ts.Started
        | ts.Stop
        | ts.LifeChanged
        | ts.Stopping
        | trees.ChildStarted
        | trees.ChildDown
        | trees.ChildRestarting
        | trees.TreeFinished
    )


def describe(fact: Fact, tree: ts.Tree, attempt: int, duration_s: float) -> list[Event]:
    """Return the events for `fact`, in order.

    Args:
        fact: What has happened.
        tree: The state of the tree.
        attempt: For a fact of a child: the number of its present life, from 0.
        duration_s: Seconds since the start function of that life was called. For a fact of the tree: seconds since the
            start of the tree.
    """
    fields: dict[str, Any]
    match fact:
        case ts.StartAsked():
            fields = {"strategy": tree.strategy, "children": list(tree.children)}
            return [Event("supervise.tree.starting", "info", fields)]
        case ts.Started():
            return [Event("supervise.tree.started", "info", {"duration_s": duration_s})]
        case ts.Stopping():
            return _stopping(fact, tree.policy)
        case trees.TreeFinished():
            outcome = "stopped" if fact.error is None else "failed"
            fields = {"outcome": outcome, "duration_s": duration_s, **_exception(fact.error)}
            return [Event("supervise.tree.finished", "info" if fact.error is None else "error", fields)]
        case trees.ChildRestarting():
            fields = {
                **_life(fact.id, attempt + 1),
                "backoff_s": fact.delay_s,
                "children": list(fact.ids),
                "restarts": fact.restarts,
                "max_restarts": tree.policy.max_restarts,
            }
            return [Event("supervise.child.restarting", "warning", fields)]
        case _:
            return [_of_child(fact, attempt, duration_s)]


def _of_child(
    fact: ts.LifeChanged | ts.Stop | trees.ChildStarted | trees.ChildDown,
    attempt: int,
    duration_s: float,
) -> Event:
    match fact:
        case trees.ChildStarted():
            fields = {**_life(fact.id, attempt), "actor": str(fact.ref), "start_duration_s": duration_s}
            return Event("supervise.child.started", "info", fields)
        case ts.LifeChanged(what="ignored"):
            return Event("supervise.child.ignored", "info", _life(fact.id, attempt))
        case ts.Stop():
            return Event("supervise.child.stopping", "info", _life(fact.id, attempt))
        case ts.LifeChanged():
            return Event("supervise.child.abandoned", "error", _life(fact.id, attempt))
        case trees.ChildDown():
            fields = {**_life(fact.id, attempt), "normal": fact.normal, "uptime_s": duration_s, **_reason(fact.reason)}
            return Event("supervise.child.down", "info" if fact.normal else "error", fields)


def _stopping(fact: ts.Stopping, policy: RestartPolicy) -> list[Event]:
    """Return the events for a tree that ends.

    If the tree has used up its restarts, the event about that comes first.
    """
    limit = {"child": fact.id, "max_restarts": policy.max_restarts, "within_s": policy.within_s}
    gave_up = [Event("supervise.tree.gave_up", "error", limit)] if fact.outcome == "gave_up" else []
    fields = {"reason": fact.outcome, "child": fact.id or None}
    return [*gave_up, Event("supervise.tree.stopping", "info" if fact.outcome == "stopped" else "error", fields)]


def _life(child: str, attempt: int) -> dict[str, Any]:
    return {"child": child, "attempt": attempt}


def _reason(reason: Reason) -> dict[str, Any]:
    """Return the fields for the end of a child: the reason as a word, and the exception if there is one."""
    error = reason if isinstance(reason, BaseException) else None
    stacktrace = None if error is None or error.__traceback__ is None else traceback_of(error)
    word = "exception" if error is not None else reason
    return {"reason": word, **_exception(error), "exception_stacktrace": stacktrace}


def _exception(error: BaseException | None) -> dict[str, Any]:
    kind, text = (None, None) if error is None else (type(error).__name__, text_of(error))
    return {"exception_type": kind, "exception_message": text}


# The emission of a tree's events


_OF_TREES = (SuperviseError, RestartLimitExceeded, SupervisorCrashed)
"""The errors of trees, whose causes follow in the line of a failure. A subclass has a text of its own."""


class EventEmitter:
    """Emitter of the events of one tree. Used on the loop of the tree."""

    def __init__(self, name: str, tree: Tree, sink: Sink | None) -> None:
        """Emit events for the tree called `name`. Every event has this name."""
        self._tree = tree
        self._begun_ns = time.monotonic_ns()
        self._log = EventLog({"tree": name}, sink=sink)

    def emit(self, fact: Fact, row: Row | None = None) -> None:
        """Emit the events for `fact`; `row` is the child that `fact` is about.

        Without a listener, do not describe `fact`.
        """
        if not self._log.listens("error"):
            return
        begun_ns, attempt = (self._begun_ns, 0) if row is None else (row.begun_ns, row.number - 1)
        duration_s = (time.monotonic_ns() - begun_ns) / 1e9
        for event in describe(fact, self._tree, attempt, duration_s):
            self._log.emit(event.name, event.level, **event.fields)

    def finish(self, fact: TreeFinished, *, awaited: bool) -> None:
        """Emit the last event. Without a listener, show the failure in one line.

        Args:
            fact: The end of the tree.
            awaited: Whether an actor or a thread waits for it; then only a tree that has given up shows the line.
        """
        self.emit(fact)
        error = fact.error
        if error is not None and (isinstance(error, RestartLimitExceeded) or not awaited):
            self._log.show_at_last(one_line(f"supervise: tree failed: {': '.join(_reasons(error))}"))


def _reasons(error: BaseException) -> Iterator[str]:
    """Yield the text of a tree's error, and then its causes: below errors of trees, the first other one."""
    yield text_of(error)
    while type(error) in _OF_TREES and error.__cause__ is not None:
        error = error.__cause__
        yield _first_line(error)


def _first_line(error: BaseException) -> str:
    """Return an error as one line.

    For a gang, this is its root cause, because the text of that error begins with a ruler.
    """
    if not isinstance(error, ChildFailedError):
        text = text_of(error).strip().partition("\n")[0]
        return f"{type(error).__name__}: {text}" if text else type(error).__name__
    rank, root = next(iter(error.failures.items()))
    how = ending(root.exitcode)
    said = str(root.message.get("message", how)) if isinstance(root.message, dict) else how
    return f"rank {rank}: {said.partition(chr(10))[0]}"
