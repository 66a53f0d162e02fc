"""What a context of ours has in place of PyTorch's ``TailLog`` objects."""

from __future__ import annotations


class TailState:
    """What is left of PyTorch's ``TailLog`` objects in a context: whether the log is still followed."""

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
