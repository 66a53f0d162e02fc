"""The events that describe the facts of a tree. Only this module has the names of these events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervise import trees
from supervise._core import tree_state as ts
from supervise.events import Event
from supervise.recording import text_of, traceback_of

if TYPE_CHECKING:
    from supervise._tree.monitor import Reason
    from supervise.restarts import RestartPolicy

    Fact = (
        ts.StartAsked
        | ts.Started
        | ts.Ignored
        | ts.Stop
        | ts.StopExpired
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
    fact: ts.Ignored | ts.Stop | ts.StopExpired | trees.ChildStarted | trees.ChildDown,
    attempt: int,
    duration_s: float,
) -> Event:
    match fact:
        case trees.ChildStarted():
            fields = {**_life(fact.id, attempt), "actor": str(fact.ref), "start_duration_s": duration_s}
            return Event("supervise.child.started", "info", fields)
        case ts.Ignored():
            return Event("supervise.child.ignored", "info", _life(fact.id, attempt))
        case ts.Stop():
            return Event("supervise.child.stopping", "info", _life(fact.id, attempt))
        case ts.StopExpired():
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
