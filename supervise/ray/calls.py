"""Transfer of functions, arguments and values between driver and ranks, by cloudpickle.

Hosts never load them, so a host actor neither imports nor runs code of the user.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Call:
    """A function that a rank loads when it is called. Its value travels as bytes."""

    def __init__(self, pickled: bytes, name: str) -> None:
        """Keep the pickled function; `name` is for messages."""
        self._pickled = pickled
        self.__name__ = self.__qualname__ = name

    def __call__(self, *args: Any) -> bytes:
        """Load the function, call it, and return its pickled value."""
        import cloudpickle

        function: Callable[..., Any] = pickle.loads(self._pickled)
        given = [pickle.loads(arg) if isinstance(arg, Packed) else arg for arg in args]
        return bytes(cloudpickle.dumps(function(*given)))


class Packed(bytes):
    """A pickled argument."""


def pack(entrypoint: Callable[..., Any]) -> Call:
    """Return a call of a function that hosts need not be able to import: a lambda, or a function of ``__main__``."""
    import cloudpickle

    return Call(cloudpickle.dumps(entrypoint), getattr(entrypoint, "__qualname__", type(entrypoint).__name__))


def pack_args(args: tuple[Any, ...]) -> tuple[Packed, ...]:
    """Return arguments as bytes."""
    import cloudpickle

    return tuple(Packed(cloudpickle.dumps(arg)) for arg in args)


def load(value: Any) -> Any:
    """Return the value of a rank's function; a program has none."""
    return None if value is None else pickle.loads(value)
