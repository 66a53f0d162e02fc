"""The output of the ranks of all hosts on the driver's streams, as whole lines in the order of their arrival."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Shown(Protocol):
    """A destination of the ranks' output."""

    def write(self, host: int, stream: str, data: bytes) -> None:
        """Take bytes of a host's ``stdout`` or ``stderr``."""

    def finish(self, host: int) -> None:
        """Take the end of a host's output."""


class StreamsShown:
    """Writer of the output to the streams of this process. Unfinished lines wait, so that lines of hosts never mix."""

    def __init__(self, write: Callable[[str, bytes], object] | None = None) -> None:
        """Write to `sys.stdout` and `sys.stderr`.

        With `write`, call it with the name of the stream and whole lines instead.
        """
        self._write = write or _to_stream
        self._rest: dict[tuple[int, str], bytes] = {}

    def write(self, host: int, stream: str, data: bytes) -> None:
        """Write the lines that `data` completes."""
        whole, newline, rest = (self._rest.pop((host, stream), b"") + data).rpartition(b"\n")
        if rest:
            self._rest[host, stream] = rest
        if newline:
            self._write(stream, whole + newline)

    def finish(self, host: int) -> None:
        """Write the unfinished lines of a host."""
        for stream in ("stdout", "stderr"):
            if rest := self._rest.pop((host, stream), b""):
                self._write(stream, rest + b"\n")


def _to_stream(name: str, data: bytes) -> None:
    stream: Any = getattr(sys, name)
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or no reader: the logs have it
        if hasattr(stream, "buffer"):
            stream.flush()
            stream.buffer.write(data)
            stream.buffer.flush()
        else:
            stream.write(data.decode(errors="replace"))
