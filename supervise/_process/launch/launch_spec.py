"""Settings of one launch: environment, folder, streams and lifeline of a rank, for a program or a function."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from supervise._append import open_to_append, tell_reader
from supervise._process.files import clear_of_stdio, close

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervise._process.launch.posix_spawn import FoundPrograms
    from supervise._process.lifeline.lifeline import Lifeline


class Streams(NamedTuple):
    """Destinations of a worker's output.

    A destination is the path of a file to which the worker appends, or "" for the stream of the host.

    If both paths are equal, the file is opened once, and its content is in the order of the writes.
    """

    stdout: str = ""
    stderr: str = ""

    def open(self) -> tuple[int | None, int | None]:
        """Return descriptors for stdout and stderr, which the caller closes. None stands for the host's own stream.

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
    """Return "" if descriptor `number` is the host's stream; otherwise the null device.

    If the host's stream is closed, another file may have its number.
    """
    try:
        os.fstat(number)
    except OSError:
        return os.devnull
    return os.devnull if stream is None else ""


def append_to(path: str) -> int | None:
    """Open `path` for a worker's output; return None for "". A new file is private to the user."""
    if not path:
        return None
    fd = clear_of_stdio(open_to_append(path))
    tell_reader(path, fd)
    return fd


class Stdin(NamedTuple):
    """The stdin of a program, instead of the null device."""

    fd: int
    """A descriptor of the host, which every life of the rank inherits."""
    foreground: bool = False
    """Whether `fd` is the terminal that controls the host.

    If so, the program stays in the host's session, in a process group of its own, to which the host can give the
    foreground.
    """


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LaunchSpec:
    """Settings of one launch. An attempt makes them for each rank, and passes them to the launcher as one object."""

    env: Mapping[Any, Any]
    """The whole environment. Names and values are text for a function, bytes for a program."""
    cwd: str | None = None
    """The working directory; None for that of the host."""
    streams: Streams = field(default_factory=Streams)
    stdin: Stdin | None = None
    """The stdin of a program; None for the null device."""
    line: Lifeline
    enter: str | None = None
    """The ``cgroup.procs`` file of the control group that the process enters before it runs.

    None: the process stays in the control group of the host.
    """
    gate: bool = False
    """Whether a program waits until its lifeline is armed."""
    found: FoundPrograms | None = None
    """The programs that were found for other ranks of the gang; None: search for the program."""
