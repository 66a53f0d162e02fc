"""The options of ``supervise run`` about its messages and its result."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from supervise.cli.option_values import add_option

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_DIGITS = 18


def check(parser: argparse.ArgumentParser, found: argparse.Namespace, nproc: int, world: Callable[[], str]) -> None:
    """Refuse options that contradict each other; `world` describes the ranks.

    Raises:
        SystemExit: With code 2 after an error message.
    """
    if found.quiet and found.verbose:
        parser.error("-q and -v contradict each other; omit one of them")
    if found.exit_code_from is not None and found.exit_code_from >= nproc:
        parser.error(f"--exit-code-from names rank {found.exit_code_from}; the ranks are {world()}")


def add_options(group: argparse._ArgumentGroup) -> None:
    """Add the options."""
    add_option(
        group,
        "--exit-code-from",
        metavar="WHO",
        type=_exit_code_from,
        help="root-cause: exit with the code of the rank that failed first; RANK: with that of this rank (root-cause)",
    )
    add_option(
        group,
        "--summary",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="end with a table of all ranks: exit code, time, CPU time, peak memory",
    )
    add_option(
        group,
        "--metrics",
        metavar="FILE",
        help="write the numbers of the run to FILE at its end, in the text format of Prometheus",
    )
    add_option(
        group,
        "--dry-run",
        action="store_true",
        help="print the commands and variables of all ranks as shell lines, and run nothing",
    )
    add_option(group, "-q", "--quiet", action="store_true", help="no messages of supervise except errors")
    add_option(group, "-v", "--verbose", action="store_true", help="every event as a line on stderr")
    add_option(
        group,
        "--log-format",
        choices=("console", "json"),
        default="console",
        help="console: messages for people; json: every event as a JSON object on stderr, in place of the messages"
        " (console)",
    )


def _exit_code_from(text: str) -> int | None:
    """Return a rank; None for ``root-cause``."""
    if text == "root-cause":
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise argparse.ArgumentTypeError(f"{text!r} is not a rank; give a number, or root-cause")
    return int(text)
