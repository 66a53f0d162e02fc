"""`TreeRef`: a reference to a supervision tree that has typed replies and is a context manager."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict, overload

from supervise._runtime.ref import StoppingRef

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

    if TYPE_CHECKING:

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
        def ask(self, message: Any, *, block: bool = True, timeout: float | None = None) -> Any: ...
