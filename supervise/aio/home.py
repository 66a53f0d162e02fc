"""The process and the event loop that a gang belongs to."""

from __future__ import annotations

import asyncio
import os

from supervise import SpecError


class Home:
    """The process that made a gang, and the event loop that used it first."""

    def __init__(self, gang: str) -> None:
        """Note this process; the first `check` notes the event loop.

        Args:
            gang: Name of the gang, for errors.
        """
        self._gang = gang
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def forked(self) -> bool:
        """Whether this process was forked from the one that made the gang."""
        return os.getpid() != self._pid

    def check(self) -> asyncio.AbstractEventLoop:
        """Return the running event loop.

        Raises:
            SpecError: This process or this event loop is not the one of the gang.
            RuntimeError: No event loop is running.
        """
        if self.forked:
            raise SpecError(
                f"gang {self._gang!r} belongs to process {self._pid}, and process {os.getpid()} was forked from it;"
                " use the gang there, or make another one here"
            )
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise SpecError(
                f"gang {self._gang!r} belongs to another event loop; use it there, from another thread by"
                " asyncio.run_coroutine_threadsafe, or make another gang here"
            )
        return loop
