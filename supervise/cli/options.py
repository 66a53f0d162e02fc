"""The options of ``supervise run``."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from supervise._printable import below_itself
from supervise._process.launch import limits
from supervise._seconds import GRACE_S
from supervise.cli import failure_options, option_values, torchrun_options
from supervise.cli.option_values import add_option
from supervise.errors import SpecError
from supervise.logs import Std, to_map

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervise.restarts import RestartPolicy, Strategy

_HELP_COLUMNS = 118

_DESCRIPTION = """\
Run PROGRAM as several ranks on this machine, as one gang: if a rank fails,
supervise stops the others and exits with the exit code of the first failure.
Options end at PROGRAM; later words are the arguments of PROGRAM.

A path that ends in .py (or a module, with -m) runs under this Python. Any other
PROGRAM is executed directly.
"""

_EPILOG = """\
destination of output:
  By default the stdout and stderr of every rank are shown, each line after the
  prefix [ROLE RANK]:, and written to the run directory. To change that:
    -t SPEC    these streams are shown and written; the others are inherited
               from supervise: no prefix, no file
    -r SPEC    these streams are only written; the others are shown and
               written, as by default
    both       -t streams are shown and written, -r streams are only written,
               the others are inherited from supervise
  SPEC is 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or one per rank, such
  as 0:3,1:2 (0 for the other ranks). With --log-dir /dev/null there are no
  files: ranks inherit both streams, and lines have no prefix.
  Only ranks write to the stdout of supervise.

exit code:
  the exit code of the rank that failed first (128+N: signal N killed it); 0:
  all ranks succeeded; 128+N: signal N stopped supervise; 124: --timeout; 126:
  PROGRAM is not executable; 127: PROGRAM is not found; 2: wrong usage

signals:
  The first Ctrl-C (or SIGTERM, SIGHUP, SIGQUIT) is passed on to the ranks,
  which have --shutdown-timeout seconds to exit; the second kills them at once.
  SIGUSR1 and SIGUSR2 are passed on.

examples:
  supervise run -n 4 train.py --lr 0.1
  supervise run -n auto -m mypackage.train
  supervise run -n 8 --no-prefix -- ./worker --verbose
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The validated options. Mappings are keyed by local rank."""

    program: str
    """Path or name of a program, or name of a module."""
    args: tuple[str, ...]
    nproc: int
    module: bool
    python: bool
    """False: execute a ``.py`` file directly as well."""
    record: bool
    """Whether to record an uncaught exception of a Python program at the time of the exception."""
    log_dir: str | None
    redirects: dict[int, Std]
    """Streams to write to files."""
    tee: dict[int, Std]
    """Streams to write to files and to show."""
    ranks_shown: frozenset[int]
    """Ranks whose output is shown; empty: all."""
    grace_s: float
    timeout_s: float | None
    run_id: str | None
    role: str
    prefix: bool
    color: str
    """``auto``, ``always`` or ``never``."""
    restarts: RestartPolicy | None
    strategy: Strategy
    success_exit_codes: frozenset[int]
    containment: str
    gate: bool

    @property
    def straight_through(self) -> bool:
        """Whether some rank inherits a stream from supervise."""
        written = (self.redirects[rank] | self.tee[rank] for rank in range(self.nproc))
        return self.log_dir == os.devnull or any(std != Std.ALL for std in written)

    def shows_recorded_stderr(self, rank: int) -> bool:
        """Return whether the stderr of local rank `rank` is both written and shown."""
        listed = not self.ranks_shown or rank in self.ranks_shown
        return self.log_dir != os.devnull and listed and bool(self.tee[rank] & Std.ERR & ~self.redirects[rank])


def parse(words: Sequence[str]) -> Options:
    """Parse the arguments after ``run``.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    parser = _parser()
    found, unknown = parser.parse_known_args(list(words))
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{_meant(parser, unknown[0])}")
    command = found.command[1:] if found.command[:1] == ["--"] else found.command
    if not command:
        parser.error("PROGRAM is missing; for example: supervise run -n 4 train.py")
    if not command[0]:
        parser.error("PROGRAM is empty; is a variable in your script unset?")
    if found.module and found.no_python:
        parser.error("-m runs a module under Python, and --no-python does not use Python; omit one of them")
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
        restarts=failure_options.policy(parser, found),
        strategy=found.strategy or ("one_for_one" if found.keep_going else "one_for_all"),
        success_exit_codes=found.success_exit_codes,
        containment=found.containment,
        gate=found.gate,
    )


def _check_fileless(parser: argparse.ArgumentParser, found: argparse.Namespace) -> None:
    """Refuse options that need log files, because `--log-dir /dev/null` has none."""
    for option, value in (
        ("--redirects", found.redirects),
        ("--tee", found.tee),
        ("--local-ranks-filter", found.local_ranks_filter),
    ):
        if any(value.values()) if isinstance(value, dict) else value:
            parser.error(
                f"{option} needs files, and --log-dir {os.devnull} keeps none: ranks inherit both streams;"
                " omit one of them"
            )


def _meant(parser: argparse.ArgumentParser, word: str) -> str:
    """Return a hint with the option that is spelled most like `word`."""
    import difflib

    known = [name for action in parser._actions if action.help != argparse.SUPPRESS for name in action.option_strings]  # noqa: SLF001 - argparse has no public list
    name = word.partition("=")[0].replace("_", "-")
    found = difflib.get_close_matches(name, known, 1) if name.startswith("--") else []
    return f"; did you mean {found[0]}?" if found else ""


def _streams(
    redirects: Std | dict[int, Std] | None, tee: Std | dict[int, Std] | None, nproc: int
) -> tuple[dict[int, Std], dict[int, Std]]:
    """Return the streams that are only written, and those that are also shown; see the help."""
    only = to_map(Std.NONE if redirects is None else redirects, nproc)
    if tee is not None:
        return only, to_map(tee, nproc)
    return only, {rank: Std.ALL & ~std for rank, std in only.items()}


class _Parser(argparse.ArgumentParser):
    """A parser with error messages of two lines."""

    def error(self, message: str) -> NoReturn:
        """Print an error message and exit with code 2."""
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
    failure_options.add_options(parser.add_argument_group("failure"))
    torchrun_options.add_options(parser)
    return parser


def _formatter(prog: str) -> argparse.HelpFormatter:
    width = min(_HELP_COLUMNS, shutil.get_terminal_size((_HELP_COLUMNS, 40)).columns)
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=34, width=width)


def _add_what(group: argparse._ArgumentGroup) -> None:
    add_option(
        group,
        "-n",
        "--nproc-per-node",
        type=option_values.worker_count,
        default=1,
        metavar="N",
        help="number of ranks (1); cpu or gpu: one per CPU or GPU; auto: one per GPU, or per CPU if there is no GPU",
    )
    add_option(group, "-m", "--module", action="store_true", help="PROGRAM is a module, as in python -m")
    add_option(group, "--no-python", action="store_true", help="execute PROGRAM directly, even if it ends in .py")
    add_option(
        group,
        "--no-record",
        action="store_true",
        help="do not record uncaught exceptions of a Python PROGRAM",
    )
    add_option(
        group,
        "--run-id",
        metavar="ID",
        type=option_values.name,
        help="name of this run (the program's name and a random part)",
    )
    add_option(
        group,
        "--role",
        metavar="NAME",
        type=option_values.name,
        default="default",
        help='name of the ranks in prefixes and ROLE_NAME ("default")',
    )


_LOG_DIR_HELP = f"parent of the run directory (a new temporary directory); {os.devnull}: no files, no prefixes"


def _add_output(group: argparse._ArgumentGroup) -> None:
    add_option(group, "--log-dir", metavar="DIR", type=option_values.directory, help=_LOG_DIR_HELP)
    add_option(
        group,
        "-t",
        "--tee",
        metavar="SPEC",
        type=option_values.streams,
        help="streams to show and to write, see below (3)",
    )
    add_option(
        group,
        "-r",
        "--redirects",
        metavar="SPEC",
        type=option_values.streams,
        help="streams to write without showing them, see below",
    )
    add_option(
        group,
        "--local-ranks-filter",
        metavar="0,2",
        type=option_values.rank_list,
        default=frozenset(),
        help="show only these ranks; log files are not affected",
    )
    add_option(group, "--no-prefix", action="store_true", help="show lines without [ROLE RANK]:")
    add_option(
        group,
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto: color on a terminal unless NO_COLOR is set",
    )


def _add_end(group: argparse._ArgumentGroup) -> None:
    add_option(
        group,
        "--shutdown-timeout",
        metavar="SEC",
        type=option_values.seconds,
        default=GRACE_S,
        help=f"time from the first signal to SIGKILL, for every kind of stop ({GRACE_S:g})",
    )
    add_option(
        group,
        "--timeout",
        metavar="SEC",
        type=option_values.time_limit,
        help="stop the run after this time; the exit code is then 124",
    )
    add_option(
        group,
        "--containment",
        choices=("group", "sweep", "cgroup"),
        default="group",
        help="processes that leave the process group of their rank: group reports them, sweep finds and ends them,"
        " cgroup keeps them in a control group and ends them (needs cgroup v2)",
    )
    add_option(
        group,
        "--gate",
        action="store_true",
        help="hold each program until its lifeline is armed, so that the program ends even if supervise is killed"
        " during the start",
    )


def _span(nproc: int) -> str:
    return "0 only" if nproc == 1 else f"0 to {nproc - 1}"
