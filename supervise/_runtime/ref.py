"""`StoppingRef`: a reference to an actor that is a context manager."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import pykka

if TYPE_CHECKING:
    from types import TracebackType


class StoppingRef(pykka.ActorRef[Any]):
    """A reference whose ``with`` block stops the actor at its end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Stop the actor; return when it has ended."""
        self.stop()
