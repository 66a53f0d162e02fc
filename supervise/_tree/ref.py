"""`TreeRef`: a reference to a supervision tree that has typed replies and is a context manager."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict, overload

from supervise._runtime.ref import StoppingRef
from supervise._tree.inbox import TreeInbox

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pykka

    from supervise import messages
    from supervise.events import Sink
    from supervise.restarts import RestartPolicy, Strategy
    from supervise.trees import ChildSpec, TreeStatus


class TreeSettings(TypedDict, total=False):
    """The keyword arguments of `ActorSupervisor`."""

    name: Required[str]
    children: Required[Iterable[ChildSpec]]
    strategy: Strategy
    restart_policy: RestartPolicy | None
    event_sink: Sink | None


class TreeRef(StoppingRef):
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
        if not isinstance(inbox, TreeInbox) or not inbox.replies_late(message):
            return super().ask(message, block=block, timeout=timeout)
        return inbox.end() if block else inbox.late_reply()
