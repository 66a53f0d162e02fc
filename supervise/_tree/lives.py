"""One life of a child.

A life tells the tree that an actor, a gang or another tree has started, has ended, and is gone.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pykka
from pykka import messages as pykka_messages
from pykka._envelope import Envelope

from supervise._runtime.actor import LoopActor
from supervise._runtime.future import Reply
from supervise._tree import interpreter_exit
from supervise._tree.inbox import TreeInbox
from supervise._tree.monitor import NOPROC, watch
from supervise._tree.ref import TreeRef
from supervise.errors import ChildFailedError, SpecError, SuperviseError
from supervise.messages import Close, GangFinished, Start, Subscribe
from supervise.recording import repr_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise._tree.monitor import Reason
    from supervise.result import RunProcsResult


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
        """Request an attribute by message. The actor replies after its `on_start` has run."""
        handshake: Reply[Any] = Reply()
        message = pykka_messages.ProxyGetAttr(attr_path=("actor_urn",))
        self.ref.actor_inbox.put(Envelope(message, reply_to=handshake))
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

    def ask_to_stop(self, shutdown_s: float | None) -> float | None:  # noqa: ARG002 - `GangLife` uses it
        """Ask the actor to stop; return the default deadline in seconds. Idempotent.

        None: there is no deadline.
        """
        self.ref.stop(block=False)
        return self.usual_stop_s

    def _down(self, reason: Reason, normal: bool) -> None:
        """Report the end of the actor. Called on the actor's thread, before its `on_stop` or `on_failure` runs.

        The method puts a stop request into the actor's inbox. The actor answers the request after these hooks. If a
        BaseException ends the actor, pykka stops all actors, including the tree, on this thread. In this case, the tree
        must not wait for an answer from this thread.
        """
        self._report("ended", reason, normal)
        if reason is None or isinstance(reason, Exception):
            cleanup: Reply[Any] = Reply()
            cleanup.add_done_callback(partial(self._report, "gone"))
            self.ref.actor_inbox.put(Envelope(pykka_messages._ActorStop(), reply_to=cleanup))  # noqa: SLF001
        else:
            self._report("gone")


class TreeLife(Life):
    """Life of another tree.

    It is ready when the children of that tree are started. Its stop has no deadline by default.
    """

    start_limit_s = None
    usual_stop_s = None

    def _expect_start(self) -> None:
        interpreter_exit.forget(self.ref)
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
    usual_stop_s = None

    def _expect_start(self) -> None:
        self.ref.tell(Subscribe(ref=cast("Any", _Listener(self))))
        self._ready_with(cast("Reply[Any]", self.ref.ask(Start(), block=False)))

    def _start_failed(self, error: BaseException) -> None:
        """Handle a failed start. If the gang refused the message, its actor continues and sends nothing more."""
        self._report("ended", error, False)

    def told(self, message: object) -> None:
        """Handle a lifecycle message of the gang. Called on the gang's thread."""
        if isinstance(message, GangFinished):
            reason = message.error
            if message.result is not None:
                reason = _failure(self._child_id, message.result)
            self._report("ended", reason, reason is None)

    def ask_to_stop(self, shutdown_s: float | None) -> float | None:
        """Close the gang, by SIGKILL at the latest, and stop its actor."""
        with contextlib.suppress(pykka.ActorDeadError):
            timeout_s = interpreter_exit.gang_timeout_s(shutdown_s)
            if timeout_s is not None:
                self.ref.tell(Close(timeout=timeout_s))
            self.ref.stop(block=False)
        return self.usual_stop_s


def _failure(child_id: str, result: RunProcsResult) -> BaseException | None:
    """Return the failure of a gang as an error; None if the gang succeeded or was closed."""
    if result.outcome in ("succeeded", "stopped"):
        return None
    if result.failures:
        return ChildFailedError(child_id, result.failures)
    return SuperviseError(f"{child_id}: the gang has {result.outcome.replace('_', ' ')}")


class _Listener:
    """Subscriber to one gang. Each gang needs its own, because `GangFinished` does not name its gang."""

    def __init__(self, life: GangLife) -> None:
        """Pass messages to `life`."""
        self.actor_urn = f"{life.ref.actor_urn}-in-a-tree"
        self.tell = life.told


def life_of(ref: object, report: Callable[..., object], child_id: str) -> Life:
    """Return the `Life` for an actor.

    A gang is recognized by its method `launch`, because trees do not import the class of gangs.

    Raises:
        SpecError: `ref` is not the ref of an actor.
    """
    if not isinstance(ref, pykka.ActorRef):
        raise SpecError(f"a start function returned {repr_of(ref)}; return the ref of the actor, or None")
    if isinstance(ref, TreeRef):
        return TreeLife(ref, report, child_id)
    gang = issubclass(ref.actor_class, LoopActor) and hasattr(ref.actor_class, "launch")
    return (GangLife if gang else Life)(ref, report, child_id)
