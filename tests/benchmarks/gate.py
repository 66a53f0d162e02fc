"""A gate at which ranks wait until all run, and note the moment at which they go on."""

from __future__ import annotations

import fcntl
import os
import random
import tempfile
import threading
from pathlib import Path

_READY_S = 60.0
_JITTER_S = (0.2, 1.2)
"""So long the gang stands idle before the gate opens: more than one period of whoever polls, at a random phase."""


class Gate:
    """A lock that this process holds until it opens. Ranks that come later find it open."""

    def __init__(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="gate-"))
        self.ready, self.lock, self.stamps = (str(folder / name) for name in ("ready", "lock", "stamps"))
        for path in (self.ready, self.lock, self.stamps):
            Path(path).touch()
        self._fd = os.open(self.lock, os.O_RDONLY)
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def args(self, exitcode: int) -> tuple[str, str, str, str]:
        """Return the arguments of the program or function `gated`."""
        return self.ready, self.lock, self.stamps, str(exitcode)

    def await_ready(self, count: int) -> None:
        """Return when so many ranks have reported, and the gang has stood idle for a while.

        Raises:
            TimeoutError: They do not come.
        """
        pause = threading.Event()
        for _ in range(int(_READY_S / 0.02)):
            if Path(self.ready).stat().st_size >= count:
                break
            pause.wait(0.02)
        else:
            msg = f"only {Path(self.ready).stat().st_size} of {count} ranks reached the gate"
            raise TimeoutError(msg)
        pause.wait(random.uniform(*_JITTER_S))

    def open(self) -> None:
        """Let the ranks go on."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def open_when_ready(self, count: int) -> threading.Thread:
        """Open, in a thread, once `count` ranks wait."""

        def run() -> None:
            try:
                self.await_ready(count)
            finally:
                self.open()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def last_stamp_ns(self) -> int:
        """Return when the last rank went through, in monotonic nanoseconds."""
        return max(int(line) for line in Path(self.stamps).read_text(encoding="ascii").split())
