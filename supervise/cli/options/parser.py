"""The parser of ``supervise run``. The module imports little, so that ``--help`` is fast."""

from __future__ import annotations

import argparse
import os
import re
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from supervise.cli.options import groups, values

if TYPE_CHECKING:
    from collections.abc import Sequence


_HELP_COLUMNS = 118

_formatter = partial(argparse.RawDescriptionHelpFormatter, max_help_position=34, width=_HELP_COLUMNS)

_USAGE = """\
supervise run [OPTIONS] [--] PROGRAM [ARGS...]
       supervise run [OPTIONS] --file FILE [ROLE[=N]...]"""

_DESCRIPTION = """\
Run PROGRAM as several ranks on this machine, as one gang: if a rank fails,
supervise stops the others and exits with the exit code of the first failure.
Options end at PROGRAM; later words are the arguments of PROGRAM.

A path that ends in .py (or a module, with -m) runs under this Python. Any other
PROGRAM is executed directly.
"""

_BRIEF = """\
supervise run -n 4 train.py --lr 0.1        4 ranks of a Python file
supervise run -n auto -m mypackage.train    a rank for each GPU, or for each CPU
supervise run -n 8 --no-prefix -- ./worker  any program; output without prefixes
supervise run --file gang.toml              the roles of a file or Procfile

  -n N|auto|cpu|gpu        number of ranks (1)
  -m                       PROGRAM is a module, as in python -m
  --file FILE              run the roles of a file: gang.toml, or a Procfile
  --env K=V, --env-file F  set variables in each rank
  --cwd DIR                working directory of the ranks
  --max-restarts N         restart after a failure, up to N times (0)
  --keep-going             the failure of a rank stops no other rank
  --timeout DUR            stop the run after this time, such as 90s, 5m or 2h
  --shutdown-timeout DUR   time from the first signal to SIGKILL (30)
  --log-dir DIR            parent of the run directory (the folder of your runs)
  --no-prefix, --merge     no prefix before lines; both streams in one file
  --stdin RANK|all|none    the rank that reads the stdin of supervise
  --summary, --dry-run     a table of ranks at the end; only print the commands
  -q, -v                   fewer or more messages

Every option: supervise run --help. Exit code: that of the first failure.
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
  which have --shutdown-timeout to exit; the second kills them at once.
  SIGUSR1 and SIGUSR2 are passed on. Ctrl-Z suspends the ranks and supervise.
  A rank that reads the terminal has it until it ends: Ctrl-C goes to that rank,
  and its end by Ctrl-C stops the run.

durations (DUR):
  seconds, or a number with a unit: 500ms, 90s, 5m, 2h, 1d

examples:
  supervise run -n 4 train.py --lr 0.1
  supervise run -n auto -m mypackage.train
  supervise run -n 8 --no-prefix -- ./worker --verbose
"""


def read(words: Sequence[str], command: str = "run") -> tuple[Parser, argparse.Namespace]:
    """Parse arguments. Those in the file of ``--file`` come first. Return the parser, for errors, and the values.

    Args:
        words: The arguments after the command.
        command: The command that is named in error messages.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    parser = run_parser()
    parser.prog = f"supervise {command}"
    parser.defaults = groups.defaults(os.environ)
    found, unknown = parser.parse_known_args([*parser.defaults, *words])
    if found.file is not None:
        try:
            given = found.file.words(known_options(parser))
        except argparse.ArgumentTypeError as error:
            parser.error(str(error))
        if found.ready:  # otherwise the list of the file would go on
            given = [word for word in given if not word.startswith("--ready=")]
        own_env = found.env
        parser.source = found.file.path  # the other arguments have been parsed before
        found, unknown = parser.parse_known_args([*parser.defaults, *given, *words])
        parser.source = ""
        found.own_env = own_env
    if unknown:
        from supervise.cli.options import suggestions

        meant = suggestions.instead_of(unknown[0], known_options(parser), "".join(found.command[:1]))
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")
    return parser, found


class Parser(values.CommandParser):
    """The parser of ``supervise run``. Its errors name the source of the arguments."""

    defaults: Sequence[str] = ()
    """Arguments from variables ``PET_*``."""
    source: str = ""
    """Path of the gang file whose options are parsed; an error is then about one of its keys."""

    def format_help(self) -> str:
        """Return the help, as wide as the terminal."""
        import shutil  # only here, because argparse makes a formatter for each option

        width = min(_HELP_COLUMNS, shutil.get_terminal_size((_HELP_COLUMNS, 40)).columns)
        self.formatter_class: Any = partial(_formatter, width=width)
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Print an error message and exit with code 2."""
        import shlex

        if message.startswith("argument --restart: invalid choice"):
            from supervise.cli.options import suggestions

            message += suggestions.RESTARTS_OF_OTHERS.get(message.split("'")[1], "")
        if self.source:
            message = f"{self.source}: {re.sub('^argument (?:.*?/)?--', '', message)}"
        given = f"\nThe environment gives {shlex.join(self.defaults)} (PET_*)." if self.defaults else ""
        super().error(message + given)


def run_parser() -> Parser:
    """Return the parser, which has not read any arguments yet."""
    parser = Parser(
        prog="supervise run",
        usage=_USAGE,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=_formatter,
        allow_abbrev=False,
        add_help=False,
    )
    parser.add_argument(
        "-h", action="version", version=_BRIEF, help="show examples and the options that most runs need"
    )
    parser.add_argument("--help", action="help", help="show this text")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    groups.add_groups(parser)
    return parser


def known_options(parser: argparse.ArgumentParser) -> dict[str, bool]:
    """Return the options of the help, and whether each is a flag."""
    shown = (action for action in parser._actions if action.help != argparse.SUPPRESS)  # noqa: SLF001 - argparse has no public list
    return {name: action.nargs == 0 for action in shown for name in action.option_strings}
