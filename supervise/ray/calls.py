"""Transfer of functions, arguments and values between the driver and the ranks, by cloudpickle.

Hosts never load these objects, so a host actor neither imports nor runs user code.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from supervise._process.launch.return_value import unpicklable

if TYPE_CHECKING:
    from collections.abc import Callable


class Call:
    """A function that a rank loads at the call. The value of the function travels as bytes."""

    def __init__(self, pickled: bytes, name: str) -> None:
        """Keep the pickled function. `name` is for messages."""
        self._pickled = pickled
        self.__name__ = self.__qualname__ = name

    def __call__(self, *args: bytes) -> bytes:
        """Load the function and its arguments, call it, and return its value as a pickle."""
        import cloudpickle

        function: Callable[..., Any] = pickle.loads(self._pickled)
        value = function(*map(pickle.loads, args))
        try:
            return bytes(cloudpickle.dumps(value))
        except Exception as error:
            raise unpicklable(value, error) from error


def pack(entrypoint: Callable[..., Any]) -> Call:
    """Return a call of a function that hosts need not be able to import.

    Such functions are lambdas, or functions of ``__main__``.
    """
    import cloudpickle

    return Call(cloudpickle.dumps(entrypoint), getattr(entrypoint, "__qualname__", type(entrypoint).__name__))


def pack_args(args: tuple[Any, ...]) -> tuple[bytes, ...]:
    """Return arguments as pickles."""
    import cloudpickle

    return tuple(bytes(cloudpickle.dumps(arg)) for arg in args)


def load(value: Any) -> Any:
    """Return the value of a rank's function; None for a program."""
    return None if value is None else pickle.loads(value)
