"""The rules of a supervision tree: which children start, stop and restart, and the order in which they do.

Only `decide` changes a `Tree`. An event sets the present state and the next state of children. Then `_settle` takes the
steps that these states allow: it stops children in reverse order and starts them in order, one at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from supervise._core.backoff import Backoff

if TYPE_CHECKING:
    from supervise.restarts import RestartKind, RestartPolicy, Strategy
    from supervise.trees import ChildState, TreePhase


# The state of a supervision tree, its events and its actions


Problem = Literal["", "unknown", "present", "ending", "ended", "failed", "terminated", "abandoned"]
"""The reason why an ask fails.

``ending``: the tree was already ending. ``ended``: the tree was stopped while the ask was pending.
"""
Outcome = Literal["stopped", "not_started", "gave_up", "abandoned"]
"""The reason why a tree ends."""
ALIVE = ("starting", "ready", "stopping")
"""The states in which the child may have an actor, for whose end the tree has to wait."""


@dataclass(slots=True)
class Child:
    """One child, through all of its lives."""

    id: str
    kind: RestartKind
    added: bool = False
    """Whether an ask added the child and the child was never ready.

    If its start fails, only the asker gets the error.
    """
    state: ChildState = "waiting"
    life: int = 0
    """Number of the lives that were started. An event of an earlier life is ignored."""
    doomed: bool = False
    """Whether the child is alive and is to be stopped in its turn."""
    then: Literal["waiting", "finished", "terminated", "removed"] = "finished"
    """The state of the child once its actor is gone."""
    was_ready: bool = False
    hold_s: float = 0.0
    """Time to wait before the next start of the child."""


@dataclass(slots=True)
class Tree:
    """The state of a tree. Children are in the order in which they start."""

    strategy: Strategy
    policy: RestartPolicy
    children: dict[str, Child] = field(default_factory=dict)
    phase: TreePhase = "new"
    backoff: Backoff = field(default_factory=lambda: Backoff(by_count=True))
    """The restarts of all children."""
    asks: dict[int, tuple[str, Literal["ready", "gone"]]] = field(default_factory=dict)
    """Asks that are not answered yet: key of the ask to the child and the moment for which the ask waits."""
    outcome: Outcome | None = None
    """The reason why the tree ends. The first reason stays."""
    culprit: str = ""
    """The child because of which the tree ends."""


# Events


@dataclass(slots=True, frozen=True)
class StartAsked:
    """The start of the tree's children is requested."""


@dataclass(slots=True, frozen=True)
class StopAsked:
    """The end of the tree is requested."""


@dataclass(slots=True, frozen=True)
class LifeChanged:
    """A life has changed, other than by its end."""

    id: str
    life: int
    what: Literal["ready", "ignored", "gone", "overdue"]
    """``ready``: it has started. ``ignored``: the start function has returned None, so there is no actor to wait for.

    ``gone``: no process and no thread of it remains; this follows its `Ended`. ``overdue``: it was stopped, or has
    ended, and was not gone in time.
    """


@dataclass(slots=True, frozen=True)
class Ended:
    """A life has ended, or could not be started. Its cleanup may still run."""

    id: str
    life: int
    normal: bool
    at_ns: int = 0
    """Monotonic time."""
    stops_all: bool = False
    """Whether the child raised an exception at which pykka stops all actors, so that no restart is of use."""


@dataclass(slots=True, frozen=True)
class BackoffExpired:
    """The backoff of a child has expired."""

    id: str


@dataclass(slots=True, frozen=True)
class Asked:
    """A `StartChild`, `TerminateChild` or `RestartChild` arrived."""

    key: int
    id: str
    what: Literal["add", "terminate", "restart"]
    kind: RestartKind = "transient"
    """The restart kind of a child that is added."""


Event = StartAsked | StopAsked | LifeChanged | Ended | BackoffExpired | Asked


# Actions


@dataclass(slots=True, frozen=True)
class Start:
    """Call the start function of a child. ``ready``, ``ignored`` or `Ended` follows."""

    id: str
    life: int


@dataclass(slots=True, frozen=True)
class Stop:
    """Tell a life to stop, unless it has ended. ``gone`` or ``overdue`` follows."""

    id: str
    life: int


@dataclass(slots=True, frozen=True)
class SetBackoff:
    """Report `BackoffExpired` after `delay_s`."""

    id: str
    delay_s: float


@dataclass(slots=True, frozen=True)
class CancelBackoff:
    """Cancel the timer of `BackoffExpired`."""

    id: str


@dataclass(slots=True, frozen=True)
class Restarting:
    """Tell subscribers that the children `ids` restart after the failure of the child `id`."""

    id: str
    ids: tuple[str, ...]
    delay_s: float


@dataclass(slots=True, frozen=True)
class Answer:
    """Answer an ask: with the ref of the child, with None, or with an error."""

    key: int
    problem: Problem = ""


@dataclass(slots=True, frozen=True)
class Started:
    """Every child has been started for the first time."""


@dataclass(slots=True, frozen=True)
class Stopping:
    """Report that the tree ends, and why. From then on, every child is stopped. A subscriber gets this report once."""

    outcome: Outcome
    id: str
    """The child because of which the tree ends. Empty after a stop."""


@dataclass(slots=True, frozen=True)
class Publish:
    """Set all pending replies, because every actor of the tree has ended."""


Action = Start | Stop | SetBackoff | CancelBackoff | Restarting | Answer | Started | Stopping | Publish


def decide(tree: Tree, event: Event) -> list[Action]:
    """Advance `tree` by one event; return the actions to carry out now, in this order.

    Late events (the end of an earlier life) and repeated events (a second stop) have no effect.
    """
    actions: list[Action] = []
    _advance(tree, event, actions)
    _settle(tree, actions)
    return actions


def _advance(tree: Tree, event: Event, actions: list[Action]) -> None:
    match event:
        case StartAsked():
            tree.phase = "starting" if tree.phase == "new" else tree.phase
        case StopAsked():
            _end(tree, "stopped", "", actions)
        case BackoffExpired():
            child = tree.children.get(event.id)
            if child is not None and child.state == "backoff":
                child.state, child.hold_s = "waiting", 0.0
        case Asked():
            _asked(tree, event, actions)
        case _:
            child = tree.children.get(event.id)
            if child is not None and child.life == event.life and child.state in ALIVE:
                _life_changed(tree, child, event, actions)


def _life_changed(tree: Tree, child: Child, event: LifeChanged | Ended, actions: list[Action]) -> None:
    if isinstance(event, Ended):
        if child.state != "stopping":
            _ended(tree, child, event, actions)
        return
    match event.what:
        case "ready":
            if child.state == "starting":
                child.state = "ready"
                _was_ready(tree, child, actions)
        case "ignored":
            if child.state == "starting" and not child.doomed:
                child.then = "removed" if child.kind == "temporary" else "finished"
                _was_ready(tree, child, actions)
            _gone(tree, child, actions)
        case "gone":
            _gone(tree, child, actions)
        case "overdue":
            if child.state == "stopping":
                child.state = "abandoned"
                _answer(tree, child.id, ("ready", "gone"), "abandoned", actions)
                _end(tree, "abandoned", child.id, actions)


def _was_ready(tree: Tree, child: Child, actions: list[Action]) -> None:
    """Answer the asks for a start that has succeeded. An ask for a later start stays pending."""
    child.was_ready, child.added = True, False
    if not child.doomed:
        _answer(tree, child.id, ("ready",), "", actions)


def _ended(tree: Tree, child: Child, event: Ended, actions: list[Action]) -> None:
    """Handle a life that has ended by itself: restart the children that the strategy names, or give up."""
    starting = child.state == "starting"
    child.state = "stopping"
    actions.append(Stop(child.id, child.life))
    if child.doomed:  # the child is in a set that is being stopped, so its end does not count
        return
    if starting and event.normal:
        _was_ready(tree, child, actions)
    elif not event.normal and not child.added:
        _answer(tree, child.id, ("ready",), "failed", actions)
    if child.added:
        child.then = "removed"
    elif not child.was_ready and tree.phase == "starting":
        child.then = "terminated"
        _end(tree, "not_started", child.id, actions)
    elif child.kind == "temporary":
        child.then = "removed"
    elif child.kind == "transient" and event.normal:
        child.then = "finished"
    else:
        _restart(tree, child, event, actions)


def _restart(tree: Tree, cause: Child, event: Ended, actions: list[Action]) -> None:
    """Restart `cause`, and the children that the strategy restarts with it, if the limit allows another restart."""
    if event.stops_all or tree.backoff.gives_up(tree.policy, event.at_ns):
        cause.then = "terminated"
        _end(tree, "gave_up", cause.id, actions)
        return
    tree.backoff = tree.backoff.next(tree.policy, event.at_ns)
    cause.then = "waiting"
    members = _set_of(tree, cause)
    for child in members:
        if child.state in ("starting", "ready") and not child.doomed:
            child.doomed = True
            child.then = "removed" if child.kind == "temporary" else "waiting"
        elif child.state == "stopping" and child.then == "finished":
            child.then = "waiting"
        elif child.state in ("finished", "backoff"):
            _cancel_backoff(child, actions)
            child.state = "waiting"
    again = [child for child in members if _will_start(child)]
    delay_s = tree.backoff.delay_s
    hold_s = max(
        delay_s, *(child.hold_s for child in members)
    )  # an earlier backoff begins again, and is never shortened
    for child in again:
        child.hold_s = 0.0
    again[0].hold_s = hold_s
    actions.append(Restarting(cause.id, tuple(child.id for child in again), delay_s))


def _set_of(tree: Tree, cause: Child) -> list[Child]:
    """Return the children that the strategy restarts when `cause` has failed, in order."""
    if tree.strategy == "one_for_one":
        return [cause]
    children = list(tree.children.values())
    return children if tree.strategy == "one_for_all" else children[children.index(cause) :]


def _will_start(child: Child) -> bool:
    """Return whether the next step of this child is a start, unless another event intervenes."""
    return child.state in ("waiting", "backoff") or (
        child.then == "waiting" and (child.state == "stopping" or (child.doomed and child.state in ALIVE))
    )


def _gone(tree: Tree, child: Child, actions: list[Action]) -> None:
    """Move a child to the state that was decided for it, after all actors of its life have ended."""
    _answer(tree, child.id, ("gone",), "", actions)
    if child.then != "waiting":
        _answer(tree, child.id, ("ready",), "failed" if child.added else "terminated", actions)
    child.doomed = False
    if child.then == "removed":
        del tree.children[child.id]
    else:
        child.state = child.then


def _end(tree: Tree, outcome: Outcome, culprit: str, actions: list[Action]) -> None:
    """Stop every child, and start none. Only the first reason is kept."""
    if tree.phase in ("stopping", "finished"):
        return
    tree.phase, tree.outcome, tree.culprit = "stopping", outcome, culprit
    actions.append(Stopping(outcome, culprit))
    for child in tree.children.values():
        _answer(tree, child.id, ("ready",), "ended", actions)
        _cancel_backoff(child, actions)
        if child.state in ("waiting", "backoff"):
            child.state = "terminated"
        elif child.state in ALIVE:
            child.doomed = True
            child.then = "removed" if child.then == "removed" else "terminated"


# Asks


def _asked(tree: Tree, event: Asked, actions: list[Action]) -> None:
    child = tree.children.get(event.id)
    problem: Problem = ""
    if tree.phase not in ("starting", "running"):
        problem = "ending"
    elif event.what == "add":
        problem = "present" if child is not None else ""
    elif child is None:
        problem = "unknown"
    if problem:
        actions.append(Answer(event.key, problem))
    elif child is None:
        tree.children[event.id] = Child(id=event.id, kind=event.kind, added=True)
        tree.asks[event.key] = event.id, "ready"
    elif event.what == "restart":
        tree.asks[event.key] = event.id, "ready"
        _restart_one(tree, child, actions)
    else:
        tree.asks[event.key] = event.id, "gone"
        _terminate_one(tree, child, actions)


def _restart_one(tree: Tree, child: Child, actions: list[Action]) -> None:
    """Restart one child in any state. Skip the backoff of the child, and of its set."""
    for other in [child] if tree.strategy == "one_for_one" else tree.children.values():
        other.hold_s = 0.0
        if other.state == "backoff":
            _cancel_backoff(other, actions)
            other.state = "waiting"
    if child.state in ALIVE:
        child.doomed = child.doomed or child.state != "stopping"
        child.then = "waiting"
    else:
        child.state = "waiting"


def _terminate_one(tree: Tree, child: Child, actions: list[Action]) -> None:
    """Stop a child and keep it down.

    If the backoff timer of its set runs for this child, the timer passes to the next child of the set.
    """
    _answer(tree, child.id, ("ready",), "terminated", actions)
    if child.hold_s and tree.strategy != "one_for_one":
        children = list(tree.children.values())
        after = [other for other in children[children.index(child) + 1 :] if _will_start(other)]
        for other in after[:1]:
            other.hold_s = max(other.hold_s, child.hold_s)
    child.hold_s = 0.0
    child.then = "removed" if child.kind == "temporary" else "terminated"
    if child.state in ALIVE:
        child.doomed = child.doomed or child.state != "stopping"
    else:
        _cancel_backoff(child, actions)
        _gone(tree, child, actions)


def _answer(tree: Tree, name: str, waiting_for: tuple[str, ...], problem: Problem, actions: list[Action]) -> None:
    """Answer the asks of a child that wait for one of the moments in `waiting_for`."""
    for key, (asked, moment) in list(tree.asks.items()):
        if asked == name and moment in waiting_for:
            del tree.asks[key]
            actions.append(Answer(key, problem))


def _cancel_backoff(child: Child, actions: list[Action]) -> None:
    if child.state == "backoff":
        actions.append(CancelBackoff(child.id))


# Steps


def _settle(tree: Tree, actions: list[Action]) -> None:
    """Stop and start the children whose turn it is; then check whether the start or the tree has ended."""
    _stop_next(tree, actions)
    if tree.phase == "stopping":
        if not any(child.state in ALIVE for child in tree.children.values()):
            tree.phase = "finished"
            actions.append(Publish())
    elif tree.phase != "new":
        _start_next(tree, actions)
        if tree.phase == "starting" and all(
            child.state in ("ready", "finished", "terminated") and not child.doomed for child in tree.children.values()
        ):
            tree.phase = "running"
            actions.append(Started())


def _keeps_order(tree: Tree) -> bool:
    """Return whether children wait for each other. Those of a running ``one_for_one`` tree do not."""
    return tree.strategy != "one_for_one" or tree.phase != "running"


def _stop_next(tree: Tree, actions: list[Action]) -> None:
    """Stop the last doomed child, or all doomed children if there is no order to keep."""
    in_order = _keeps_order(tree)
    for child in reversed(tree.children.values()):
        if in_order and child.state == "stopping":
            return
        if child.doomed and child.state in ("starting", "ready"):
            child.state = "stopping"
            actions.append(Stop(child.id, child.life))
            if in_order:
                return


def _start_next(tree: Tree, actions: list[Action]) -> None:
    """Start the first waiting child, once the child before it has started and no doomed child is left."""
    in_order = _keeps_order(tree)
    children = tree.children.values()
    if any(child.state == "starting" for child in children):
        return
    if in_order and any(child.doomed or child.state == "stopping" for child in children):
        return
    for child in children:
        if child.state == "backoff" and in_order:
            return
        if child.state == "waiting" and child.hold_s:
            child.state = "backoff"
            actions.append(SetBackoff(child.id, child.hold_s))
            if in_order:
                return
        elif child.state == "waiting":
            child.state, child.life = "starting", child.life + 1
            actions.append(Start(child.id, child.life))
            return
