"""The emission of a tree's events."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from supervise._printable import one_line
from supervise._tree.describe import describe
from supervise.errors import ChildFailedError, RestartLimitExceeded
from supervise.events import EventLog
from supervise.recording import text_of

if TYPE_CHECKING:
    from supervise._core.tree_state import Tree
    from supervise._tree.describe import Fact
    from supervise._tree.row import Row
    from supervise.events import Sink
    from supervise.trees import TreeFinished


class EventEmitter:
    """Emitter of the events of one tree. Used on the loop of the tree."""

    def __init__(self, name: str, tree: Tree, sink: Sink | None) -> None:
        """Emit events for the tree called `name`. Every event has this name."""
        self._tree = tree
        self._begun_ns = time.monotonic_ns()
        self._log = EventLog({"tree": name}, sink=sink)

    def emit(self, fact: Fact, row: Row | None = None) -> None:
        """Emit the events for `fact`; `row` is the child that `fact` is about.

        Without a listener, do not describe `fact`.
        """
        if not self._log.listens("error"):
            return
        begun_ns, attempt = (self._begun_ns, 0) if row is None else (row.begun_ns, row.number - 1)
        duration_s = (time.monotonic_ns() - begun_ns) / 1e9
        for event in describe(fact, self._tree, attempt, duration_s):
            self._log.emit(event.name, event.level, **event.fields)

    def finish(self, fact: TreeFinished) -> None:
        """Emit the last event. Without a listener, show one line if the tree has given up."""
        self.emit(fact)
        error = fact.error
        if isinstance(error, RestartLimitExceeded):
            cause = error.__cause__
            why = "" if cause is None else f": {_first_line(cause)}"
            self._log.show_at_last(one_line(f"supervise: tree failed: {error}{why}"))


def _first_line(error: BaseException) -> str:
    """Return an error as one line.

    For a gang, this is its root cause, because the text of that error begins with a ruler.
    """
    if not isinstance(error, ChildFailedError):
        return f"{type(error).__name__}: {text_of(error).strip().partition(chr(10))[0]}"
    rank, root = next(iter(error.failures.items()))
    how = f"exit code {root.exitcode}" if root.exitcode >= 0 else root.signal_name()
    said = str(root.message.get("message", how)) if isinstance(root.message, dict) else how
    return f"rank {rank}: {said.partition(chr(10))[0]}"
