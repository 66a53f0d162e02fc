"""The options of ``supervise run``."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from supervise._printable import below_itself
from supervise._process.launch import limits
from supervise._seconds import GRACE_S
from supervise.cli import option_values, torchrun_options
from supervise.errors import SpecError
from supervise.logs import Std, to_map
from supervise.restarts import RestartPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

_HELP_COLUMNS = 118

_DESCRIPTION = """\
Run PROGRAM on several ranks of this machine, as one gang: if a rank fails, the
others are stopped, and the exit code is that of the rank that failed first.
Options end at PROGRAM; all that follows it is its own.

A path that ends in .py (or a module, with -m) runs under this Python; anything
else is executed as it is.
"""

_EPILOG = """\
where output goes:
  By default the stdout and stderr of every rank are shown as they come, each
  line behind [ROLE RANK]:, and written to the run directory. To change that:
    -t SPEC    these streams are shown and written; the others go straight to
               ours, bare and unrecorded
    -r SPEC    these streams are only written; the others are shown and
               written, as by default
    both       -t's are shown and written, -r's only written, the others go
               straight to ours
  SPEC is 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or one per rank, such
  as 0:3,1:2 (0 for the rest). With --log-dir /dev/null no files are kept: all
  output goes straight to ours, without prefix.
  Nothing but the output of ranks goes to our stdout.

exit code:
  that of the rank that failed first (128+N: killed by signal N); 0: all
  succeeded; 128+N: we got signal N and stopped the ranks; 124: --timeout;
  126: PROGRAM cannot be executed; 127: it is not found; 2: wrong usage

signals:
  The first Ctrl-C (or SIGTERM, SIGHUP, SIGQUIT) is passed on and gives the
  ranks --shutdown-timeout seconds; the second kills them now. SIGUSR1 and
  SIGUSR2 are passed on.

examples:
  supervise run -n 4 train.py --lr 0.1
  supervise run -n auto -m mypackage.train
  supervise run -n 8 --no-prefix -- ./worker --verbose
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for, checked. Mappings are keyed by local rank."""

    program: str
    """The path or name of a program, or the name of a module."""
    args: tuple[str, ...]
    nproc: int
    module: bool
    python: bool
    """False: execute also a ``.py`` file as it is."""
    record: bool
    """Whether an exception that a Python program does not catch is recorded at its moment."""
    log_dir: str | None
    redirects: dict[int, Std]
    """Streams that are written to files."""
    tee: dict[int, Std]
    """Streams that are written to files and shown."""
    ranks_shown: frozenset[int]
    """Empty: all."""
    grace_s: float
    timeout_s: float | None
    run_id: str | None
    role: str
    prefix: bool
    color: str
    """``auto``, ``always`` or ``never``."""
    restarts: RestartPolicy | None
    containment: str
    gate: bool

    @property
    def straight_through(self) -> bool:
        """Whether some rank's stream is ours, so that nothing of us is between."""
        written = (self.redirects[rank] | self.tee[rank] for rank in range(self.nproc))
        return self.log_dir == os.devnull or any(std != Std.ALL for std in written)

    def shows_recorded_stderr(self, rank: int) -> bool:
        """Return whether the stderr of local rank `rank` is both written and shown as it comes."""
        listed = not self.ranks_shown or rank in self.ranks_shown
        return self.log_dir != os.devnull and listed and bool(self.tee[rank] & Std.ERR & ~self.redirects[rank])


def parse(words: Sequence[str]) -> Options:
    """Return the options that `words`, which follow ``run``, ask for.

    Raises:
        SystemExit: With code 2 after one line that says what is wrong, or 0 after the help.
    """
    parser = _parser()
    found, unknown = parser.parse_known_args(list(words))
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{_meant(parser, unknown[0])}")
    command = found.command[1:] if found.command[:1] == ["--"] else found.command
    if not command:
        parser.error("no PROGRAM is given; for example: supervise run -n 4 train.py")
    if not command[0]:
        parser.error("PROGRAM is empty; is a variable of your script not set?")
    if found.module and found.no_python:
        parser.error("-m runs a module under Python and --no-python says not to; leave one of them out")
    nproc: int = found.nproc_per_node
    try:
        limits.check_host(nproc, None)
        limits.check_open_files(nproc, each=limits.held_by_rank(None), shown=0)
    except SpecError as error:
        parser.error(str(error))
    for option, ranks in (
        ("--local-ranks-filter", found.local_ranks_filter),
        ("--redirects", found.redirects if isinstance(found.redirects, dict) else ()),
        ("--tee", found.tee if isinstance(found.tee, dict) else ()),
    ):
        if beyond := sorted(rank for rank in ranks if rank >= nproc):
            parser.error(f"{option} names rank {beyond[0]}; with -n {nproc} the ranks are {_span(nproc)}")
    if found.log_dir == os.devnull:
        _check_fileless(parser, found)
    redirects, tee = _streams(found.redirects, found.tee, nproc)
    return Options(
        program=command[0],
        args=tuple(command[1:]),
        nproc=nproc,
        module=found.module,
        python=not found.no_python,
        record=not found.no_record,
        log_dir=found.log_dir,
        redirects=redirects,
        tee=tee,
        ranks_shown=frozenset(found.local_ranks_filter),
        grace_s=found.shutdown_timeout,
        timeout_s=found.timeout,
        run_id=found.run_id,
        role=found.role,
        prefix=not found.no_prefix,
        color=found.color,
        restarts=_policy(parser, found),
        containment=found.containment,
        gate=found.gate,
    )


def _check_fileless(parser: argparse.ArgumentParser, found: argparse.Namespace) -> None:
    """Refuse what needs files: streams that are not shown as they are pass through them."""
    for option, value in (
        ("--redirects", found.redirects),
        ("--tee", found.tee),
        ("--local-ranks-filter", found.local_ranks_filter),
    ):
        if any(value.values()) if isinstance(value, dict) else value:
            parser.error(
                f"{option} needs files, and --log-dir {os.devnull} keeps none: all output goes straight to ours;"
                " leave one of them out"
            )


def _meant(parser: argparse.ArgumentParser, word: str) -> str:
    """Return a hint at the option that may have been meant."""
    import difflib

    known = [name for action in parser._actions if action.help != argparse.SUPPRESS for name in action.option_strings]  # noqa: SLF001 - argparse has no public list
    name = word.partition("=")[0].replace("_", "-")
    found = difflib.get_close_matches(name, known, 1) if name.startswith("--") else []
    return f"; did you mean {found[0]}?" if found else ""


def _policy(parser: argparse.ArgumentParser, found: argparse.Namespace) -> RestartPolicy | None:
    if found.max_restarts is None:
        for option, value in (("--restart-window", found.restart_window), ("--backoff", found.backoff)):
            if value is not None:
                parser.error(f"{option} says how to restart; say how often, too: --max-restarts 3")
        return None
    backoff = 1.0 if found.backoff is None else found.backoff
    return RestartPolicy(max_restarts=found.max_restarts, within_s=found.restart_window, backoff=backoff)


def _streams(
    redirects: Std | dict[int, Std] | None, tee: Std | dict[int, Std] | None, nproc: int
) -> tuple[dict[int, Std], dict[int, Std]]:
    """Return what is only written and what is also shown; see the help."""
    only = to_map(Std.NONE if redirects is None else redirects, nproc)
    if tee is not None:
        return only, to_map(tee, nproc)
    return only, {rank: Std.ALL & ~std for rank, std in only.items()}


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are two lines."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and end with code 2."""
        print(f"supervise run: {below_itself(message)}\nTry 'supervise run --help'.", file=sys.stderr)
        raise SystemExit(2)


def _parser() -> _Parser:
    parser = _Parser(
        prog="supervise run",
        usage="supervise run [OPTIONS] [--] PROGRAM [ARGS...]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=_formatter,
        allow_abbrev=False,
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    _add_what(parser.add_argument_group("what runs"))
    _add_output(parser.add_argument_group("output"))
    _add_end(parser.add_argument_group("the end"))
    _add_restarts(parser.add_argument_group("restarts"))
    torchrun_options.add_options(parser)
    return parser


def _formatter(prog: str) -> argparse.HelpFormatter:
    width = min(_HELP_COLUMNS, shutil.get_terminal_size((_HELP_COLUMNS, 40)).columns)
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=34, width=width)


def _option(group: argparse._ArgumentGroup, *names: str, **settings: Any) -> None:
    """Add an option; each ``--long-name`` is also known as ``--long_name``, which the help leaves out."""
    added = group.add_argument(*names, **settings)
    spelled = [f"--{name[2:].replace('-', '_')}" for name in names if "-" in name[2:]]
    if spelled:
        hidden = {"help": argparse.SUPPRESS, "default": argparse.SUPPRESS, "dest": added.dest}
        group.add_argument(*spelled, **settings | hidden)


def _add_what(group: argparse._ArgumentGroup) -> None:
    _option(
        group,
        "-n",
        "--nproc-per-node",
        type=option_values.worker_count,
        default=1,
        metavar="N",
        help="how many ranks (1); cpu or gpu: one for each, auto: one for each GPU, or CPU where there is none",
    )
    _option(group, "-m", "--module", action="store_true", help="PROGRAM is a module, as for python -m")
    _option(group, "--no-python", action="store_true", help="execute PROGRAM as it is, even if it ends in .py")
    _option(
        group,
        "--no-record",
        action="store_true",
        help="do not record, at its moment, the exception that a Python PROGRAM does not catch",
    )
    _option(
        group,
        "--run-id",
        metavar="ID",
        type=option_values.name,
        help="of this run (the program's name and a random part)",
    )
    _option(group, "--role", metavar="NAME", type=option_values.name, default="default", help="of the ranks (default)")


_LOG_DIR_HELP = f"where the run directory is made (a new temporary one); {os.devnull}: no files, and no prefixes"


def _add_output(group: argparse._ArgumentGroup) -> None:
    _option(group, "--log-dir", metavar="DIR", type=option_values.directory, help=_LOG_DIR_HELP)
    _option(
        group,
        "-t",
        "--tee",
        metavar="SPEC",
        type=option_values.streams,
        help="streams that are shown and written, see below (3)",
    )
    _option(
        group,
        "-r",
        "--redirects",
        metavar="SPEC",
        type=option_values.streams,
        help="streams that are only written, see below",
    )
    _option(
        group,
        "--local-ranks-filter",
        metavar="0,2",
        type=option_values.rank_list,
        default=frozenset(),
        help="show these ranks only; what is written stays the same",
    )
    _option(group, "--no-prefix", action="store_true", help="show lines without [ROLE RANK]:")
    _option(
        group,
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto is: on a terminal, unless NO_COLOR is set",
    )


def _add_end(group: argparse._ArgumentGroup) -> None:
    _option(
        group,
        "--shutdown-timeout",
        metavar="SEC",
        type=option_values.seconds,
        default=GRACE_S,
        help=f"from the polite signal to SIGKILL, whatever the reason ({GRACE_S:g})",
    )
    _option(
        group,
        "--timeout",
        metavar="SEC",
        type=option_values.time_limit,
        help="stop the run after this long; its exit code is 124",
    )
    _option(
        group,
        "--containment",
        choices=("group", "sweep", "cgroup"),
        default="group",
        help="what leaves its rank's process group is only reported (group), found and ended (sweep), or kept in a"
        " control group and ended (cgroup, needs cgroup v2)",
    )
    _option(
        group,
        "--gate",
        action="store_true",
        help="let no program run before it is certain to end with supervise, even if that is killed during the start",
    )


def _add_restarts(group: argparse._ArgumentGroup) -> None:
    _option(
        group,
        "--max-restarts",
        metavar="N",
        type=option_values.restart_count,
        help="when a rank fails, stop all and start all anew, up to N times (0)",
    )
    _option(
        group,
        "--restart-window",
        metavar="SEC",
        type=option_values.span_s,
        help="count only the restarts of the last SEC seconds (all)",
    )
    _option(
        group,
        "--backoff",
        metavar="SEC",
        type=option_values.seconds,
        help="wait before the first restart (1), twice as long before each further one, up to a minute;"
        " SEC before each if it is more",
    )


def _span(nproc: int) -> str:
    return "0 only" if nproc == 1 else f"0 to {nproc - 1}"
