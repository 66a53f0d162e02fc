"""Items that one thread adds and another waits for. The fakes and recorders of `supervise.testing` use them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Collected(Generic[T]):
    """Thread-safe list of items, on which a thread can wait."""

    def __init__(self) -> None:
        """Begin with no item."""
        self._items: list[T] = []
        self._changed = threading.Condition()

    def add(self, item: T) -> None:
        """Add an item. Callable from any thread."""
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()

    def copy(self) -> list[T]:
        """Return the items so far."""
        with self._changed:
            return list(self._items)

    def wait_for(self, wanted: Callable[[T], bool], what: str, timeout: float) -> T:
        """Return the first item that is `wanted`.

        Raises:
            TimeoutError: No such item came within `timeout` seconds; the text names `what`.
        """

        def found() -> list[T]:
            return [item for item in self._items if wanted(item)][:1]

        with self._changed:
            if not self._changed.wait_for(found, timeout):
                msg = f"no {what} in {timeout} s; what came: {self._items}"
                raise TimeoutError(msg)
            return found()[0]
