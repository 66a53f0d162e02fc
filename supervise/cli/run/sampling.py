"""The recording of ``samples.jsonl`` during a run, on the main thread while it waits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pykka

from supervise import messages as say
from supervise._views.samples import RunningRank, SampleFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise._runtime.future import Reply
    from supervise.cli.options.options import Options


_MOST_LOOKS = 10


class Sampling:
    """Asks the gang for its state when a sample is due, and writes the sample when the reply has come.

    No method waits. There is no file before `open`.
    """

    def __init__(self) -> None:
        """Begin without a file."""
        self._file: SampleFile | None = None
        self.on_pids: Callable[[list[int]], object] | None = None
        """Called with the process IDs of the ranks at the first samples."""
        self._looks = 0
        self._reply: Reply[say.GangStatus] | None = None

    def open(self, directory: str, options: Options, ask: Callable[[object], Any]) -> None:
        """Plan the first sample, unless the ranks run on other hosts.

        Args:
            directory: The run directory.
            options: The validated options.
            ask: Sends a message to the gang, and returns the reply. When the reply is set, the main thread wakes up.
        """
        self._ask = ask
        if options.engine == "local":
            self._file = SampleFile(directory, options.nproc)

    def wait_s(self, other_s: float | None) -> float | None:
        """Return the seconds until a sample is due, but at most `other_s`; None without both."""
        if self._file is None or self._reply is not None:
            return other_s
        due_s = max(self._file.due_s - time.monotonic(), 0.0)
        return due_s if other_s is None else min(due_s, other_s)

    def look(self) -> None:
        """Ask for the state of the gang if a sample is due; write the sample if the reply has arrived."""
        if self._file is None:
            return
        if self._reply is None:
            if time.monotonic() >= self._file.due_s:
                try:
                    self._reply = self._ask(say.Status())
                except pykka.ActorDeadError:
                    self.close()
        elif self._reply.done():
            reply, self._reply = self._reply, None
            try:
                status = reply.get(timeout=0)
            except Exception:  # the gang has ended
                self.close()
                return
            running = {
                rank: RunningRank(row.pid, row.attempt, row.step)
                for rank, row in status.ranks.items()
                if rank in status.running and row.pid is not None
            }
            self._file.write(running)
            self._looks += 1
            if self.on_pids is not None and self._looks <= _MOST_LOOKS:
                self.on_pids([life.pid for life in running.values()])

    def close(self) -> None:
        """Close the file. Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
