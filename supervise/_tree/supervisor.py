"""The actor that supervises other actors."""

from __future__ import annotations

import sys
import time
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Unpack

import pykka

from supervise import messages as say, trees
from supervise._core import tree as ts
from supervise._core.tree import Tree, decide
from supervise._printable import ending, one_line
from supervise._runtime.future import Reply
from supervise._runtime.loop import NO_TIMER, Timer
from supervise._runtime.shell import Subscribers, SupervisorShell, with_jitter
from supervise._settings import GANG
from supervise._tree.lives import (
    Life,
    TreeInbox,
    TreeRef,
    TreeSettings,
    alive,
    ask_error,
    end_error,
    life_of,
    observed,
    stops_all,
)
from supervise.errors import ChildFailedError, RestartLimitExceeded, SpecError, SuperviseError, SupervisorCrashed
from supervise.events import Event, EventLog
from supervise.recording import repr_of, text_of, traceback_of
from supervise.restarts import RestartPolicy, Strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from supervise._tree.monitor import Reason
    from supervise.events import Sink


# Validation of the arguments of a tree, before any child is started


def checked_specs(
    name: object, children: Iterable[trees.ChildSpec], strategy: object, restart_policy: object, event_sink: object
) -> list[trees.ChildSpec]:
    """Return the specs of the children.

    Raises:
        SpecError: A setting is not valid; the text names it.
    """
    if not isinstance(name, str) or not name:
        raise SpecError(f"name is {name!r}; give the tree a name, a string that is not empty")
    for what, value in (("strategy", strategy), ("event_sink", event_sink)):
        GANG[what].checked(value)
    if restart_policy is not None and not isinstance(restart_policy, RestartPolicy):
        raise SpecError(f"restart_policy is {restart_policy!r}; give a RestartPolicy, or None")
    for what in ("uncounted_exit_codes", "never_restart_exit_codes"):
        if getattr(restart_policy, what, None):
            raise SpecError(f"restart_policy has {what}, which are for gangs only; give them to the gang's own policy")
    try:
        specs = list(children)
    except TypeError:
        raise SpecError(f"children is {children!r}; give a list of ChildSpec") from None
    seen = set[str]()
    for spec in specs:
        if not isinstance(spec, trees.ChildSpec):
            raise SpecError(f"children holds {spec!r}; give ChildSpec only")
        if spec.id in seen:
            raise SpecError(f"two children have the id {spec.id!r}; give each its own")
        seen.add(spec.id)
    return specs


# Record of one child in the actor of a tree


class Row:
    """One child: its spec, its life and its timers. The core knows its state."""

    def __init__(self, spec: trees.ChildSpec) -> None:
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
        self.timers.pop(name, NO_TIMER).cancel()


# The events that describe the facts of a tree


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


def describe(fact: Fact, tree: Tree, attempt: int, duration_s: float) -> list[Event]:  # noqa: C901, PLR0911 - one case a fact
    """Return the events for `fact`, in order.

    Args:
        fact: What has happened.
        tree: The state of the tree.
        attempt: For a fact of a child: the number of its present life, from 0.
        duration_s: Seconds since the start function of that life was called. For a fact of the tree: seconds since the
            start of the tree.
    """
    fields: dict[str, Any]
    life = {"child": getattr(fact, "id", ""), "attempt": attempt}
    match fact:
        case ts.StartAsked():
            fields = {"strategy": tree.strategy, "children": list(tree.children)}
            return [Event("supervise.tree.starting", "info", fields)]
        case ts.Started():
            return [Event("supervise.tree.started", "info", {"duration_s": duration_s})]
        case ts.Stopping():
            limit = {"child": fact.id, "max_restarts": tree.policy.max_restarts, "within_s": tree.policy.within_s}
            gave_up = [Event("supervise.tree.gave_up", "error", limit)] if fact.outcome == "gave_up" else []
            fields = {"reason": fact.outcome, "child": fact.id or None}
            return [
                *gave_up,
                Event("supervise.tree.stopping", "info" if fact.outcome == "stopped" else "error", fields),
            ]
        case trees.TreeFinished():
            outcome = "stopped" if fact.error is None else "failed"
            fields = {"outcome": outcome, "duration_s": duration_s, **_exception(fact.error)}
            return [Event("supervise.tree.finished", "info" if fact.error is None else "error", fields)]
        case trees.ChildRestarting():
            fields = {
                "child": fact.id,
                "attempt": attempt + 1,
                "backoff_s": fact.delay_s,
                "children": list(fact.ids),
                "restarts": fact.restarts,
                "max_restarts": tree.policy.max_restarts,
            }
            return [Event("supervise.child.restarting", "warning", fields)]
        case trees.ChildStarted():
            fields = {**life, "actor": str(fact.ref), "start_duration_s": duration_s}
            return [Event("supervise.child.started", "info", fields)]
        case trees.ChildDown():
            fields = {**life, "normal": fact.normal, "uptime_s": duration_s, **_reason(fact.reason)}
            return [Event("supervise.child.down", "info" if fact.normal else "error", fields)]
        case ts.Stop():
            return [Event("supervise.child.stopping", "info", life)]
        case ts.LifeChanged(what="ignored"):
            return [Event("supervise.child.ignored", "info", life)]
        case ts.LifeChanged():
            return [Event("supervise.child.abandoned", "error", life)]


def _reason(reason: Reason) -> dict[str, Any]:
    """Return the fields for the end of a child: the reason as a word, and the exception if there is one."""
    error = reason if isinstance(reason, BaseException) else None
    stacktrace = None if error is None or error.__traceback__ is None else traceback_of(error)
    word = "exception" if error is not None else reason
    return {"reason": word, **_exception(error), "exception_stacktrace": stacktrace}


def _exception(error: BaseException | None) -> dict[str, Any]:
    kind, text = (None, None) if error is None else (type(error).__name__, text_of(error))
    return {"exception_type": kind, "exception_message": text}


_OF_TREES = (SuperviseError, RestartLimitExceeded, SupervisorCrashed)
"""The errors of trees, whose causes follow in the line of a failure. A subclass has a text of its own."""


def _reasons(error: BaseException) -> Iterator[str]:
    """Yield the text of a tree's error, and then its causes: below errors of trees, the first other one."""
    yield text_of(error)
    seen = {id(error)}  # a child may raise an error from itself
    while type(error) in _OF_TREES and error.__cause__ is not None and id(error.__cause__) not in seen:
        error = error.__cause__
        seen.add(id(error))
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


# The actor


_ACCEPTED = (
    "Start(), Wait(), Status(), Subscribe(...), Unsubscribe(...), StartChild(...), TerminateChild(...) or"
    " RestartChild(...)"
)


class ActorSupervisor(SupervisorShell[trees.TreeFinished]):
    """A supervision tree. It starts its children in order, restarts those that fail, and stops them in reverse order.

    A child is any pykka actor, a gang (`Supervisor`), or another tree. A tree accepts `Start`, `Wait`, `Status`,
    `Subscribe`, `Unsubscribe`, `StartChild`, `TerminateChild` and `RestartChild`.

    A tree starts its children without a message. The reply to `Start` is ``{id: ref}``, and comes when all children
    have started. The reply to `Wait` comes when no actor and no process of the tree is left. It is `TreeFinished` after
    a stop; otherwise it is the error, such as `RestartLimitExceeded`. A stop of the actor stops the children; the reply
    to the stop comes when no child is left.
    """

    _ref_class = TreeRef

    def __init__(
        self,
        *,
        name: str,
        children: Iterable[trees.ChildSpec],
        strategy: Strategy = "one_for_all",
        restart_policy: RestartPolicy | None = None,
        event_sink: Sink | None = None,
    ) -> None:
        """Check and prepare a tree.

        Args:
            name: Name of the tree, in errors and events.
            children: The children, in the order of their start.
            strategy: Which children the tree restarts after a failure: all (``one_for_all``), the failed child
                (``one_for_one``), or the failed child and all that started after it (``rest_for_one``).
            restart_policy: How often and how soon the tree restarts children; None is ``RestartPolicy()``. At the first
                failure beyond the limit, the tree gives up: it stops all children and fails.
            event_sink: Function called on the tree's thread with every event as a dictionary. It must not block.

        Raises:
            SpecError: A setting is not valid; the text names it.
        """
        specs = checked_specs(name, children, strategy, restart_policy, event_sink)
        super().__init__(name)
        self._name = name
        self._policy = restart_policy or RestartPolicy()
        self._tree = Tree(strategy, self._policy)
        self._log, self._begun_ns = EventLog({"tree": name}, sink=event_sink), time.monotonic_ns()
        self._rows: dict[str, Row] = {}
        for spec in specs:
            self._tree.children[spec.id] = ts.Child(spec.id, spec.restart or self._policy.restart)
            self._rows[spec.id] = Row(spec)
        self._asks: dict[int, ts.Asked] = {}
        self._subscribers = Subscribers(keep=False)
        self._restarts_total = self._asked = 0

    if TYPE_CHECKING:

        @classmethod
        def start(cls, **settings: Unpack[TreeSettings]) -> TreeRef: ...

    def _create_actor_inbox(self) -> TreeInbox:  # type: ignore[override]  # pykka calls it on the instance
        self._tree_inbox = inbox = TreeInbox(self.loop)
        return inbox

    def _start_actor_loop(self) -> None:
        if "supervise._gang.later_modules" in sys.modules:  # a child may be a gang, which the tree's thread starts
            import_module("supervise._gang.later_modules").load_all()
        super()._start_actor_loop()

    def _acquire(self) -> None:
        alive[self.actor_urn] = self

    def _release(self) -> None:
        alive.pop(self.actor_urn, None)

    def on_start(self) -> None:
        """Start the first child."""
        self._emit(ts.StartAsked())
        self._step(ts.StartAsked())

    # Messages

    def on_receive(self, message: Any) -> Any:
        """Handle a message; return the reply."""
        match message:
            case say.Start():
                return self._start_reply()
            case say.Wait():
                return self._replies.wait(message.timeout)
            case say.Status():
                return self._status()
            case say.Subscribe():
                ready = [
                    trees.ChildStarted(id=name, ref=row.life.ref)
                    for name, row in self._rows.items()
                    if row.life is not None and self._tree.children[name].state == "ready"
                ]
                return self._subscribers.admit(message.ref, ready)
            case say.Unsubscribe():
                return self._subscribers.dismiss(message.ref)
            case trees.StartChild() | trees.TerminateChild() | trees.RestartChild():
                return self._ask(message)
            case _:
                raise SpecError(f"an ActorSupervisor does not accept {repr_of(message)}; send it {_ACCEPTED}")

    def _start_reply(self) -> Reply[dict[str, pykka.ActorRef[Any] | None]]:
        if self._tree.phase not in ("running", "stopping") or self._tree.outcome not in (None, "stopped"):
            return self._replies.begin("start")  # a tree that stops after a failure replies with its error
        reply: Reply[dict[str, pykka.ActorRef[Any] | None]] = Reply()
        if self._tree.phase == "running":
            reply.set({name: row.ref for name, row in self._rows.items()})
        else:
            reply.fail(SpecError(f"{self._name}: the tree is stopping"))
        return reply

    def _status(self) -> trees.TreeStatus:
        children = {
            name: trees.ChildStatus(
                state=child.state, ref=self._rows[name].ref, restarts=max(0, self._rows[name].number - 1)
            )
            for name, child in self._tree.children.items()
        }
        return trees.TreeStatus(
            phase=self._tree.phase,
            children=children,
            restarts_total=self._restarts_total,
            waiters=self._replies.waiting,
        )

    def _ask(self, message: trees.StartChild | trees.TerminateChild | trees.RestartChild) -> Reply[Any]:
        self._asked = key = self._asked + 1
        if isinstance(message, trees.StartChild):
            spec = message.spec
            if not isinstance(spec, trees.ChildSpec):
                raise SpecError(f"spec is {repr_of(spec)}; give a ChildSpec")
            self._rows.setdefault(spec.id, Row(spec))
            event = ts.Asked(key, spec.id, "add", spec.restart or self._policy.restart)
        elif not isinstance(message.id, str):
            raise SpecError(f"id is {repr_of(message.id)}; give the id of a child, a string")
        else:
            event = ts.Asked(key, message.id, "terminate" if isinstance(message, trees.TerminateChild) else "restart")
        self._asks[key] = event
        reply = self._replies.begin_request(key)
        self._step(event)
        return reply

    def _stop_supervised(self) -> None:
        self._step(ts.StopAsked())

    # Events of children, and the decisions of the core

    def _told(self, life: Life, what: str, *details: Any) -> None:
        """Post a report of a life to the loop. Called on any thread."""
        self.loop.post(self._guarded, self._life_told, life, what, *details)

    def _life_told(self, life: Life, what: str, *details: Any) -> None:
        row = next((each for each in self._rows.values() if each.life is life), None)
        if row is None:
            return
        name, number = row.spec.id, row.number
        if what == "ready":
            if self._tree.children[name].state == "starting":
                row.cancel("start")
                self._tell(trees.ChildStarted(id=name, ref=life.ref), row)
            self._step(ts.LifeChanged(name, number, "ready"))
        elif what == "ended":
            self._ended(row, *details)
        else:
            row.cancel("stop")
            row.life = None
            pykka.ActorRegistry.unregister(life.ref)  # its thread may have ended without doing so
            life.ref.actor_stopped.set()
            self._step(ts.LifeChanged(name, number, "gone"))

    def _ended(self, row: Row, reason: Reason, normal: bool) -> None:
        """Handle the end of a life, a failed start, or a start that exceeded its time."""
        if row.life is not None:
            if row.life.ended:
                return
            row.life.ended = True
        row.cancel("start")
        row.reason = reason
        self._tell(trees.ChildDown(id=row.spec.id, reason=reason, normal=normal), row)
        self._step(ts.Ended(row.spec.id, row.number, normal, time.monotonic_ns(), stops_all(reason)))

    def _not_started(self, row: Row, number: int, error: BaseException) -> None:
        """Handle an exception of the start function. There is no actor."""
        if row.number == number:
            self._ended(row, error, normal=False)
            self._step(ts.LifeChanged(row.spec.id, number, "gone"))

    def _overdue(self, row: Row, life: Life, what: str) -> None:
        """Handle a child that has not started or not stopped in time."""
        error = TimeoutError(f"{self._name}: child {row.spec.id!r} ({life.ref}) has not {what} in time")
        if row.life is not life:
            return
        if what == "started":
            self._ended(row, error, normal=False)
            return
        if not life.ended:
            self._tell(trees.ChildDown(id=row.spec.id, reason=error, normal=False), row)
            row.reason = error
        row.life = None
        pykka.ActorRegistry.unregister(life.ref)  # `ActorRegistry.stop_all` would wait for its thread
        self._lifeless(row, row.number, "overdue")

    def _step(self, event: ts.Event) -> None:
        self._guarded(self._advance, event)

    def _advance(self, event: ts.Event) -> None:
        """Advance the core, and carry out its actions."""
        for action in decide(self._tree, event):
            self._do(action)
        for name in self._rows.keys() - self._tree.children.keys():
            del self._rows[name]

    def _do(self, action: ts.Action) -> None:
        match action:
            case ts.Start():
                self._start_child(self._rows[action.id], action.life)
            case ts.Stop():
                self._stop_child(self._rows[action.id], action)
            case ts.SetBackoff():
                expired = ts.BackoffExpired(action.id)
                self._set_timer(action.id, "backoff", with_jitter(action.delay_s), self._step, expired)
            case ts.CancelBackoff():
                self._rows[action.id].cancel("backoff")
            case ts.Restarting():
                self._restarting(action)
            case ts.Answer():
                self._answer(action)
            case ts.Started():
                self._emit(action)
                self._replies.started({name: row.ref for name, row in self._rows.items()})
            case ts.Stopping():
                self._emit(action)
            case ts.Publish():
                reasons = {name: row.reason for name, row in self._rows.items()}
                self._leave(end_error(self._name, self._tree, reasons))

    def _set_timer(self, name: str, what: str, delay_s: float, act: Callable[..., object], *args: Any) -> None:
        self._rows[name].timers[what] = self.loop.call_later(delay_s, partial(self._guarded, act, *args))

    def _start_child(self, row: Row, number: int) -> None:
        row.number, row.begun_ns = number, time.monotonic_ns()
        lives: dict[str, Life] = {}

        def begin(started: pykka.ActorRef[Any]) -> Life:
            lives[started.actor_urn] = life = life_of(started, self._told, row.spec.id, self._tree_inbox)
            life.begin()
            return life

        def failed(error: BaseException) -> None:
            row.life = None
            self.loop.post(self._guarded, self._not_started, row, number, error)

        with observed(begin, failed):
            ref = row.spec.start()
            if ref is None:
                self.loop.post(self._guarded, self._lifeless, row, number, "ignored")
                return
            life = row.life = lives.get(getattr(ref, "actor_urn", "")) or begin(ref)
            if life.start_limit_s is not None:
                self._set_timer(row.spec.id, "start", life.start_limit_s, self._overdue, row, life, "started")

    def _lifeless(self, row: Row, number: int, what: Literal["ignored", "overdue"]) -> None:
        """Handle a start function that has returned None, or a child that was abandoned."""
        changed = ts.LifeChanged(row.spec.id, number, what)
        self._emit(changed, row)
        self._step(changed)

    def _stop_child(self, row: Row, action: ts.Stop) -> None:
        life = row.life
        if life is None:
            return
        if not life.ended:
            self._emit(action, row)
        row.cancel("start")
        limit_s = life.ask_to_stop(row.spec.shutdown_s)
        if limit_s is not None:
            self._set_timer(row.spec.id, "stop", limit_s, self._overdue, row, life, "stopped")

    def _tell(self, message: trees.ChildStarted | trees.ChildDown | trees.ChildRestarting, row: Row) -> None:
        """Emit the event for a message about a child, and send the message to all subscribers."""
        self._emit(message, row)
        self._subscribers.tell(message)

    def _restarting(self, action: ts.Restarting) -> None:
        self._restarts_total += 1
        counted = len(self._tree.backoff.counted_ns)
        message = trees.ChildRestarting(id=action.id, ids=action.ids, restarts=counted, delay_s=action.delay_s)
        self._tell(message, self._rows[action.id])

    def _answer(self, action: ts.Answer) -> None:
        event = self._asks.pop(action.key)
        row = self._rows.get(event.id)
        if not action.problem:
            ref = None if row is None or event.what == "terminate" else row.ref
            self._replies.answer_request(action.key, ref)
            return
        reason = None if row is None else row.reason
        error = ask_error(self._name, self._tree.phase, event.id, action.problem, reason)
        self._replies.fail_requests((action.key,), error)

    def _emit(self, fact: Fact, row: Row | None = None) -> None:
        """Emit the events for `fact`, unless there is no listener. `row` is the child that `fact` is about."""
        if not self._log.listens("error"):
            return
        begun_ns, attempt = (self._begun_ns, 0) if row is None else (row.begun_ns, row.number - 1)
        for event in describe(fact, self._tree, attempt, (time.monotonic_ns() - begun_ns) / 1e9):
            self._log.emit(event.name, event.level, **event.fields)

    # The end

    def stop_children(self) -> None:
        """Tell each child to stop, from the last to the first, without waiting. Callable from any thread."""
        for row in reversed(list(self._rows.values())):
            if (life := row.life) is not None:
                life.ask_to_stop(row.spec.shutdown_s)

    def on_crash(self, error: BaseException) -> None:
        """Give up after an exception in a handler: tell each child to stop, and fail all pending replies."""
        if self.actor_stopped.is_set():
            return
        self.stop_children()
        why = f"a handler of the tree raised {repr_of(error)}; its children were stopped"
        crash = SupervisorCrashed(f"{self._name}: {why}")
        crash.__cause__ = error
        self._leave(crash)

    def _leave(self, error: BaseException | None) -> None:
        """Leave the registry, after a failure by an exception, which monitors then see; set all pending replies."""
        finished = trees.TreeFinished(error=error)
        self._emit(finished)
        awaited = self._replies.awaited or bool(self._subscribers)
        if error is not None and (isinstance(error, RestartLimitExceeded) or not awaited):
            self._log.show_at_last(one_line(f"supervise: tree failed: {': '.join(_reasons(error))}"))
        self._tree_inbox.finish(finished)
        for row in self._rows.values():
            for name in list(row.timers):
                row.cancel(name)
        if error is None:
            self.leave()
        else:
            self._release()
            try:
                raise error  # noqa: TRY301 - `sys.exc_info` is what a monitor sees
            except BaseException as raised:
                self._fail(raised)
        self._replies.result, self._replies.error = finished, error
        self._replies.publish(SuperviseError(f"{self._name}: the tree was stopped before all children had started"))
        self._subscribers.tell(finished)
        self._replies.end_loop()
