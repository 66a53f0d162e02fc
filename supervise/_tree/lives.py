"""The lives of the children of a tree, and the reference to a tree.

A life tells the tree that an actor, a gang or another tree has started, has ended, and is gone.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict, cast, overload

import pykka
from pykka import messages as pykka_messages
from pykka._envelope import Envelope

from supervise._runtime import fork_hooks
from supervise._runtime.actor import Inbox, LoopActor, LoopRef, put_now, put_soon
from supervise._runtime.future import Reply
from supervise._runtime.shell import CallbackSubscriber
from supervise._runtime.wakeup import remaining
from supervise._tree.monitor import LOST, NOPROC, watch
from supervise.errors import ChildFailedError, RestartLimitExceeded, SpecError, SuperviseError
from supervise.messages import Close, GangFinished, Start, Subscribe, Wait
from supervise.recording import repr_of
from supervise.trees import ChildSpec, TreeFinished, TreePhase, TreeStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import FrameType

    from supervise import messages
    from supervise._core.tree import Problem, Tree
    from supervise._runtime.loop import Loop
    from supervise._tree.monitor import Reason
    from supervise.events import Sink
    from supervise.restarts import RestartPolicy, Strategy
    from supervise.result import RunProcsResult


# The plain actors that a start function starts, from before their threads run
#
# pykka registers an actor, and then starts the actor's thread. An actor that is observed only when its start function
# has returned may have ended by then, and pykka keeps no exception of it. So `observed` makes a hook of the
# registration. ``tests/contracts/test_tree_hooks.py`` tests the private parts of pykka that this module uses.


_hooks = threading.local()
_register = pykka.ActorRegistry.register


@contextlib.contextmanager
def observed(
    begin: Callable[[pykka.ActorRef[Any]], object], failed: Callable[[BaseException], object]
) -> Iterator[None]:
    """Call `begin` with each plain actor that this block starts on this thread, before the actor's thread runs.

    If the block raises, call `failed` with the error, which is not raised again. Then tell all actors that the block
    has started to stop, because no caller has their refs. One of them may be a tree that stops the calling tree.
    """
    started: list[pykka.ActorRef[Any]] = []
    _hooks.begin, _hooks.started = begin, started
    try:
        yield
    except BaseException as error:
        failed(error)
        for ref in reversed(started):
            with contextlib.suppress(pykka.ActorDeadError):
                ref.stop(block=False)
    finally:
        del _hooks.begin, _hooks.started


def _register_observed(ref: pykka.ActorRef[Any]) -> None:
    _register(ref)
    begin = getattr(_hooks, "begin", None)
    actor = ref._actor_weakref()  # noqa: SLF001
    if begin is None or actor is None:
        return
    _hooks.started.append(ref)
    if isinstance(actor, LoopActor):
        return
    for name in ("_start_actor_loop", "_actor_loop"):
        _end_with(actor, name)
    begin(ref)


pykka.ActorRegistry.register = staticmethod(_register_observed)  # type: ignore[assignment]


def _end_with(actor: pykka.Actor, name: str) -> None:
    """Let an exception that leaves this method end the actor, which has no thread or loses it; pykka does not."""
    call = getattr(actor, name)

    def guarded() -> None:
        vars(actor).pop(name, None)
        try:
            call()
        except BaseException:
            pykka.ActorRegistry.unregister(actor.actor_ref)
            actor.actor_stopped.set()  # monitors see the exception
            actor._actor_loop_teardown()  # noqa: SLF001 - answers what is in the inbox
            raise

    setattr(actor, name, guarded)


# The end of trees that are still alive when the interpreter exits
#
# Threads of plain actors are not daemons. At its exit, the interpreter joins these threads before it calls the
# functions registered with `atexit`. So a function registered there would stop a tree too late: the join would never
# end.


_PATIENCE_S = 20.0
"""Limit on the time that the exit waits for all trees.

A gang that still exists after that is killed by the exit function of gangs.
"""
GRACE_S = 5.0
"""The longest time from SIGTERM to SIGKILL that a gang has at the interpreter's exit."""

alive: dict[str, Any] = {}
"""The actors of the trees that have not ended, by urn, in the order of their start. The exit of Python stops them."""
_exits = threading.Event()


def _stop_all() -> None:
    """Stop all trees, the newest first.

    The children of a tree whose loop does not respond, or whose descriptors were closed, are stopped in its place.
    """
    _exits.set()
    deadline_s = time.monotonic() + _PATIENCE_S
    newest_first = list(alive.values())[::-1]
    for tree in sorted(newest_first, key=lambda each: each.actor_inbox.parent is not None):  # a parent stops its child
        with contextlib.suppress(Exception):
            if tree.loop.wakes_up:
                tree.actor_ref.stop(timeout=remaining(deadline_s))
                continue
        with contextlib.suppress(Exception):
            tree.stop_children()


threading._register_atexit(_stop_all)  # type: ignore[attr-defined]  # noqa: SLF001 - a contract test
fork_hooks.register("trees", alive.clear)


# The inbox of a tree, which keeps how the tree has ended, and replies to `Start` and `Wait` after the end


class TreeInbox(Inbox):
    """The inbox of a tree, which all refs of the tree share. After the end, it holds the error, but not the actor."""

    __slots__ = ("_finished", "parent")

    def __init__(self, loop: Loop) -> None:
        """Make the inbox of a tree that has not ended."""
        super().__init__(loop)
        self._finished: TreeFinished | None = None
        self.parent: TreeInbox | None = None
        """The inbox of the tree of which this tree is a child."""

    def finish(self, finished: TreeFinished) -> None:
        """Reply with this end from now on; release the actor, which tracebacks of the error hold."""
        self._finished = TreeFinished(error=_copy(finished.error))
        self.loop.post(_release, finished.error)  # the frames in these tracebacks may still run now

    def replies_late(self, message: Any) -> bool:
        """Return whether the tree has ended and the end is the reply to `message`.

        A tree that was stopped has no reply to `Start`, as the Supervisor of a gang has none.
        """
        finished = self._finished
        if finished is None:
            return False
        return isinstance(message, Wait) or (isinstance(message, Start) and finished.error is not None)

    def error(self) -> BaseException | None:
        """Return a new exception for the failure of the tree; None if it has not ended, or was stopped."""
        return None if self._finished is None else _copy(self._finished.error)

    def end(self) -> TreeFinished | None:
        """Return how the tree has ended, or raise its error. None if it has not ended."""
        if self._finished is not None and self._finished.error is not None:
            # without a local variable: the traceback holds this frame, which would hold the error
            raise _copy(self._finished.error)
        return self._finished

    def late_reply(self) -> Reply[TreeFinished | None]:
        """Return the end as a reply."""
        reply: Reply[TreeFinished | None] = Reply()
        error = self.error()
        if error is None:
            reply.set(self._finished)
        else:
            reply.fail(error)
        return reply

    def refuse(self, message: Any, reply: pykka.Future[Any] | None, who: object) -> None:
        """Reply with the end of the tree if that is the reply to the message; otherwise with an error."""
        if reply is not None and self.replies_late(message):
            reply.set(self.late_reply())
        else:
            super().refuse(message, reply, who)


def _copy(error: BaseException | None) -> Any:
    """Return a copy of a tree's error with the same cause: a traceback of a kept exception holds all who raised it."""
    copied = copy.copy(error)
    if copied is not None and error is not None:
        copied.__cause__ = error.__cause__
    return copied


def _release(error: BaseException | None) -> None:
    """Clear the local variables of this package's frames to which the tracebacks of an error and its causes lead."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback = error.__traceback__
        while traceback is not None:
            frame: FrameType | None = traceback.tb_frame
            while frame is not None:  # a frame holds its caller's frame, also after the call
                if frame.f_globals.get("__name__", "").startswith("supervise."):
                    with contextlib.suppress(RuntimeError):  # it still runs
                        frame.clear()
                frame = frame.f_back
            traceback = traceback.tb_next
        error = error.__cause__


# `TreeRef`: a reference to a supervision tree that has typed replies and is a context manager


class TreeSettings(TypedDict, total=False):
    """The keyword arguments of `ActorSupervisor`."""

    name: Required[str]
    children: Required[Iterable[ChildSpec]]
    strategy: Strategy
    restart_policy: RestartPolicy | None
    event_sink: Sink | None


class TreeRef(LoopRef):
    """The reference to a tree that `ActorSupervisor.start` returns: a `pykka.ActorRef` whose replies have types.

    As a context manager, the reference stops the tree at the end of the block. The block ends when no child is left.
    """

    @overload
    def ask(
        self, message: messages.Status, *, block: Literal[False], timeout: float | None = None
    ) -> pykka.Future[TreeStatus]: ...
    @overload
    def ask(
        self, message: messages.Status, *, block: Literal[True] = True, timeout: float | None = None
    ) -> TreeStatus: ...
    @overload
    def ask(self, message: Any, *, block: bool = True, timeout: float | None = None) -> Any: ...
    def ask(self, message: Any, *, block: bool = True, timeout: float | None = None) -> Any:
        """Send a message to the tree; return the reply, or a future of it if `block` is False.

        `Wait`, and `Start` of a tree that has failed, get their reply also after the end of the tree.

        Args:
            message: The message.
            block: Whether to wait for the reply.
            timeout: Seconds to wait; None waits without limit.

        Raises:
            pykka.Timeout: There is no reply within `timeout`.
            pykka.ActorDeadError: The tree has ended.
            Exception: The reply is an error, such as the error of the tree.
        """
        inbox = self.actor_inbox
        alive = self.is_alive()  # first: the inbox of a tree that ends after this line has the reply
        if isinstance(inbox, TreeInbox) and inbox.replies_late(message):
            return inbox.end() if block else inbox.late_reply()
        if not alive:
            return super().ask(message, block=block, timeout=timeout)
        reply: Reply[Any] = Reply()
        inbox.put(Envelope(message, reply_to=reply))
        return reply.get(timeout=timeout) if block else reply


# Errors for the end of a tree, and for an ask that a tree does not fulfill


def ask_error(name: str, phase: TreePhase, child_id: str, problem: Problem, reason: Reason) -> BaseException:
    """Return the error for an ask that has failed.

    Args:
        name: Name of the tree.
        phase: Phase of the tree.
        child_id: Id of the child that the ask names.
        problem: The problem that the core reports.
        reason: Reason of the child's last end.
    """
    if problem == "failed":
        return as_error(child_id, reason)
    what = {
        "unknown": f"there is no child {child_id!r}",
        "present": f"there is a child {child_id!r} already",
        "ending": f"the tree is {phase}",
        "ended": f"the tree was stopped before child {child_id!r} had started",
        "terminated": f"child {child_id!r} was stopped before it had started",
        "abandoned": f"child {child_id!r} has not stopped in time; its thread was abandoned",
    }[problem]
    refused = problem in ("unknown", "present", "ending")
    return (SpecError if refused else SuperviseError)(f"{name}: {what}")


def end_error(name: str, tree: Tree, reasons: Mapping[str, Reason]) -> BaseException | None:
    """Return the error with which a tree ends; None if the tree was stopped and no child is left.

    Args:
        name: Name of the tree.
        tree: State of the tree.
        reasons: Child id to the reason of the child's last end.
    """
    culprit, policy = tree.culprit, tree.policy
    abandoned = [child.id for child in tree.children.values() if child.state == "abandoned"]
    if tree.outcome == "stopped" and not abandoned:
        return None
    error: SuperviseError
    if tree.outcome == "not_started":
        error = SuperviseError(f"{name}: child {culprit!r} could not be started")
    elif tree.outcome == "gave_up":
        window = "" if policy.within_s is None else f" within {policy.within_s:g} s"
        restarts = f"{policy.max_restarts} restart{'' if policy.max_restarts == 1 else 's'}"
        reason = reasons.get(culprit)
        msg = f"{name}: child {culprit!r} has {'ended' if reason is None else 'failed'}, after {restarts}{window}"
        if stops_all(reason):
            msg = f"{name}: child {culprit!r} has raised {type(reason).__name__}, at which pykka stops all actors"
        error = RestartLimitExceeded(msg, child_id=culprit)
    else:
        culprit = culprit or abandoned[0]
        msg = f"{name}: child {culprit!r} has not stopped in time; its thread was abandoned"
        error = RestartLimitExceeded(msg, child_id=culprit)
        if reasons.get(culprit) is None:  # it has not ended
            return error
    error.__cause__ = as_error(culprit, reasons.get(culprit))
    return error


def as_error(child_id: str, reason: Reason) -> BaseException:
    """Return the end of a child as an error, also if no exception is known."""
    if isinstance(reason, BaseException):
        return reason
    what = {
        NOPROC: "was dead when its start function returned; if it has failed, the log of pykka has its exception",
        LOST: "was lost: a BaseException left its on_start",
        None: "has ended without a failure, and its restart kind is permanent",
    }[reason]
    return SuperviseError(f"child {child_id!r} {what}")


class Life:
    """A plain actor from its start to the end of its cleanup.

    The life makes three reports, from any thread: ``"ready"``; ``"ended"``, with the reason and whether the end is
    normal; and ``"gone"``.
    """

    start_limit_s: float | None = 60.0
    """Time limit on `on_start`. None: no limit, because a gang or a tree has limits of its own."""
    usual_stop_s: float | None = 5.0
    """Time limit on the stop if `shutdown_s` of the spec is None. None: no limit."""

    def __init__(self, ref: pykka.ActorRef[Any], report: Callable[..., object], child_id: str) -> None:
        """Prepare to watch `ref` from `begin` on. ``report(life, what, *details)`` must neither block nor raise."""
        self.ref = ref
        self._child_id = child_id
        self.ended = False
        """Whether the tree has taken note of the end."""
        self._report = partial(report, self)
        self._awaited: list[Reply[Any]] = []
        """Pending replies. The list keeps a reply that waits for another reply from garbage collection."""

    def begin(self) -> None:
        """Watch for the end, then for the start."""
        watch(self.ref, self._down)
        self._expect_start()

    def _expect_start(self) -> None:
        """Request an attribute by message. The actor replies after its `on_start` has run.

        If the actor's thread does not run yet, this is its first message, before those that end the actor.
        """
        handshake: Reply[Any] = Reply()
        message = pykka_messages.ProxyGetAttr(attr_path=("actor_urn",))
        put_soon(self.ref.actor_inbox, Envelope(message, reply_to=handshake))
        self._ready_with(handshake)

    def _ready_with(self, reply: Reply[Any]) -> None:
        self._awaited.append(reply)

        def answered() -> None:
            error = reply.error()  # not `get`: the traceback of a raised error would hold this life and its tree
            if error is None:
                self._report("ready")
            else:
                self._start_failed(error)

        reply.add_done_callback(answered)

    def _start_failed(self, error: BaseException) -> None:
        """Do nothing about an error reply: the actor ends, and `watch` reports the reason."""

    def ask_to_stop(self, shutdown_s: float | None) -> float | None:
        """Ask the actor to stop; return the deadline in seconds: `shutdown_s` or the usual one. Idempotent.

        None: there is no deadline.
        """
        put_soon(self.ref.actor_inbox, Envelope(pykka_messages._ActorStop()))  # noqa: SLF001
        return self.usual_stop_s if shutdown_s is None else shutdown_s

    def _down(self, reason: Reason, normal: bool) -> None:
        """Report the end of the actor. Called on the actor's thread, before its `on_stop` or `on_failure` runs.

        The method puts a stop request into the actor's inbox. The actor answers the request after these hooks. If a
        BaseException ends the actor, pykka stops all actors, including the tree, on this thread. In this case, the tree
        must not wait for an answer from this thread.
        """
        if isinstance(reason, BaseException) and _raised_by_message(reason):
            self._report("ready")
        self._report("ended", reason, normal)
        if reason is None or isinstance(reason, Exception):
            cleanup: Reply[Any] = Reply()
            cleanup.add_done_callback(partial(self._report, "gone"))
            last = Envelope(pykka_messages._ActorStop(), reply_to=cleanup)  # noqa: SLF001
            actor: Any = self.ref._actor_weakref()  # noqa: SLF001
            while not put_now(self.ref.actor_inbox, last):  # no other thread takes messages from this bounded inbox
                actor._actor_loop_teardown()  # noqa: SLF001 - refuses the messages, as pykka does after the hooks
        else:
            self._report("gone")


def stops_all(reason: Reason) -> bool:
    """Return whether a child ended by an exception at which pykka stops all actors, so that a restart is of no use."""
    return isinstance(reason, BaseException) and not isinstance(reason, Exception) and _raised_by_message(reason)


def _raised_by_message(error: BaseException) -> bool:
    """Return whether pykka has caught an exception of an actor that had started, not one of `on_start`."""
    traceback = error.__traceback__
    return traceback is not None and traceback.tb_frame.f_code is pykka.Actor._actor_loop_running.__code__  # noqa: SLF001


class TreeLife(Life):
    """Life of another tree.

    It is ready when the children of that tree are started. Its stop has no deadline by default.
    """

    start_limit_s = None
    usual_stop_s = None

    def _expect_start(self) -> None:
        self._ready_with(cast("Reply[Any]", self.ref.ask(Start(), block=False)))

    def _down(self, reason: Reason, normal: bool) -> None:
        """Report the error of a tree that had failed before it was watched."""
        inbox = self.ref.actor_inbox
        if reason == NOPROC and isinstance(inbox, TreeInbox):
            reason = inbox.error() or reason
        super()._down(reason, normal)


class GangLife(Life):
    """Life of a gang.

    It is ready when `Start` is answered, has ended with `GangFinished`, and is gone with the gang's actor.
    """

    start_limit_s = None

    def _expect_start(self) -> None:
        self.ref.tell(Subscribe(ref=cast("Any", CallbackSubscriber(f"{self.ref.actor_urn}-in-a-tree", self.told))))
        self._ready_with(cast("Reply[Any]", self.ref.ask(Start(), block=False)))

    def _start_failed(self, error: BaseException) -> None:
        """Handle a failed start. `GangFinished` tells the end, unless the gang has refused the message."""
        if isinstance(error, SpecError):
            self._report("ended", error, False)

    def told(self, message: object) -> None:
        """Handle a lifecycle message of the gang. Called on the gang's thread."""
        if isinstance(message, GangFinished):
            reason = message.error
            if message.result is not None:
                reason = _failure(self._child_id, message.result)
            self._report("ended", reason, reason is None)

    def ask_to_stop(self, shutdown_s: float | None) -> float | None:
        """Close the gang, by SIGKILL at the latest, and stop its actor; return None, because a close has an end."""
        if _exits.is_set():
            shutdown_s = GRACE_S if shutdown_s is None else min(shutdown_s, GRACE_S)
        with contextlib.suppress(pykka.ActorDeadError):
            if shutdown_s is not None:
                self.ref.tell(Close(timeout=shutdown_s))
            self.ref.stop(block=False)
        return None


def _failure(child_id: str, result: RunProcsResult) -> BaseException | None:
    """Return the failure of a gang as an error; None if the gang succeeded or was closed."""
    if result.outcome in ("succeeded", "stopped"):
        return None
    if result.failures and result.outcome != "timed_out":  # those of a gang that has timed out were stopped
        return ChildFailedError(child_id, result.failures)
    return SuperviseError(f"{child_id}: the gang has {result.outcome.replace('_', ' ')}")


def life_of(ref: object, report: Callable[..., object], child_id: str, tree: TreeInbox) -> Life:
    """Return the `Life` for an actor.

    A gang is recognized by its method `launch`, because trees do not import the class of gangs.

    Raises:
        SpecError: `ref` is not the ref of an actor; or it is that of `tree`, or of a tree above it, which would wait
            for its own start.
    """
    if not isinstance(ref, pykka.ActorRef):
        raise SpecError(f"a start function returned {repr_of(ref)}; return the ref of the actor, or None")
    if isinstance(ref, TreeRef):
        _adopt(ref, tree)
        return TreeLife(ref, report, child_id)
    gang = issubclass(ref.actor_class, LoopActor) and hasattr(ref.actor_class, "launch")
    return (GangLife if gang else Life)(ref, report, child_id)


def _adopt(ref: TreeRef, tree: TreeInbox) -> None:
    """Make a tree the child of another one.

    The check follows the change: of two trees that adopt each other at the same time, one is refused.

    Raises:
        SpecError: The tree would be below itself.
    """
    inbox = ref.actor_inbox
    if not isinstance(inbox, TreeInbox):
        return
    before, inbox.parent = inbox.parent, tree
    above: TreeInbox | None = tree
    while above is not None:
        if above is inbox:
            inbox.parent = before
            raise SpecError(f"a start function returned {repr_of(ref)}, the tree of this child or one above it")
        above = above.parent
