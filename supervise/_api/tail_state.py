"""The stand-in for PyTorch's ``TailLog`` objects in a context of supervise."""

from __future__ import annotations


class TailState:
    """Stand-in for a ``TailLog`` of a context: reports whether the context was closed."""

    def __init__(self) -> None:
        self._stopped = False

    def start(self) -> None:
        """Do nothing: the gang shows its logs itself."""

    def stop(self) -> None:
        """Note that the context was closed."""
        self._stopped = True

    def stopped(self) -> bool:
        """Whether the context was closed."""
        return self._stopped
