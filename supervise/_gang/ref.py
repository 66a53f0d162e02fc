"""`SupervisorRef`: a reference to a Supervisor that has typed replies and is a context manager."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from supervise._runtime.ref import StoppingRef

if TYPE_CHECKING:
    import pykka

    from supervise.messages import Ask

    _Reply = TypeVar("_Reply")


_PROMPT_S = 5.0


class SupervisorRef(StoppingRef):
    """The reference to a Supervisor that `Supervisor.start` returns: a `pykka.ActorRef` whose replies have types.

    As a context manager, the reference stops the Supervisor at the end of the block, which closes the gang. The
    reference does not launch the ranks: ask `Start` for that.
    """

    @overload
    def ask(
        self, message: Ask[_Reply], *, block: Literal[False], timeout: float | None = None
    ) -> pykka.Future[_Reply]: ...
    @overload
    def ask(self, message: Ask[_Reply], *, block: Literal[True] = True, timeout: float | None = None) -> _Reply: ...
    @overload
    def ask(self, message: Any, *, block: bool = True, timeout: float | None = None) -> Any: ...
    def ask(self, message: Any, *, block: bool = True, timeout: float | None = None) -> Any:
        """Send a message of `supervise.messages`; return the reply, or a future of it if `block` is False.

        Args:
            message: The message.
            block: Whether to wait for the reply.
            timeout: Seconds to wait; None waits without limit.

        Raises:
            pykka.Timeout: There is no reply within `timeout`.
            pykka.ActorDeadError: The Supervisor has ended.
            Exception: The reply is an error. Each message lists its errors.
        """
        return super().ask(message, block=block, timeout=timeout)

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows: the result as a picture, or the state of each rank."""
        from supervise import messages
        from supervise._views import small_timeline

        try:
            result = self.ask(messages.Poll(), timeout=_PROMPT_S)
            if result is not None:
                return result._repr_html_()
            return small_timeline.of_gang("gang", self.ask(messages.Status(), timeout=_PROMPT_S))
        except Exception:  # the gang has ended, or its start has failed
            return small_timeline.of_gang("gang", None)
