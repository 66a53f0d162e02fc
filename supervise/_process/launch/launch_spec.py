"""Record of one launch: environment, folder, streams and lifeline of a rank, be it a program or a function."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from supervise._process.append import open_to_append, tell_reader
from supervise._process.files import clear_of_stdio, close

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervise._process.lifeline.lifeline import Lifeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Where a worker's output goes: paths of files to append to, or "" for the host's own stream."""

    stdout: str = ""
    stderr: str = ""

    def open(self) -> tuple[int | None, int | None]:
        """Return descriptors for stdout and stderr; None is the host's own. The caller closes them.

        Where the host has none (it was started with it closed), the worker's is the null device.
        """
        out = append_to(self.stdout or _host_stream(sys.__stdout__, 1))
        try:
            return out, append_to(self.stderr or _host_stream(sys.__stderr__, 2))
        except BaseException:
            close(out)
            raise


def _host_stream(stream: object, number: int) -> str:
    """Return "" where descriptor `number` is the host's stream, else the null device: it may be anything by now."""
    try:
        os.fstat(number)
    except OSError:
        return os.devnull
    return os.devnull if stream is None else ""


def append_to(path: str) -> int | None:
    """Open `path` for a worker's output, made private to the user; "" is None."""
    if not path:
        return None
    fd = clear_of_stdio(open_to_append(path))
    tell_reader(path, fd)
    return fd


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """Settings of one launch. An attempt makes one for each rank, and every kind of launcher takes it whole."""

    env: Mapping[Any, Any] = field(repr=False)
    """Its whole environment: of text for a function, encoded for a program."""
    cwd: str | None = None
    """Its working directory; None is the host's."""
    streams: Streams = field(default_factory=Streams)
    line: Lifeline
    reset: frozenset[int] = frozenset()
    """Signals that the host ignores and the rank must not, from `dispositions.to_reset`."""
    enter: str | None = None
    """The ``cgroup.procs`` in which the process must be before it runs; None is where the host is."""
    gate: bool = False
    """Whether a program waits until its lifeline is armed."""
