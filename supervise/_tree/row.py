"""Record of one child in the actor of a tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pykka

    from supervise._runtime.loop import Timer
    from supervise._tree.lives import Life
    from supervise._tree.monitor import Reason
    from supervise.trees import ChildSpec


class Row:
    """One child: its spec, its life and its timers. The core knows its state."""

    def __init__(self, spec: ChildSpec) -> None:
        """Make the record of a child that has not been started."""
        self.spec = spec
        self.number = 0
        """Number of the life that was started last."""
        self.begun_ns = 0
        """Monotonic time at which the start function of this life was called."""
        self.life: Life | None = None
        self.reason: Reason = None
        """Reason of the last end."""
        self.timers: dict[str, Timer] = {}

    @property
    def ref(self) -> pykka.ActorRef[Any] | None:
        """The ref of the present life's actor; None if there is no life."""
        return None if self.life is None else self.life.ref

    def cancel(self, name: str) -> None:
        """Cancel a timer; idempotent."""
        timer = self.timers.pop(name, None)
        if timer is not None:
            timer.cancel()
