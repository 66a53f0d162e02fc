"""The destinations of a gang's shown output, and the files that each shows."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from supervise._logs import sinks
from supervise._logs.files import move_aside
from supervise._printable import as_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from supervise._gang.spec import GangSpec
    from supervise.destinations import LogsDest


class Source(NamedTuple):
    """A file that a rank writes, and the prefix of its lines."""

    local_rank: int
    path: str
    prefix: bytes
    prompts: bool = False
    """Whether the beginning of a line is shown soon, for a person who answers it on a terminal."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class TailSpec:
    """One destination and the files that it shows."""

    name: str
    sink: sinks.Sink
    sources: list[Source]
    streams: tuple[str, ...]
    """The streams of the ranks that are shown: ``stdout``, ``stderr``."""
    line_filter: Callable[[bytes], bool] | None = None


def sources_of(spec: GangSpec, paths: Mapping[int, str]) -> Iterator[Source]:
    """Yield the files of ranks that are shown."""
    prefixes = spec.log_line_prefixes or {}
    for rank, path in sorted(paths.items()):
        if path and path != os.devnull:
            prefix = as_prefix(prefixes.get(rank, spec.default_prefix(rank)))
            prompts = rank in spec.stdin and os.isatty(spec.stdin[rank].fd)
            yield Source(local_rank=rank, path=path, prefix=prefix.encode(), prompts=prompts)


def add_tails(tails: list[TailSpec], spec: GangSpec, dest: LogsDest) -> None:
    """Add the Tails one by one, so that a failed attempt can close the sinks that are already open."""
    outs, errs = list(sources_of(spec, dest.tee_stdouts)), list(sources_of(spec, dest.tee_stderrs))
    for name, stream, found in (("stdout", spec.consoles[0], outs), ("stderr", spec.consoles[1], errs)):
        sink = sinks.console(stream) if found else None
        if sink is None:
            continue
        if tails and sinks.same_destination(tails[0].sink, sink):  # because two writers would mix their lines
            sink.close()
            tails[0].name, tails[0].streams = "console", ("stdout", "stderr")
            tails[0].sources += found
        else:
            tails.append(TailSpec(name=name, sink=sink, sources=found, streams=(name,)))
    for name, path, filters, found in (
        ("filtered_stdout", dest.filtered_stdout, spec.duplicate_stdout_filters, outs),
        ("filtered_stderr", dest.filtered_stderr, spec.duplicate_stderr_filters, errs),
    ):
        if filters and path and not path.startswith(os.devnull):
            move_aside(path)
            needles = [needle.encode() for needle in filters]
            keep = partial(_holds_any, needles)
            streams = (name.removeprefix("filtered_"),)
            tails.append(
                TailSpec(name=name, sink=sinks.file_sink(path), sources=found, streams=streams, line_filter=keep)
            )


def _holds_any(needles: list[bytes], line: bytes) -> bool:
    return any(needle in line for needle in needles)
