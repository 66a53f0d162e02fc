"""Functions that a signal handler can recognize on the stack of the interrupted thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any

F = TypeVar("F", bound="Callable[..., Any]")


class Marked:
    """A decorator that returns the function unchanged and remembers its code object."""

    def __init__(self) -> None:
        """Begin without a function."""
        self._codes: set[CodeType] = set()

    def __call__(self, function: F) -> F:
        """Mark a function; return it."""
        self._codes.add(function.__code__)
        return function

    def on_stack(self, frame: FrameType | None) -> bool:
        """Return whether `frame`, or a frame that called it, belongs to a marked function."""
        while frame is not None:
            if frame.f_code in self._codes:
                return True
            frame = frame.f_back
        return False
