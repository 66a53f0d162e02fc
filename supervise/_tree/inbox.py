"""The inbox of a tree, which keeps how the tree has ended, and replies to `Start` and `Wait` after the end."""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Any

from supervise._runtime.actor import Inbox
from supervise._runtime.future import Reply
from supervise.messages import Start, Wait
from supervise.trees import TreeFinished

if TYPE_CHECKING:
    from types import FrameType

    from pykka._envelope import Envelope

    from supervise._runtime.loop import Loop


class TreeInbox(Inbox):
    """The inbox of a tree, which all refs of the tree share. After the end, it holds the error, but not the actor."""

    __slots__ = ("_finished",)

    def __init__(self, loop: Loop) -> None:
        """Make the inbox of a tree that has not ended."""
        super().__init__(loop)
        self._finished: TreeFinished | None = None

    def finish(self, finished: TreeFinished) -> None:
        """Reply with this end from now on; release the actor, which tracebacks of the error hold."""
        self._finished = TreeFinished(error=_copy(finished.error))
        self.loop.post(_release, finished.error)  # the frames in these tracebacks may still run now

    def replies_late(self, message: Any) -> bool:
        """Return whether the tree has ended and the end is the reply to `message`.

        A tree that was stopped has no reply to `Start`, as the Supervisor of a gang has none.
        """
        finished = self._finished
        if finished is None:
            return False
        return isinstance(message, Wait) or (isinstance(message, Start) and finished.error is not None)

    def error(self) -> BaseException | None:
        """Return a new exception for the failure of the tree; None if it has not ended, or was stopped."""
        return None if self._finished is None else _copy(self._finished.error)

    def end(self) -> TreeFinished | None:
        """Return how the tree has ended, or raise its error. None if it has not ended."""
        if self._finished is not None and self._finished.error is not None:
            # without a local variable: the traceback holds this frame, which would hold the error
            raise _copy(self._finished.error)
        return self._finished

    def late_reply(self) -> Reply[TreeFinished | None]:
        """Return the end as a reply."""
        reply: Reply[TreeFinished | None] = Reply()
        error = self.error()
        if error is None:
            reply.set(self._finished)
        else:
            reply.fail(error)
        return reply

    def refuse(self, envelope: Envelope[Any], who: object) -> None:
        """Reply with the end of the tree if that is the reply to the message; otherwise with an error."""
        if envelope.reply_to is not None and self.replies_late(envelope.message):
            envelope.reply_to.set(self.late_reply())
        else:
            super().refuse(envelope, who)


def _copy(error: BaseException | None) -> Any:
    """Return a copy of a tree's error with the same cause: a traceback of a kept exception holds all who raised it."""
    copied = copy.copy(error)
    if copied is not None and error is not None:
        copied.__cause__ = error.__cause__
    return copied


def _release(error: BaseException | None) -> None:
    """Clear the local variables of this package's frames to which the tracebacks of an error and its causes lead."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback = error.__traceback__
        while traceback is not None:
            frame: FrameType | None = traceback.tb_frame
            while frame is not None:  # a frame holds its caller's frame, also after the call
                if frame.f_globals.get("__name__", "").startswith("supervise."):
                    with contextlib.suppress(RuntimeError):  # it still runs
                        frame.clear()
                frame = frame.f_back
            traceback = traceback.tb_next
        error = error.__cause__
