"""The option of ``supervise run`` that chooses the rank that reads the stdin of supervise."""

from __future__ import annotations

import argparse
import os
from typing import Literal

from supervise.cli.option_values import add_option

Choice = int | Literal["all", "none"] | None
"""A rank, ``all`` or ``none``; None if the option was not given."""
_WORDS: dict[str, Choice] = {"all": "all", "none": "none"}
_MOST_DIGITS = 18


def add_options(group: argparse._ArgumentGroup) -> None:
    """Add the option."""
    add_option(
        group,
        "--stdin",
        metavar="RANK",
        type=choice,
        help="the rank that reads the stdin of supervise, and has the terminal; all: each rank gets a copy; none: no"
        " rank (the rank of -n 1; of several ranks none)",
    )


def choice(text: str) -> Choice:
    """Return a rank, ``all`` or ``none``.

    Raises:
        argparse.ArgumentTypeError: It is neither; the text has the accepted values.
    """
    if text in _WORDS:
        return _WORDS[text]
    if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a rank; give a number from 0, all or none")


def check(parser: argparse.ArgumentParser, found: argparse.Namespace, nproc: int) -> None:
    """Refuse a rank that does not exist, copies of a terminal, and a stdin together with a gate.

    Raises:
        SystemExit: With code 2 after an error message.
    """
    chosen = found.stdin
    if isinstance(chosen, int) and chosen >= nproc:
        ranks = "0 only" if nproc == 1 else f"0 to {nproc - 1}"
        parser.error(f"--stdin names rank {chosen}; with -n {nproc} the ranks are {ranks}")
    if chosen == "all" and os.isatty(0):
        parser.error(
            "--stdin all cannot copy a terminal, since a key stroke goes to one process only; give the terminal to one"
            " rank by --stdin 0, or redirect the input"
        )
    if chosen not in (None, "none") and found.gate:
        parser.error(f"--stdin {chosen} and --gate exclude each other: a gated program waits on its stdin; omit one")
