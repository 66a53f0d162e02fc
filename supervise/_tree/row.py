"""What the actor of a tree keeps of one child."""

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
        """Know the spec only."""
        self.spec = spec
        self.number = 0
        """Of the life that was started last."""
        self.life: Life | None = None
        self.reason: Reason = None
        """Why it has ended last."""
        self.timers: dict[str, Timer] = {}

    @property
    def ref(self) -> pykka.ActorRef[Any] | None:
        """The actor that lives now."""
        return None if self.life is None else self.life.ref

    def cancel(self, name: str) -> None:
        """Cancel a timer; idempotent."""
        timer = self.timers.pop(name, None)
        if timer is not None:
            timer.cancel()
