"""Record of one launch: environment, folder, streams and lifeline of a rank, for a program or a function."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from supervise._append import open_to_append, tell_reader
from supervise._process.files import clear_of_stdio, close

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervise._process.lifeline.lifeline import Lifeline


class Streams(NamedTuple):
    """Destinations of a worker's output: paths of files to append to, or "" for the host's own stream.

    If both paths are equal, the file is opened once, and its content is in the order of the writes.
    """

    stdout: str = ""
    stderr: str = ""

    def open(self) -> tuple[int | None, int | None]:
        """Return descriptors for stdout and stderr; None is the host's own. The caller closes them.

        If the host's stream is closed, the worker gets the null device.
        """
        out = append_to(self.stdout or _host_stream(sys.__stdout__, 1))
        try:
            if out is not None and self.stderr == self.stdout:
                return out, clear_of_stdio(os.dup(out))
            return out, append_to(self.stderr or _host_stream(sys.__stderr__, 2))
        except BaseException:
            close(out)
            raise


def _host_stream(stream: object, number: int) -> str:
    """Return "" if descriptor `number` is the host's stream, otherwise the null device: it may be another file."""
    try:
        os.fstat(number)
    except OSError:
        return os.devnull
    return os.devnull if stream is None else ""


def append_to(path: str) -> int | None:
    """Open `path` for a worker's output; a new file is private to the user. Return None for ""."""
    if not path:
        return None
    fd = clear_of_stdio(open_to_append(path))
    tell_reader(path, fd)
    return fd


class Stdin(NamedTuple):
    """The stdin of a program, in place of the null device."""

    fd: int
    """A descriptor of the host, which every life of the rank inherits."""
    foreground: bool = False
    """Whether `fd` is the terminal that controls the host: the program then stays in the host's session, in a process
    group of its own, to which the host can give the foreground."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LaunchSpec:
    """Settings of one launch. An attempt makes one for each rank, and passes it whole to the launcher."""

    env: Mapping[Any, Any]
    """The whole environment: text for a function, bytes for a program."""
    cwd: str | None = None
    """The working directory; None is the host's."""
    streams: Streams = field(default_factory=Streams)
    stdin: Stdin | None = None
    """The stdin of a program; None is the null device."""
    line: Lifeline
    enter: str | None = None
    """The ``cgroup.procs`` file of the control group that the process enters before it runs; None is the host's."""
    gate: bool = False
    """Whether a program waits until its lifeline is armed."""
