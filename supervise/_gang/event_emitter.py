"""The emission of a gang's events."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from supervise._gang.describe import AttemptStarting, Describer, LogFailed, whole_number
from supervise._gang.results import failed_line
from supervise._printable import one_line
from supervise.events import EventLog, say_at_last

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervise._gang.attempt import Attempt
    from supervise._gang.describe import Fact
    from supervise.messages import GangFinished


class EventEmitter:
    """Emitter of the events of one gang. Used on the gang's loop."""

    def __init__(self, attempt: Attempt) -> None:
        """Take the common fields of all events from `attempt`, which is the first attempt."""
        now_ns = time.monotonic_ns()
        first, spec = attempt.envs.get(0, {}), attempt.spec
        self._describer = Describer(attempt, now_ns, now_ns)
        role = None if spec.role_of else first.get("ROLE_NAME")  # each rank has its own
        common = {"gang": spec.name, "run_id": first.get("TORCHELASTIC_RUN_ID"), "role": role}
        self._log = EventLog({**common, "attempt": _number_of(attempt)}, sink=spec.event_sink)

    def listens(self, level: str = "warning") -> bool:
        """Return whether an event of this level would reach a listener."""
        return self._log.listens(level)

    def global_ranks(self, local_ranks: Iterable[int]) -> dict[int, int]:
        """Return local rank to the rank that events name.

        If two ranks would have the same name, events name the local rank.
        """
        found = {local: self._describer.global_rank(local) for local in local_ranks}
        return found if len(set(found.values())) == len(found) else {local: local for local in found}

    def begin(self, attempt: Attempt) -> None:
        """Describe this attempt from now on. It is the first one, or that of a restart."""
        now_ns = time.monotonic_ns()
        begun_ns = now_ns if attempt is self._describer.attempt else self._describer.begun_ns
        self._describer = Describer(attempt, begun_ns, now_ns)
        self._log.renew(attempt=_number_of(attempt))
        self.emit(AttemptStarting())

    def emit(self, fact: Fact) -> None:
        """Emit the events for `fact`. Without a listener, do not describe `fact`."""
        if self._log.listens("error"):
            for event in self._describer.describe(fact, time.monotonic_ns()):
                self._log.emit(event.name, event.level, **event.fields)

    def finish(self, fact: GangFinished) -> None:
        """Emit the last events.

        Without a listener, show a failure in one line, unless the caller gets an exception.
        """
        self.emit(fact)
        spec, result = self._describer.attempt.spec, fact.result
        if result is not None and result.outcome == "failed" and spec.plain is None and spec.shows_failure:
            title = spec.title(next(iter(result.failures)))
            self._log.show_at_last(failed_line(spec.name, title, result))

    def disk_full(self, iostream: str, error: OSError) -> None:
        """Report a disk that is full when the ranks have ended. Without a listener, report it on stderr."""
        text = f"{error.strerror}; what the ranks wrote or recorded last may be missing"
        if not self._log.listens("warning"):
            say_at_last(one_line(f"supervise: {error.filename}: {text}"), logging.WARNING)
        self.emit(LogFailed(iostream, error.filename, str(OSError(error.errno, text, error.filename))))


def _number_of(attempt: Attempt) -> int:
    return whole_number(attempt.envs.get(0, {}).get("TORCHELASTIC_RESTART_COUNT"), 0)
