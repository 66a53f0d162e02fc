"""One attempt of a gang, ready to be started, and the destinations that show its logs."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TextIO

from supervise._logs import sinks
from supervise._logs.files import move_aside
from supervise._printable import as_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from supervise._gang.worker import Launcher
    from supervise._process.containment.escapees import Contained
    from supervise._process.launch.function import StartMethod
    from supervise._process.lifeline.lifeline import Lifeline
    from supervise.destinations import LogsDest
    from supervise.restarts import RestartPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file that a rank writes, and what to put before each of its lines."""

    local_rank: int
    path: str
    prefix: bytes


@dataclass(slots=True, kw_only=True)
class TailSpec:
    """One destination and what feeds it."""

    name: str
    sink: sinks.Sink
    sources: list[Source]
    line_filter: Callable[[bytes], bool] | None = None


@dataclass(slots=True, kw_only=True)
class Attempt:
    """A gang, ready to be started. Every mapping is keyed by local rank."""

    name: str
    kind: Literal["function", "binary"]
    what: str
    """The program, or the function's name."""
    start_method: StartMethod | None
    """None for binaries."""
    args: Mapping[int, tuple[Any, ...]]
    envs: dict[int, dict[str, str]] = field(repr=False)
    """What each rank gets beside the host's environment."""
    dest: LogsDest
    line: Lifeline
    launchers: list[Launcher] = field(default_factory=list, repr=False)
    tails: list[TailSpec] = field(default_factory=list)
    window: int = 1
    policy: RestartPolicy | None = None
    stop_on_failure: bool = True
    """Whether a rank that fails ends the others, too, until somebody says otherwise."""
    contained: Contained | None = None
    """None only in tests without processes."""
    again: Callable[[int], Attempt] | None = field(default=None, repr=False)
    """Makes the plan of a later attempt, from its number."""

    remove_folders: Callable[[], object] | None = None
    """Removes the log folders of a gang whose starter has asked for none, unless something was written into them."""
    pid: int = field(default_factory=os.getpid)
    """Of the host: a child that it forks removes nothing."""

    @property
    def nprocs(self) -> int:
        """How many ranks."""
        return len(self.args)

    def close(self) -> None:
        """Give back what a start would have used."""
        self.line.cut()
        for tail in self.tails:
            tail.sink.close()
        if self.contained is not None:
            self.contained.close()
        if self.remove_folders is not None and self.pid == os.getpid():
            self.remove_folders()


def add_tails(
    plan: Attempt,
    consoles: tuple[TextIO, TextIO],
    prefixes: Mapping[int, str],
    out_filters: Sequence[str] | None,
    err_filters: Sequence[str] | None,
) -> None:
    """Add the Tails one by one, so that a plan that fails half-way can give back what was opened."""
    dest, tails = plan.dest, plan.tails

    def sources(paths: Mapping[int, str]) -> list[Source]:
        return [
            Source(local_rank=rank, path=path, prefix=as_prefix(prefixes.get(rank, f"[{plan.name}{rank}]:")).encode())
            for rank, path in sorted(paths.items())
            if path and path != os.devnull
        ]

    outs, errs = sources(dest.tee_stdouts), sources(dest.tee_stderrs)
    for name, stream, found in (("stdout", consoles[0], outs), ("stderr", consoles[1], errs)):
        sink = sinks.console(stream) if found else None
        if sink is None:
            continue
        if tails and sinks.same_destination(tails[0].sink, sink):  # one writer, or their lines would mix
            sink.close()
            tails[0].name = "console"
            tails[0].sources += found
        else:
            tails.append(TailSpec(name=name, sink=sink, sources=found))
    for name, path, filters, found in (
        ("filtered_stdout", dest.filtered_stdout, out_filters, outs),
        ("filtered_stderr", dest.filtered_stderr, err_filters, errs),
    ):
        if filters and path and not path.startswith(os.devnull):
            move_aside(path)
            needles = [needle.encode() for needle in filters]
            keep = partial(_holds_any, needles)
            tails.append(TailSpec(name=name, sink=sinks.file_sink(path), sources=found, line_filter=keep))


def _holds_any(needles: list[bytes], line: bytes) -> bool:
    return any(needle in line for needle in needles)
