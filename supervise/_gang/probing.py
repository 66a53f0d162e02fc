"""The tries of the probes of a gang, and the time between them."""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from supervise import _threads
from supervise._core.hangs import LATE_NS
from supervise._probes import parse
from supervise._process.probes import Try

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise._gang.attempt import Attempt
    from supervise._runtime.loop import Loop, Timer


_FIRST_S, _GROWTH, _LONGEST_S = 0.1, 1.2, 1.0


def delay_s(tries: int) -> float:
    """Return the time to the next try of a probe of readiness.

    Args:
        tries: Number of tries so far, at least 1.
    """
    return min(_FIRST_S * _GROWTH ** min(tries - 1, 99), _LONGEST_S)  # a high power would overflow after an hour


class Probing:
    """The tries of a probe during one life of a rank. Used on the gang's loop."""

    def __init__(self, attempt: Attempt, rank: int, text: str, loop: Loop, then: Callable[[Probing], object]) -> None:
        """Prepare. `begin` begins the first try.

        Args:
            attempt: The present attempt of the gang.
            rank: The rank.
            text: The probe, as the settings have it.
            loop: The gang's loop.
            then: Function that is called after each try.
        """
        part, dest = attempt.spec.of(rank), attempt.dest
        variables = attempt.spec.variables_of(rank, attempt.envs[rank])
        self.rank, self.text, self.probe = rank, text, parse(text, variables)
        logs = {path: 0 for path in (dest.stdouts[rank], dest.stderrs[rank]) if path and path != os.devnull}
        self._new_try = partial(Try, self.probe, part.cwd or "", variables, logs, part.alive_timeout_s)
        self._timeout_s = part.alive_timeout_s
        self._loop, self._then = loop, then
        self.tries = self.failures = 0
        self.answer = "none yet"
        """Why the last try has failed; "" if it has succeeded."""
        self.excused = False  # whether the last try has failed for a reason that is in this process
        self.good_ns = time.monotonic_ns()
        """Time of the last success, at first that of the readiness of the rank."""
        self._present: Try | None = None
        self.thread: threading.Thread | None = (
            None  # until its answer; a file system or the lookup of a name may block it
        )
        self._timer: Timer | None = None

    def begin(self, delay_s: float = 0.0) -> None:
        """Begin a try after a delay."""
        self._timer = self._loop.call_later(delay_s, self._try)

    def end(self) -> None:
        """Cancel the tries. No function is called any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._present is not None:
            self._present.cancel()

    def _try(self) -> None:
        self.tries += 1
        if self.thread is None:
            self._present = present = self._new_try()
            self.thread = threading.Thread(target=self._run, args=(present,), name="supervise-probe", daemon=True)
            try:
                _threads.start(self.thread, "a probe")
            except OSError as error:
                present.excused = True
                self._loop.post(self._ended, present, str(error.strerror))
        late = partial(self._answered, self._present, f"none within {self._timeout_s:g} s")
        self._timer = self._loop.call_later(self._timeout_s, late)

    def _run(self, present: Try) -> None:
        self._loop.post(self._ended, present, present.run())

    def _ended(self, present: Try, answer: str) -> None:
        self.thread = None  # by this answer, not by `is_alive`: on a busy machine, the thread runs on for a while
        self._answered(present, answer)

    def _answered(self, present: Try | None, answer: str) -> None:
        """Handle an answer, unless it comes too late."""
        if present is not self._present or self._timer is None:
            return
        # If the deadline passed long ago, this process got no processor time, for example because it was suspended
        is_late = time.monotonic() > self._timer.due_s + LATE_NS / 1e9
        self._timer.cancel()
        self._present = None
        if present is not None:
            present.cancel()
        self.answer, self.excused = answer, is_late or (present is not None and present.excused)
        self._then(self)
