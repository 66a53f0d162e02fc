"""The options of ``supervise run``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from supervise._gang.notify_protocol import HELD_BY_RANK
from supervise._printable import one_line
from supervise._process.launch import limits
from supervise._record import record, replace
from supervise._settings import conditions
from supervise.cli.options import groups
from supervise.errors import SpecError
from supervise.logs import Std

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from signal import Signals

    from supervise.cli.options.parts import Hosts, Part
    from supervise.restarts import RestartPolicy
    from supervise.watchdog import Watchdog


_LONGEST_TITLE = 64
"""In bytes; the name of a file has at most 255."""


@record(frozen=False, eq=False)
class Options:
    """The validated options. Mappings are keyed by local rank."""

    parts: tuple[Part, ...]
    """The programs: one part for all ranks, or one for each role of `file`."""
    file: str | None
    """The file that describes the gang."""
    selected: tuple[str, ...]
    """The words that select roles of the file; empty: all."""
    nproc: int
    numa_binding: str | None
    virtual_local_rank: bool
    """Whether each rank sees only its own GPU and has ``LOCAL_RANK=0``."""
    hosts: Hosts
    engine: str
    """``local`` or ``ray``. With ``ray``, `nproc`, `parts` and all mappings cover all hosts, by global rank."""
    nnodes: int
    """Number of hosts of the engine; 1 without one."""
    record: bool
    """Whether to record an uncaught exception of a Python program at the time of the exception."""
    log_dir: str | None
    redirects: dict[int, Std]
    """Streams to write to files."""
    tee: dict[int, Std]
    """Streams to write to files and to show."""
    ranks_shown: frozenset[int]
    """Ranks whose output is shown; empty: all."""
    settings: dict[str, Any]
    """The settings of the gang that have options: name to value, or to the default."""
    told: dict[str, Any]
    """The settings of the whole gang that differ from their defaults: key in a gang file to value."""
    stop_signal: Signals | None
    """The first signal of every stop; None: SIGTERM, or the signal that stops supervise."""
    stopping_signals: tuple[Signals, ...]
    """Signals that stop the run."""
    run_id: str | None
    role: str
    prefix: bool
    """Whether shown lines have prefixes."""
    line_prefix: str | None
    """Template of the prefix; None: the default prefix."""
    color: str
    """``auto``, ``always`` or ``never``."""
    merge: bool
    """Whether the stderr of each rank goes to the file of its stdout."""
    halt_on_broken_pipe: bool
    """Whether the run is stopped when the reader of stdout or stderr is gone."""
    restarts: RestartPolicy | None
    watchdog: Watchdog | None
    exit_code_from: int | None
    """The rank whose exit code is that of supervise; None: the rank that failed first."""
    summary: bool
    metrics: str | None
    """Path of the file for the numbers of the run."""
    dry_run: bool
    quiet: bool
    verbose: bool
    json_log: bool
    """Whether events on stderr, as JSON objects, replace the messages."""
    notes: tuple[str, ...]
    """Messages about options without an effect."""

    @property
    def words(self) -> tuple[str, ...]:
        """The command of the run, for messages."""
        return self.parts[0].words if self.file is None else ("--file", self.file, *self.selected)

    @property
    def titles(self) -> list[tuple[str, int]]:
        """The role and the role rank of each local rank."""
        return [(part.role, number) for part in self.parts for number in range(part.count)]

    def part_of(self, local_rank: int) -> Part:
        """Return the part to which a rank belongs."""
        for part in self.parts:
            if local_rank < part.count:
                return part
            local_rank -= part.count
        raise IndexError(local_rank)

    stdin: groups.Choice

    def prefix_of(self, local_rank: int) -> str:
        """Return the prefix of a rank's lines."""
        role, role_rank = self.titles[local_rank]
        if self.line_prefix is None:
            return f"[{role}{role_rank}]:"
        from string import Template

        before = self.hosts.number
        of_role = before * self.part_of(local_rank).count + role_rank
        rank = before * self.nproc + local_rank
        known = {"role_name": role, "role_rank": of_role, "rank": rank, "local_rank": local_rank}
        return Template(self.line_prefix).safe_substitute(groups.PLACEHOLDERS | known)

    @property
    def straight_through(self) -> bool:
        """Whether some rank inherits a stream from supervise."""
        written = (self.redirects[rank] | self.tee[rank] for rank in range(self.nproc))
        return self.log_dir == os.devnull or any(std != Std.ALL for std in written)

    def shows(self, rank: int) -> bool:
        """Return whether a stream of local rank `rank` is both written and shown."""
        listed = not self.ranks_shown or rank in self.ranks_shown
        return self.log_dir != os.devnull and listed and bool(self.tee[rank])

    def shows_recorded_stderr(self, rank: int) -> bool:
        """Return whether the stderr of local rank `rank` is both written and shown."""
        return self.shows(rank) and bool(self.tee[rank] & Std.ERR & ~self.redirects[rank])


def parse(words: Sequence[str], command: str = "run") -> Options:
    """Parse and check the arguments after a command; see `groups.read`.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    return validated(*groups.read(words, command))


def validated(parser: groups.Parser, found: argparse.Namespace) -> Options:
    """Check and convert the values of a command line.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    parts = groups.parts(parser, found)
    nproc = sum(part.count for part in parts)
    try:
        limits.check_host(nproc, None if any(part.cwd is None for part in parts) else parts[0].cwd)
        later = _opened_later(found, parts, nproc)
        limits.check_open_files(nproc, each=limits.held_by_rank(None), shown=0, later=later)
    except SpecError as error:
        parser.error(str(error))
    nnodes = found.nnodes if found.engine == "ray" else 1
    groups.find_ranks(parser, found, parts, nnodes)
    redirects, tee = groups.streams(found.redirects, found.tee, nproc)
    groups.check_output(parser, found, nproc, redirects, tee)
    groups.check_health(parser, found, parts)
    if found.quiet and found.verbose:
        parser.error("-q and -v contradict each other; omit one of them")
    groups.check_stdin(parser, found, parts)
    settings = groups.gang_settings(found)
    hosts, shown = groups.hosts(parser, found), found.local_ranks_filter
    if nnodes > 1:
        parts = tuple(replace(part, count=part.count * nnodes) for part in parts)
        redirects, tee = ({rank: each[rank % nproc] for rank in range(nproc * nnodes)} for each in (redirects, tee))
        shown = [rank for rank in range(nproc * nnodes) if rank % nproc in shown]
    return Options(
        parts=parts,
        file=found.file.path if found.file is not None else None,
        selected=tuple(word for word in found.command if word != "--" and found.file is not None),
        nproc=nproc * nnodes,
        numa_binding=found.numa_binding,
        virtual_local_rank=found.virtual_local_rank,
        hosts=hosts,
        engine=found.engine,
        nnodes=nnodes,
        record=not found.no_record,
        log_dir=found.log_dir,
        redirects=redirects,
        tee=tee,
        ranks_shown=frozenset(shown),
        settings=settings,
        told=groups.told_settings(found),
        stop_signal=found.stop_signal,
        stopping_signals=found.signals_to_handle,
        run_id=found.run_id or (found.rdzv_id if found.rdzv_id != "none" else None),
        role=found.role or (groups.ROLE if found.file is None else _printable(stem(found.file.path))),
        prefix=not found.no_prefix,
        line_prefix=groups.template_of(found)[1],
        color=found.color,
        merge=found.merge,
        halt_on_broken_pipe=found.halt_on_broken_pipe,
        restarts=groups.policy(parser, found, settings, parts),
        watchdog=groups.watchdog(parser, found, parts),
        exit_code_from=found.exit_code_from,
        summary=found.summary,
        metrics=found.metrics,
        dry_run=found.dry_run,
        quiet=found.quiet,
        verbose=found.verbose,
        json_log=found.log_format == "json",
        notes=(*found.notes, *(found.file.notes if found.file is not None else ())),
        stdin=found.stdin,
    )


def _opened_later(found: argparse.Namespace, parts: tuple[Part, ...], nproc: int) -> int:
    """Return the number of descriptors that the run may open after the check of the options."""
    filters = bool(found.duplicate_stdout_filters) + bool(found.duplicate_stderr_filters)
    notifies = any("notify" in conditions(part.settings["ready"]) for part in parts)
    notified = notifies or found.heartbeat_timeout or found.output_timeout
    pipes = 2 if found.stdin == "all" else 0
    return limits.opened_later(nproc, filters=filters, more=HELD_BY_RANK * bool(notified) + pipes)


def stem(path: str) -> str:
    """Return the name of a file without its folder and suffix."""
    return os.path.splitext(os.path.basename(path))[0]


def title(options: Options) -> str:
    """Return the default name of a run: the name of its program or file, at most 64 bytes of it, in printable text."""
    if options.file is not None:
        name = stem(options.file)
    else:
        [part] = options.parts
        name = part.program if part.module else stem(part.program)
    name = name.lstrip("-")  # otherwise commands would take the name of the run for an option
    return _printable(name).encode()[:_LONGEST_TITLE].decode(errors="ignore") or "run"


def _printable(name: str) -> str:
    """Return the name of a file as text. A question mark replaces each byte that is not UTF-8."""
    return one_line(name).encode(errors="replace").decode()
