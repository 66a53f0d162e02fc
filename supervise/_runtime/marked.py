"""Functions that a handler of a signal knows again on the stack of the thread that it interrupts."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any

F = TypeVar("F", bound="Callable[..., Any]")


class Marked:
    """A decorator that changes nothing, and remembers what it was applied to."""

    def __init__(self) -> None:
        """Know no function yet."""
        self._codes: set[CodeType] = set()

    def __call__(self, function: F) -> F:
        """Mark a function; return it."""
        self._codes.add(function.__code__)
        return function

    def on_stack(self, frame: FrameType | None) -> bool:
        """Whether `frame`, or one that has led to it, is a marked function's."""
        while frame is not None:
            if frame.f_code in self._codes:
                return True
            frame = frame.f_back
        return False
