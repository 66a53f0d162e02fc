"""The emission of a tree's events."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from supervise._printable import one_line
from supervise._tree.describe import describe
from supervise.errors import ChildFailedError, RestartLimitExceeded, SuperviseError, SupervisorCrashed
from supervise.events import EventLog
from supervise.recording import text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervise._core.tree_state import Tree
    from supervise._tree.describe import Fact
    from supervise._tree.row import Row
    from supervise.events import Sink
    from supervise.trees import TreeFinished

_OF_TREES = (SuperviseError, RestartLimitExceeded, SupervisorCrashed)
"""The errors of trees, whose causes follow in the line of a failure. A subclass has a text of its own."""


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

    def finish(self, fact: TreeFinished, *, awaited: bool) -> None:
        """Emit the last event. Without a listener, show the failure in one line.

        Args:
            fact: The end of the tree.
            awaited: Whether an actor or a thread waits for it; then only a tree that has given up shows the line.
        """
        self.emit(fact)
        error = fact.error
        if error is not None and (isinstance(error, RestartLimitExceeded) or not awaited):
            self._log.show_at_last(one_line(f"supervise: tree failed: {': '.join(_reasons(error))}"))


def _reasons(error: BaseException) -> Iterator[str]:
    """Yield the text of a tree's error, and then its causes: below errors of trees, the first other one."""
    yield text_of(error)
    while type(error) in _OF_TREES and error.__cause__ is not None:
        error = error.__cause__
        yield _first_line(error)


def _first_line(error: BaseException) -> str:
    """Return an error as one line.

    For a gang, this is its root cause, because the text of that error begins with a ruler.
    """
    if not isinstance(error, ChildFailedError):
        text = text_of(error).strip().partition("\n")[0]
        return f"{type(error).__name__}: {text}" if text else type(error).__name__
    rank, root = next(iter(error.failures.items()))
    how = f"exit code {root.exitcode}" if root.exitcode >= 0 else root.signal_name()
    said = str(root.message.get("message", how)) if isinstance(root.message, dict) else how
    return f"rank {rank}: {said.partition(chr(10))[0]}"
